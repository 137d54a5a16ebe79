-- What each kernel's launches did in a window, counted by what may be judged and why the rest may not.
-- One row a kernel, and one with kind = 'graph_launch' and an empty name for the launches of graphs.
-- kernel_key stands for the name where samples are read: 8 bytes a row instead of a string.
SELECT
    kind,
    kernel_name,
    cityHash64(kernel_name) AS kernel_key,
    count() AS launches,
    countIf(status != 0) AS failed,
    countIf(captured) AS captured,
    countIf(unresolved) AS unresolved,
    countIf(sound AND completion_ns > 0) AS completions,
    countIf(sound AND completion_ns > 0 AND batch_launches = 1) AS isolated,
    countIf(sound AND returned AND duration_ns > 0) AS timed,
    sumIf(completion_ns, sound AND batch_launches = 1) AS isolated_ns,
    sumIf(duration_ns, sound AND returned) AS launch_ns
FROM
(
    SELECT
        kind,
        kernel_name,
        status,
        completion_ns,
        batch_launches,
        duration_ns,
        bitAnd(flags, 1) != 0 AS captured,
        bitAnd(flags, 2) != 0 AS unresolved,
        bitAnd(flags, 4) = 0 AS returned,
        status = 0 AND NOT captured AS sound
    FROM cuda_events
    WHERE kind IN ('launch', 'graph_launch')
        AND timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
)
GROUP BY kind, kernel_name
ORDER BY kind, kernel_name
