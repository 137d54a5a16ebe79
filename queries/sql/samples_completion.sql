-- Entry of a launch, or of a graph launch, to the end of the sync that proves it finished, of the kernels in `keys` in a
-- window. kind = launch or graph_launch.
-- isolated = 1: alone between two syncs.
-- outside = 1: without those in device windows of their process.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    /* by host: events.host */ toInt32(intDiv(timestamp_ns - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
    completion_ns AS value,
    toUInt8(batch_launches = 1) AS isolated /* , stratum */
FROM cuda_events AS events
GLOBAL LEFT ASOF JOIN
(
    SELECT cityHash64(host, pid) AS process, from_ns, to_ns
    FROM device_windows
    WHERE {outside:UInt8} = 1
        AND to_ns > from_ns
) AS windows ON cityHash64(events.host, events.pid) = windows.process AND events.timestamp_ns >= windows.from_ns
WHERE kind = {kind:String}
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND completion_ns > 0
    AND status = 0
    AND bitAnd(flags, 1) = 0
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(events.host, events.pid, events.timestamp_ns) */
    AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
    AND timestamp_ns >= to_ns
