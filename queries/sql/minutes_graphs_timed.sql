-- As graphs_timed, from the roll-ups of whole minutes.
SELECT
    kernel_key,
    sum(launched) AS launches
FROM
(
    SELECT
        kernel_key,
        launched,
        sum(timed) OVER (PARTITION BY host, pid) AS in_graphs
    FROM
    (
        SELECT
            host,
            pid,
            if(kind = 'device', toUInt64(0), cityHash64(kernel_name)) AS kernel_key,
            sumIf(minutes.launches, kind = 'graph_launch') AS launched,
            sumIf(minutes.in_graphs, kind = 'device') AS timed
        FROM process_minutes AS minutes
        WHERE kind IN ('graph_launch', 'device')
            AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
            AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
            AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
        GROUP BY host, pid, kernel_key
    )
)
WHERE in_graphs > 0 AND launched > 0
GROUP BY kernel_key
ORDER BY kernel_key
