-- Launches and executions of whole minutes by the roll-ups, and by the rows that are still there.
SELECT
    sum(rolled) AS rolled,
    sum(raw) AS raw
FROM
(
    SELECT sum(launches) + sum(executions) AS rolled, toUInt64(0) AS raw
    FROM process_minutes
    WHERE minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String})
    UNION ALL
    SELECT toUInt64(0) AS rolled, count() AS raw
    FROM cuda_events
    WHERE kind IN ('launch', 'graph_launch')
        AND timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String})
    UNION ALL
    SELECT toUInt64(0) AS rolled, count() AS raw
    FROM kernel_executions
    WHERE timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String})
)
