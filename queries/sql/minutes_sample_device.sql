-- Executions of each kernel and process in some minutes of a window, Unix s, and their time.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    cityHash64(host, pid) AS process,
    sum(its.executions) AS executions,
    sum(its.device_ns) AS device_ns
FROM process_minutes AS its
WHERE kind = 'device'
    AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND minute GLOBAL IN (SELECT toDateTime(arrayJoin({minutes:Array(UInt32)}), 'UTC'))
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
GROUP BY kernel_name, host, pid
