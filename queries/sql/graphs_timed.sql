-- Of each graph the launches by processes whose graphs' kernels were timed on the device in the window.
SELECT
    kernel_key,
    sum(launched) AS launches
FROM
(
    SELECT
        kernel_key,
        launched,
        sum(timed) OVER (PARTITION BY host, pid) AS in_graphs
    FROM
    (
        SELECT host, pid, cityHash64(kernel_name) AS kernel_key, count() AS launched, toUInt64(0) AS timed
        FROM cuda_events
        WHERE kind = 'graph_launch'
            AND timestamp_ns >= {from_ns:Int64}
            AND timestamp_ns < {to_ns:Int64}
            AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        GROUP BY host, pid, kernel_key
        UNION ALL
        SELECT host, pid, toUInt64(0) AS kernel_key, toUInt64(0) AS launched, count() AS timed
        FROM kernel_executions
        WHERE graph_id != 0
            AND timestamp_ns >= {from_ns:Int64}
            AND timestamp_ns < {to_ns:Int64}
            AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        GROUP BY host, pid
    )
)
WHERE in_graphs > 0 AND launched > 0
GROUP BY kernel_key
ORDER BY kernel_key
