-- Executions of all kernels in a window, to see what ran beside what. A device is a GPU of one process: processes are
-- timed at different moments. every > 1 leaves out all but each every-th stretch.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    cityHash64(host, pid, gpu_uuid) AS device,
    cityHash64(host, pid, gpu_uuid, stream) AS lane,
    toInt32(intDiv(timestamp_ns - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
    timestamp_ns - {from_ns:Int64} AS start_ns,
    duration_ns,
    queue_ns
FROM kernel_executions
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND duration_ns >= 0
    AND ({service:String} = '' OR service = {service:String})
    AND intDiv(timestamp_ns - {from_ns:Int64}, {bucket_ns:Int64}) % {every:Int64} = 0
