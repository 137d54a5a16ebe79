-- As samples_launch, and for how much of each call its thread was ready to run and had no processor; -1: unknown.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    duration_ns AS value,
    coalesce(runnable_ns, toInt64(-1)) AS waited
FROM cuda_events
WHERE kind = 'launch'
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND duration_ns > 0
    AND bitAnd(flags, 4) = 0
    AND status = 0
    AND bitAnd(flags, 1) = 0
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
    AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
