-- As health, summed over a window of whole hours, and how much of it is covered, by host: each hour as that service covers
-- it which covers most of it.
SELECT
    host,
    sum(its.events) AS events,
    sum(its.lost_launches) AS lost_launches,
    sum(its.lost_syncs) AS lost_syncs,
    sum(its.lost_other) AS lost_other,
    sum(its.covered_ns) AS covered_ns
FROM
(
    SELECT
        host,
        hour,
        sum(hours.events) AS events,
        sum(hours.lost_launches) AS lost_launches,
        sum(hours.lost_syncs) AS lost_syncs,
        sum(hours.lost_other) AS lost_other,
        least(max(hours.covered_ns), 3600000000000) AS covered_ns
    FROM
    (
        SELECT
            host,
            hour,
            service,
            sum(parts.events) + if(is_first, sum(carried_events), 0) AS events,
            sum(parts.lost_launches) + if(is_first, sum(carried_launches), 0) AS lost_launches,
            sum(parts.lost_syncs) + if(is_first, sum(carried_syncs), 0) AS lost_syncs,
            sum(parts.lost_other) + if(is_first, sum(carried_other), 0) AS lost_other,
            sum(parts.covered_ns) AS covered_ns,
            hour = toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC') AS is_first
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
    ) AS hours
    GROUP BY host, hour
) AS its
GROUP BY host
ORDER BY host
