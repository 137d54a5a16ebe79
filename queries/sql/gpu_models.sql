-- The model of each GPU by its UUID, as NVML names it in a stretch of time.
SELECT
    gpu_uuid,
    argMax(samples.gpu_name, timestamp_ns) AS gpu_name
FROM gpu_samples AS samples
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND gpu_uuid != ''
    AND samples.gpu_name != ''
GROUP BY gpu_uuid
ORDER BY gpu_uuid
