-- How much each source holds and from when to when; a source without rows answers rows = 0 and times 0.
SELECT
    'cuda_events' AS source,
    count() AS rows,
    min(timestamp_ns) AS first_ns,
    max(timestamp_ns) AS last_ns
FROM cuda_events
WHERE ({service:String} = '' OR service = {service:String}) /* AND scope(host) */
UNION ALL
SELECT
    'kernel_executions' AS source,
    count() AS rows,
    min(timestamp_ns) AS first_ns,
    max(timestamp_ns) AS last_ns
FROM kernel_executions
WHERE ({service:String} = '' OR service = {service:String}) /* AND scope(host) */
UNION ALL
SELECT
    'agent_health' AS source,
    count() AS rows,
    min(from_ns) AS first_ns,
    max(to_ns) AS last_ns
FROM agent_health
WHERE ({service:String} = '' OR service IN ('', {service:String})) /* AND scope(host?) */
