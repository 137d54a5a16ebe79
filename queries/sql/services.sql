-- The services a store knows and the launches of each.
SELECT
    service,
    count() AS launches
FROM cuda_events
WHERE kind IN ('launch', 'graph_launch')
GROUP BY service
ORDER BY launches DESC, service
