-- How far the completion of isolated launches lies above their device time: launches of a stretch whose execution is
-- known by its launch. `keys` names the kernels, and `every` of how many launches of each one is taken, by a hash of its
-- time, so that it is the same one on both sides.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    host,
    completion_ns - duration_ns AS excess_ns
FROM
(
    SELECT host, pid, kernel_name, timestamp_ns AS launched_ns, completion_ns
    FROM cuda_events
    WHERE kind = 'launch'
        AND timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND completion_ns > 0
        AND batch_launches = 1
        AND status = 0
        AND bitAnd(flags, 1) = 0
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
        AND cityHash64(timestamp_ns) % transform(cityHash64(kernel_name), {keys:Array(UInt64)}, {every:Array(UInt64)}, 1) = 0
) AS launches
GLOBAL INNER JOIN
(
    SELECT host, pid, kernel_name, timestamp_ns - queue_ns AS launched_ns, duration_ns
    FROM kernel_executions
    WHERE queue_ns > 0
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
        AND cityHash64(timestamp_ns - queue_ns)
            % transform(cityHash64(kernel_name), {keys:Array(UInt64)}, {every:Array(UInt64)}, 1) = 0
) AS executions USING (host, pid, kernel_name, launched_ns)
