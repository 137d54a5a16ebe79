-- As census, from the roll-ups of whole hours.
-- Nanoseconds of a fleet's month do not fit into 64 bits.
SELECT
    kind,
    kernel_name,
    cityHash64(kernel_name) AS kernel_key,
    sum(hours.launches) AS launches,
    sum(hours.failed) AS failed,
    sum(hours.captured) AS captured,
    sum(hours.unresolved) AS unresolved,
    sum(hours.completions) AS completions,
    sum(hours.isolated) AS isolated,
    sum(hours.timed) AS timed,
    toFloat64(sum(toInt128(hours.isolated_ns))) AS isolated_ns,
    toFloat64(sum(toInt128(hours.launch_ns))) AS launch_ns
FROM kernel_hours AS hours
WHERE kind IN ('launch', 'graph_launch')
    AND hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String})
GROUP BY kind, kernel_name
ORDER BY kind, kernel_name
