-- The GPUs of each process that ran kernels in a window.
SELECT
    host,
    pid,
    cityHash64(host, pid, gpu_uuid) AS device
FROM kernel_executions
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String})
GROUP BY host, pid, gpu_uuid
ORDER BY host, pid, gpu_uuid
