-- The bin of each duration in the rows of a capture, where the view kernel_bins of a server holds histograms of minutes.
SELECT
    timestamp_ns,
    kind,
    kernel_name,
    service,
    host,
    pid,
    gpu_uuid,
    grid_x,
    grid_y,
    grid_z,
    block_x,
    block_y,
    block_z,
    'completion' AS measure,
    toUInt8(batch_launches = 1) AS alone,
    toUInt16(if(completion_ns <= 200, greatest(completion_ns, 0), 201 + floor(log(greatest(completion_ns, 201) / 200.5) / log(1.005)))) AS bin
FROM cuda_events
WHERE kind IN ('launch', 'graph_launch') AND status = 0 AND bitAnd(flags, 1) = 0 AND completion_ns > 0
UNION ALL
SELECT
    timestamp_ns,
    kind,
    kernel_name,
    service,
    host,
    pid,
    gpu_uuid,
    grid_x,
    grid_y,
    grid_z,
    block_x,
    block_y,
    block_z,
    'call' AS measure,
    toUInt8(0) AS alone,
    toUInt16(if(duration_ns <= 200, greatest(duration_ns, 0), 201 + floor(log(greatest(duration_ns, 201) / 200.5) / log(1.005)))) AS bin
FROM cuda_events
WHERE kind IN ('launch', 'graph_launch') AND status = 0 AND bitAnd(flags, 1) = 0 AND bitAnd(flags, 4) = 0 AND duration_ns > 0
UNION ALL
SELECT
    timestamp_ns,
    'device' AS kind,
    kernel_name,
    service,
    host,
    pid,
    gpu_uuid,
    grid_x,
    grid_y,
    grid_z,
    block_x,
    block_y,
    block_z,
    'device' AS measure,
    toUInt8(0) AS alone,
    toUInt16(if(duration_ns <= 200, greatest(duration_ns, 0), 201 + floor(log(greatest(duration_ns, 201) / 200.5) / log(1.005)))) AS bin
FROM kernel_executions
WHERE duration_ns >= 0
