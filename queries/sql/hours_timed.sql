-- Executions of each process in a window of whole hours and their time, all kernels together.
SELECT
    host,
    pid,
    cityHash64(host, pid) AS process,
    sum(hours.executions) AS executions,
    sum(hours.device_ns) AS device_ns
FROM process_hours AS hours
WHERE kind = 'device'
    AND hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String})
GROUP BY host, pid
ORDER BY host, pid
