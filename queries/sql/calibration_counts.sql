-- Isolated launches of each kernel in a stretch. `keys` names the kernels; none: all.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    count() AS launches
FROM cuda_events
WHERE kind = 'launch'
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND completion_ns > 0
    AND batch_launches = 1
    AND status = 0
    AND bitAnd(flags, 1) = 0
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
    AND (empty({keys:Array(UInt64)}) OR cityHash64(kernel_name) IN {keys:Array(UInt64)})
GROUP BY kernel_name
ORDER BY kernel_name
