-- A part of the schema, migration 3: never changed, but replaced by another file and a new migration.
-- Rows of kernel_minutes from launches; the columns that only executions fill are 0 there. Bins: a duration up to 200 ns
-- is its own, above it bin 201 + floor(log(d / 200.5) / log(1.005)), whose edges are at no whole nanosecond.
SELECT
    toDateTime(intDiv(timestamp_ns, 60000000000) * 60, 'UTC') AS minute,
    kind,
    kernel_name,
    kernel_id,
    service,
    host,
    gpu_uuid,
    pid,
    grid_x,
    grid_y,
    grid_z,
    block_x,
    block_y,
    block_z,
    count() AS launches,
    countIf(sound) AS ran,
    countIf(status != 0) AS failed,
    countIf(is_captured) AS captured,
    countIf(bitAnd(flags, 2) != 0) AS unresolved,
    countIf(sound AND events.completion_ns > 0) AS completions,
    countIf(sound AND events.completion_ns > 0 AND batch_launches = 1) AS isolated,
    countIf(sound AND returned AND duration_ns > 0) AS timed,
    sumIf(events.completion_ns, sound) AS completion_ns,
    sumIf(events.completion_ns, sound AND batch_launches = 1) AS isolated_ns,
    sumIf(duration_ns, sound AND returned) AS launch_ns,
    toUInt64(0) AS executions,
    toUInt64(0) AS in_graphs,
    toInt64(0) AS device_ns,
    sumMapIf(map(completion_bin, toUInt64(1)), sound AND events.completion_ns > 0 AND batch_launches = 1) AS isolated_bins,
    sumMapIf(map(completion_bin, toUInt64(1)), sound AND events.completion_ns > 0 AND batch_launches != 1) AS shared_bins,
    sumMapIf(map(call_bin, toUInt64(1)), sound AND returned AND duration_ns > 0) AS call_bins,
    CAST(map(), 'Map(UInt16, UInt64)') AS device_bins
FROM
(
    SELECT
        *,
        bitAnd(flags, 1) != 0 AS is_captured,
        bitAnd(flags, 4) = 0 AS returned,
        status = 0 AND NOT is_captured AS sound,
        toUInt16(if(completion_ns <= 200, greatest(completion_ns, 0), 201 + floor(log(greatest(completion_ns, 201) / 200.5) / log(1.005)))) AS completion_bin,
        toUInt16(if(duration_ns <= 200, greatest(duration_ns, 0), 201 + floor(log(greatest(duration_ns, 201) / 200.5) / log(1.005)))) AS call_bin
    FROM cuda_events
    WHERE kind IN ('launch', 'graph_launch')
) AS events
GROUP BY minute, kind, kernel_name, kernel_id, service, host, gpu_uuid, pid, grid_x, grid_y, grid_z, block_x, block_y, block_z
