-- Time in the host call of each launch in a window, of the kernels in `keys`, where the return was probed.
-- outside = 1: without those in device windows of their process.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    /* by host: events.host */ toInt32(intDiv(timestamp_ns - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
    duration_ns AS value /* , stratum */
FROM cuda_events AS events
GLOBAL LEFT ASOF JOIN
(
    SELECT cityHash64(host, pid) AS process, from_ns, to_ns
    FROM device_windows
    WHERE {outside:UInt8} = 1
        AND to_ns > from_ns
) AS windows ON cityHash64(events.host, events.pid) = windows.process AND events.timestamp_ns >= windows.from_ns
WHERE kind = 'launch'
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND duration_ns > 0
    AND bitAnd(flags, 4) = 0
    AND status = 0
    AND bitAnd(flags, 1) = 0
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(events.host, events.pid, events.timestamp_ns) */
    AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
    AND timestamp_ns >= to_ns
