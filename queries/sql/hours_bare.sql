-- Of the hours of a window in which agents counted events, by the accounts of health, on a host of which the roll-ups hold
-- nothing the three with most of them, Unix ns.
SELECT toInt64(toUnixTimestamp(hour)) * 1000000000 AS hour_ns
FROM
(
    SELECT
        hour,
        sum(within) AS bare
    FROM
    (
        SELECT hour, host, events_within AS within, toUInt8(0) AS rolled
        FROM health_hours
        WHERE hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
            AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
            AND (
                {service:String} = ''
                OR service = {service:String}
                OR (service = '' AND host = '')
                OR (
                    service = ''
                    AND host GLOBAL IN (
                        SELECT host
                        FROM health_hours
                        WHERE service = {service:String}
                            AND hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
                            AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
                    )
                )
            )
        UNION ALL
        SELECT hour, host, toUInt64(0) AS within, toUInt8(1) AS rolled
        FROM process_hours
        WHERE hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
            AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
            AND ({service:String} = '' OR service = {service:String})
    )
    GROUP BY hour, host
    HAVING max(rolled) = 0 AND sum(within) > 0
)
GROUP BY hour
ORDER BY sum(bare) DESC, hour
LIMIT 3
