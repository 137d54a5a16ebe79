-- How many values of a measure there are of each stratum of the kernels in `keys` in a window. kind = launch, graph_launch
-- or device; measure = completion, call or device. isolated = 1: only launches alone between two syncs.
SELECT
    kernel_key,
    stratum,
    count() AS met
FROM
(
    SELECT
        cityHash64(kernel_name) AS kernel_key,
        /* stratum(graph_id) */ toUInt64(0) AS stratum
    FROM kernel_executions
    WHERE {measure:String} = 'device'
        AND timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND duration_ns >= 0
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
    UNION ALL
    SELECT
        cityHash64(kernel_name) AS kernel_key,
        /* stratum */ toUInt64(0) AS stratum
    FROM cuda_events
    WHERE {measure:String} != 'device'
        AND kind = {kind:String}
        AND timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND status = 0
        AND bitAnd(flags, 1) = 0
        AND if({measure:String} = 'call', bitAnd(flags, 4) = 0 AND duration_ns > 0, completion_ns > 0)
        AND ({isolated:UInt8} = 0 OR batch_launches = 1)
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
)
GROUP BY kernel_key, stratum
