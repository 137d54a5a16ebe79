-- As census, from the roll-ups of whole minutes.
-- Nanoseconds of a fleet's month do not fit into 64 bits.
SELECT
    kind,
    kernel_name,
    cityHash64(kernel_name) AS kernel_key,
    sum(minutes.launches) AS launches,
    sum(minutes.failed) AS failed,
    sum(minutes.captured) AS captured,
    sum(minutes.unresolved) AS unresolved,
    sum(minutes.completions) AS completions,
    sum(minutes.isolated) AS isolated,
    sum(minutes.timed) AS timed,
    toFloat64(sum(toInt128(minutes.isolated_ns))) AS isolated_ns,
    toFloat64(sum(toInt128(minutes.launch_ns))) AS launch_ns
FROM kernel_totals /* in scope: kernel_minutes */ AS minutes
WHERE kind IN ('launch', 'graph_launch')
    AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
GROUP BY kind, kernel_name
ORDER BY kind, kernel_name
