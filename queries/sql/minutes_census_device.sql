-- As census_device, from the roll-ups of whole minutes.
SELECT
    kernel_name,
    cityHash64(kernel_name) AS kernel_key,
    host,
    pid,
    cityHash64(host, pid) AS process,
    sum(minutes.executions) AS executions,
    sum(minutes.in_graphs) AS in_graphs,
    sum(minutes.device_ns) AS device_ns
FROM process_minutes AS minutes
WHERE kind = 'device'
    AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
GROUP BY kernel_name, host, pid
ORDER BY kernel_name, host, pid
