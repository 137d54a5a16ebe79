-- Rows of cuda_events in a stretch by kind of call.
SELECT
    kind,
    count() AS events
FROM cuda_events
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
GROUP BY kind
ORDER BY kind
