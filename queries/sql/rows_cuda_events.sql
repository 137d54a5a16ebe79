-- The rows of cuda_events in a stretch of time.
SELECT *
FROM cuda_events
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String})
ORDER BY timestamp_ns
