-- The processes that launched in a window: how often, and from when to when.
SELECT
    host,
    pid,
    count() AS launches,
    min(timestamp_ns) AS first_ns,
    max(timestamp_ns) AS last_ns
FROM cuda_events
WHERE kind IN ('launch', 'graph_launch')
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
GROUP BY host, pid
ORDER BY host, pid
