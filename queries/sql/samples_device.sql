-- Device start to device end of each execution in a window, of the kernels in `keys`.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    /* by host: host */ toInt32(intDiv(timestamp_ns - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
    duration_ns AS value /* , stratum(graph_id) */
FROM kernel_executions
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND duration_ns >= 0
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
    AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
