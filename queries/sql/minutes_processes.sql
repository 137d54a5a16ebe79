-- As processes, from the roll-ups of whole minutes.
SELECT
    host,
    pid,
    sum(minutes.launches) AS launches,
    min(minutes.first_ns) AS first_ns,
    max(minutes.last_ns) AS last_ns
FROM process_minutes AS minutes
WHERE kind IN ('launch', 'graph_launch')
    AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
GROUP BY host, pid
ORDER BY host, pid
