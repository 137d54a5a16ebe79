-- The model of each GPU by its UUID, as NVML names it, of all that a store holds.
SELECT
    gpu_uuid,
    argMax(samples.gpu_name, timestamp_ns) AS gpu_name
FROM gpu_samples AS samples
WHERE gpu_uuid != ''
    AND samples.gpu_name != ''
GROUP BY gpu_uuid
ORDER BY gpu_uuid
