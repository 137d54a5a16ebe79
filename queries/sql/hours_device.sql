-- The device windows that overlap a window of whole hours, by process, and what they collected and missed.
SELECT
    host,
    pid,
    sum(hours.windows) + sumIf(carried_windows, is_first) AS windows,
    sum(hours.executions) + sumIf(carried_executions, is_first) AS executions,
    sum(hours.uncollected) + sumIf(carried_uncollected, is_first) AS uncollected,
    sum(hours.dropped) + sumIf(carried_dropped, is_first) AS dropped,
    sum(hours.lost) + sumIf(carried_lost, is_first) AS lost,
    max(hours.clock_error_ns) AS clock_error_ns,
    sum(hours.covered_ns) AS covered_ns,
    min(hours.first_ns) AS first_ns,
    max(hours.last_ns) AS last_ns
FROM
(
    SELECT
        *,
        hour = toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC') AS is_first
    FROM device_hours
    WHERE hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String})
) AS hours
GROUP BY host, pid
ORDER BY host, pid
