-- How much of a window of whole hours the agents cover, all hosts together: each hour as the host and service that covers
-- most of it.
SELECT sum(most_ns) AS covered_ns
FROM
(
    SELECT
        hour,
        least(max(its.covered_ns), 3600000000000) AS most_ns
    FROM
    (
        SELECT
            hour,
            sum(parts.covered_ns) AS covered_ns
        FROM health_hours AS parts
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
        GROUP BY host, hour, service
    ) AS its
    GROUP BY hour
)
