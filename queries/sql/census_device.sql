-- Executions of each kernel in a window and their time, by process: processes are timed in windows of their own.
SELECT
    kernel_name,
    cityHash64(kernel_name) AS kernel_key,
    host,
    pid,
    cityHash64(host, pid) AS process,
    count() AS executions,
    countIf(graph_id != 0) AS in_graphs,
    sum(duration_ns) AS device_ns
FROM kernel_executions
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
GROUP BY kernel_name, host, pid
ORDER BY kernel_name, host, pid
