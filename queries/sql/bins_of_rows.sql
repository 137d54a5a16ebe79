-- What the view kernel_bins of a server holds, made from the rows of a capture.
SELECT
    toDateTime(intDiv(timestamp_ns, 60000000000) * 60, 'UTC') AS minute,
    cuda_events.kind AS kind,
    kernel_name,
    service,
    'isolated' AS measure,
    toUInt16(if(completion_ns <= 200, greatest(completion_ns, 0), 201 + floor(log(greatest(completion_ns, 201) / 200.5) / log(1.005)))) AS bin,
    count() AS met
FROM cuda_events
WHERE kind IN ('launch', 'graph_launch') AND status = 0 AND bitAnd(flags, 1) = 0 AND completion_ns > 0 AND batch_launches = 1
GROUP BY minute, kind, kernel_name, service, bin
UNION ALL
SELECT
    toDateTime(intDiv(timestamp_ns, 60000000000) * 60, 'UTC') AS minute,
    cuda_events.kind AS kind,
    kernel_name,
    service,
    'shared' AS measure,
    toUInt16(if(completion_ns <= 200, greatest(completion_ns, 0), 201 + floor(log(greatest(completion_ns, 201) / 200.5) / log(1.005)))) AS bin,
    count() AS met
FROM cuda_events
WHERE kind IN ('launch', 'graph_launch') AND status = 0 AND bitAnd(flags, 1) = 0 AND completion_ns > 0 AND batch_launches != 1
GROUP BY minute, kind, kernel_name, service, bin
UNION ALL
SELECT
    toDateTime(intDiv(timestamp_ns, 60000000000) * 60, 'UTC') AS minute,
    cuda_events.kind AS kind,
    kernel_name,
    service,
    'call' AS measure,
    toUInt16(if(duration_ns <= 200, greatest(duration_ns, 0), 201 + floor(log(greatest(duration_ns, 201) / 200.5) / log(1.005)))) AS bin,
    count() AS met
FROM cuda_events
WHERE kind IN ('launch', 'graph_launch') AND status = 0 AND bitAnd(flags, 1) = 0 AND bitAnd(flags, 4) = 0 AND duration_ns > 0
GROUP BY minute, kind, kernel_name, service, bin
UNION ALL
SELECT
    toDateTime(intDiv(timestamp_ns, 60000000000) * 60, 'UTC') AS minute,
    'device' AS kind,
    kernel_name,
    service,
    'device' AS measure,
    toUInt16(if(duration_ns <= 200, greatest(duration_ns, 0), 201 + floor(log(greatest(duration_ns, 201) / 200.5) / log(1.005)))) AS bin,
    count() AS met
FROM kernel_executions
WHERE duration_ns >= 0
GROUP BY minute, kind, kernel_name, service, bin
