-- Launches, average and p99 of each kernel between two times, host side and device side, and of each CUDA graph (kind
-- graph_launch; an empty name: graphs of which the capture was not recorded), host side.
-- quantileExact takes its level first and returns the sorted value at index floor(level * n), never an average of
-- two; on no rows it and avg() answer 0 and nan, hence the NULLs. All times are nanoseconds.
SELECT
    kind,
    kernel_name,
    cityHash64(kernel_name) AS kernel_key,
    countIf(side = 'host') AS launches,
    countIf(side = 'host' AND completion_ns > 0) AS completions,
    if(completions = 0, NULL, avgIf(completion_ns, side = 'host' AND completion_ns > 0)) AS completion_avg_ns,
    if(completions = 0, NULL, quantileExactIf(0.99)(completion_ns, side = 'host' AND completion_ns > 0)) AS completion_p99_ns,
    countIf(side = 'device') AS executions,
    if(executions = 0, NULL, avgIf(duration_ns, side = 'device')) AS device_avg_ns,
    if(executions = 0, NULL, quantileExactIf(0.99)(duration_ns, side = 'device')) AS device_p99_ns,
    sumIf(duration_ns, side = 'device') AS device_total_ns,
    min(timestamp_ns) AS first_ns,
    max(timestamp_ns) AS last_ns
FROM
(
    SELECT 'host' AS side, kind, kernel_name, timestamp_ns, completion_ns, toInt64(0) AS duration_ns
    FROM cuda_events
    WHERE kind IN ('launch', 'graph_launch')
        AND status = 0
        AND bitAnd(flags, 1) = 0 -- captured into a graph: did not run by itself
        AND timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
    UNION ALL
    SELECT 'device' AS side, 'launch' AS kind, kernel_name, timestamp_ns, toInt64(0) AS completion_ns, duration_ns
    FROM kernel_executions
    WHERE timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
)
GROUP BY kind, kernel_name
ORDER BY kind DESC, device_total_ns DESC, launches DESC, kernel_name
