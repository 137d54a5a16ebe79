-- As kernels_between, from the roll-ups of whole minutes, without p99: the reader takes it from the bins. What
-- of which no launch ran is left out as there; first and last are those of all launches.
-- Nanoseconds of a fleet's month do not fit into 64 bits.
SELECT
    called AS kind,
    kernel_name,
    cityHash64(kernel_name) AS kernel_key,
    sum(totals.launches) AS launches,
    sum(totals.completions) AS completions,
    if(completions = 0, NULL, toFloat64(sum(toInt128(totals.completion_ns))) / completions) AS completion_avg_ns,
    sum(totals.executions) AS executions,
    if(executions = 0, NULL, device_total_ns / executions) AS device_avg_ns,
    toFloat64(sum(toInt128(totals.device_ns))) AS device_total_ns,
    min(totals.first_ns) AS first_ns,
    max(totals.last_ns) AS last_ns
FROM
(
    SELECT
        if(kind = 'device', 'launch', kind) AS called,
        kernel_name,
        if(kind = 'device', 0, ran) AS launches,
        if(kind = 'device', 0, completions) AS completions,
        if(kind = 'device', 0, completion_ns) AS completion_ns,
        executions,
        device_ns,
        toInt64(9223372036854775807) AS first_ns,
        toInt64(-9223372036854775808) AS last_ns
    FROM kernel_totals /* in scope: kernel_minutes */
    WHERE kind IN ('launch', 'graph_launch', 'device')
        AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
    UNION ALL
    SELECT
        if(kind = 'device', 'launch', kind) AS called,
        kernel_name,
        toUInt64(0) AS launches,
        toUInt64(0) AS completions,
        toInt64(0) AS completion_ns,
        toUInt64(0) AS executions,
        toInt64(0) AS device_ns,
        first_ns,
        last_ns
    FROM process_minutes
    WHERE kind IN ('launch', 'graph_launch', 'device')
        AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
) AS totals
GROUP BY called, kernel_name
HAVING launches > 0 OR executions > 0
ORDER BY kind DESC, device_total_ns DESC, launches DESC, kernel_name
