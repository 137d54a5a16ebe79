-- How much the roll-ups hold and from when to when; without any, rows = 0 and times 0.
SELECT
    'process_minutes' AS source,
    count() AS rows,
    min(first_ns) AS first_ns,
    max(last_ns) AS last_ns
FROM process_minutes
WHERE ({service:String} = '' OR service = {service:String}) /* AND scope(host) */
