-- A part of the schema, migration 3: never changed, but replaced by another file and a new migration.
-- Rows of kernel_minutes from executions on the device; the columns that only launches fill are 0 there. Bins as in
-- rollup_events.
SELECT
    toDateTime(intDiv(timestamp_ns, 60000000000) * 60, 'UTC') AS minute,
    'device' AS kind,
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
    toUInt64(0) AS launches,
    toUInt64(0) AS ran,
    toUInt64(0) AS failed,
    toUInt64(0) AS captured,
    toUInt64(0) AS unresolved,
    toUInt64(0) AS completions,
    toUInt64(0) AS isolated,
    toUInt64(0) AS timed,
    toInt64(0) AS completion_ns,
    toInt64(0) AS isolated_ns,
    toInt64(0) AS launch_ns,
    count() AS executions,
    countIf(graph_id != 0) AS in_graphs,
    sum(duration_ns) AS device_ns,
    CAST(map(), 'Map(UInt16, UInt64)') AS isolated_bins,
    CAST(map(), 'Map(UInt16, UInt64)') AS shared_bins,
    CAST(map(), 'Map(UInt16, UInt64)') AS call_bins,
    sumMapIf(map(device_bin, toUInt64(1)), duration_ns >= 0) AS device_bins
FROM
(
    SELECT
        *,
        toUInt16(if(duration_ns <= 200, greatest(duration_ns, 0), 201 + floor(log(greatest(duration_ns, 201) / 200.5) / log(1.005)))) AS device_bin
    FROM kernel_executions
)
GROUP BY minute, kernel_name, kernel_id, service, host, gpu_uuid, pid, grid_x, grid_y, grid_z, block_x, block_y, block_z
