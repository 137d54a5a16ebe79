-- As processes, from the roll-ups of whole hours.
SELECT
    host,
    pid,
    sum(hours.launches) AS launches,
    min(hours.first_ns) AS first_ns,
    max(hours.last_ns) AS last_ns
FROM process_hours AS hours
WHERE kind IN ('launch', 'graph_launch')
    AND hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String})
GROUP BY host, pid
ORDER BY host, pid
