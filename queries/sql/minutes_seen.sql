-- Launches and executions that only the roll-ups of whole minutes hold, and that only rows hold: minute by minute, so that
-- what one minute lacks does not make up for what another one lacks.
SELECT
    sum(greatest(rolled, raw) - raw) AS only_rolled,
    sum(greatest(rolled, raw) - rolled) AS only_raw
FROM
(
    SELECT
        minute_s,
        sum(of_minutes) AS rolled,
        sum(of_rows) AS raw
    FROM
    (
        SELECT toInt64(toUnixTimestamp(minute)) AS minute_s, launches + executions AS of_minutes, toUInt64(0) AS of_rows
        FROM process_minutes
        WHERE minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
            AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
            AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
        UNION ALL
        SELECT intDiv(timestamp_ns, 60000000000) * 60 AS minute_s, toUInt64(0) AS of_minutes, count() AS of_rows
        FROM cuda_events
        WHERE kind IN ('launch', 'graph_launch')
            AND timestamp_ns >= {from_ns:Int64}
            AND timestamp_ns < {to_ns:Int64}
            AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        GROUP BY minute_s
        UNION ALL
        SELECT intDiv(timestamp_ns, 60000000000) * 60 AS minute_s, toUInt64(0) AS of_minutes, count() AS of_rows
        FROM kernel_executions
        WHERE timestamp_ns >= {from_ns:Int64}
            AND timestamp_ns < {to_ns:Int64}
            AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        GROUP BY minute_s
    )
    GROUP BY minute_s
)
