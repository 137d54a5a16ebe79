-- The minutes of a window that the roll-ups hold anything of, by host, Unix s.
SELECT
    host,
    toInt64(toUnixTimestamp(minute)) AS minute_s
FROM process_minutes
WHERE minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
GROUP BY host, minute
