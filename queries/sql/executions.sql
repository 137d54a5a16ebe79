-- Executions of all kernels in a window, to see what ran beside what. A device is a GPU of one process: processes are
-- timed at different moments. Each stretch has as many `slices`, which are numbered through: those are read whose number,
-- spread over 2^32 by the golden ratio, is below `chosen`.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    cityHash64(host, pid) AS process,
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
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
    AND bitAnd(
        (intDiv(timestamp_ns - {from_ns:Int64}, {bucket_ns:Int64}) * {slices:Int64} + intDiv((timestamp_ns - {from_ns:Int64}) % {bucket_ns:Int64}, {slice_ns:Int64})) * 2654435769,
        4294967295
    ) < {chosen:Int64}
