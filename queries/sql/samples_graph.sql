-- Graph launch to the end of the sync that proves it finished, in a window.
-- isolated = 1: alone between two syncs.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    toInt32(intDiv(timestamp_ns - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
    completion_ns AS value,
    toUInt8(batch_launches = 1) AS isolated
FROM cuda_events
WHERE kind = 'graph_launch'
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND completion_ns > 0
    AND status = 0
    AND bitAnd(flags, 1) = 0
    AND ({service:String} = '' OR service = {service:String})
    AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
