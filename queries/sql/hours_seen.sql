-- Launches and executions that the roll-ups of minutes hold, and those of hours.
SELECT
    sum(minutes) AS in_minutes,
    sum(hours) AS in_hours
FROM
(
    SELECT launches + executions AS minutes, toUInt64(0) AS hours
    FROM process_minutes
    WHERE minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String})
    UNION ALL
    SELECT toUInt64(0) AS minutes, launches + executions AS hours
    FROM process_hours
    WHERE hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String})
)
