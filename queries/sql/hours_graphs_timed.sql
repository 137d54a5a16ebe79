-- As graphs_timed, from the roll-ups of whole hours, which know services and not who of them launched which graph.
SELECT
    kernel_key,
    sum(launched) AS launches
FROM
(
    SELECT
        kernel_key,
        launched,
        sum(timed) OVER (PARTITION BY service) AS in_graphs
    FROM
    (
        SELECT
            service,
            if(kind = 'device', toUInt64(0), cityHash64(kernel_name)) AS kernel_key,
            sumIf(hours.launches, kind = 'graph_launch') AS launched,
            sumIf(hours.in_graphs, kind = 'device') AS timed
        FROM kernel_hours AS hours
        WHERE kind IN ('graph_launch', 'device')
            AND hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
            AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
            AND ({service:String} = '' OR service = {service:String})
        GROUP BY service, kernel_key
    )
)
WHERE in_graphs > 0 AND launched > 0
GROUP BY kernel_key
ORDER BY kernel_key
