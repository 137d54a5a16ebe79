-- The rows of gpu_samples in a stretch of time.
SELECT *
FROM gpu_samples
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service IN ('', {service:String}))
ORDER BY timestamp_ns
