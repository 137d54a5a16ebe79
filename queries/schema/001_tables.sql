-- The tables of a capture (tables.py), as they are shipped. A batch that is sent again, with the token that it had, adds
-- nothing: the server remembers the tokens of the last inserts into each table.
-- Partitions are days, months in the tables that are kept as long as the roll-ups, and fall out whole when they are old.

CREATE TABLE IF NOT EXISTS cuda_events{suffix}{on_cluster}
(
    timestamp_ns Int64 CODEC(Delta, ZSTD(1)),
    duration_ns Int64 CODEC(T64, ZSTD(1)),
    kind LowCardinality(String) CODEC(ZSTD(1)),
    api LowCardinality(String) CODEC(ZSTD(1)),
    kernel_name LowCardinality(String) CODEC(ZSTD(1)),
    kernel_id UInt64 CODEC(ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    pid UInt32 CODEC(ZSTD(1)),
    container_id LowCardinality(String) CODEC(ZSTD(1)),
    tid UInt32 CODEC(ZSTD(1)),
    comm LowCardinality(String) CODEC(ZSTD(1)),
    stream UInt64 CODEC(ZSTD(1)),
    grid_x UInt32 CODEC(ZSTD(1)),
    grid_y UInt32 CODEC(ZSTD(1)),
    grid_z UInt32 CODEC(ZSTD(1)),
    block_x UInt32 CODEC(ZSTD(1)),
    block_y UInt32 CODEC(ZSTD(1)),
    block_z UInt32 CODEC(ZSTD(1)),
    shared_bytes UInt32 CODEC(ZSTD(1)),
    status Int32 CODEC(ZSTD(1)),
    completion_ns Int64 CODEC(T64, ZSTD(1)),
    batch_launches UInt32 CODEC(ZSTD(1)),
    flags UInt16 CODEC(ZSTD(1))
)
ENGINE = {replicated}MergeTree
PARTITION BY toDate(toUInt16(intDiv(timestamp_ns, 86400000000000)))
ORDER BY (service, kernel_name, timestamp_ns)
TTL toDate(toUInt16(intDiv(timestamp_ns, 86400000000000))) + INTERVAL {raw_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE TABLE IF NOT EXISTS kernel_executions{suffix}{on_cluster}
(
    timestamp_ns Int64 CODEC(Delta, ZSTD(1)),
    duration_ns Int64 CODEC(T64, ZSTD(1)),
    kernel_name LowCardinality(String) CODEC(ZSTD(1)),
    kernel_id UInt64 CODEC(ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    pid UInt32 CODEC(ZSTD(1)),
    container_id LowCardinality(String) CODEC(ZSTD(1)),
    stream UInt64 CODEC(ZSTD(1)),
    grid_x UInt32 CODEC(ZSTD(1)),
    grid_y UInt32 CODEC(ZSTD(1)),
    grid_z UInt32 CODEC(ZSTD(1)),
    block_x UInt32 CODEC(ZSTD(1)),
    block_y UInt32 CODEC(ZSTD(1)),
    block_z UInt32 CODEC(ZSTD(1)),
    registers UInt16 CODEC(ZSTD(1)),
    static_shared UInt32 CODEC(ZSTD(1)),
    dynamic_shared UInt32 CODEC(ZSTD(1)),
    local_bytes UInt32 CODEC(ZSTD(1)),
    graph_id UInt32 CODEC(ZSTD(1)),
    graph_node_id UInt64 CODEC(ZSTD(1)),
    queue_ns Int64 CODEC(T64, ZSTD(1))
)
ENGINE = {replicated}MergeTree
PARTITION BY toDate(toUInt16(intDiv(timestamp_ns, 86400000000000)))
ORDER BY (service, kernel_name, timestamp_ns)
TTL toDate(toUInt16(intDiv(timestamp_ns, 86400000000000))) + INTERVAL {raw_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE TABLE IF NOT EXISTS device_windows{suffix}{on_cluster}
(
    from_ns Int64 CODEC(Delta, ZSTD(1)),
    to_ns Int64 CODEC(Delta, ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    pid UInt32 CODEC(ZSTD(1)),
    container_id LowCardinality(String) CODEC(ZSTD(1)),
    executions UInt64 CODEC(ZSTD(1)),
    uncollected UInt64 CODEC(ZSTD(1)),
    dropped UInt64 CODEC(ZSTD(1)),
    lost UInt64 CODEC(ZSTD(1)),
    clock_error_ns Int64 CODEC(ZSTD(1)),
    inside_ns Int64 CODEC(ZSTD(1)),
    ended LowCardinality(String) CODEC(ZSTD(1)),
    skipped UInt32 CODEC(ZSTD(1))
)
ENGINE = {replicated}MergeTree
PARTITION BY toYYYYMM(toDate(toUInt16(intDiv(from_ns, 86400000000000))))
ORDER BY (service, host, pid, from_ns)
TTL toDate(toUInt16(intDiv(from_ns, 86400000000000))) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE TABLE IF NOT EXISTS kernels{suffix}{on_cluster}
(
    kernel_id UInt64 CODEC(ZSTD(1)),
    mangled_name String CODEC(ZSTD(1)),
    kernel_name String CODEC(ZSTD(1)),
    name_source LowCardinality(String) CODEC(ZSTD(1)),
    first_seen_ns Int64 CODEC(Delta, ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1))
)
ENGINE = {replicated}MergeTree
PARTITION BY toYYYYMM(toDate(toUInt16(intDiv(first_seen_ns, 86400000000000))))
ORDER BY (kernel_id, service, host, first_seen_ns)
TTL toDate(toUInt16(intDiv(first_seen_ns, 86400000000000))) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE TABLE IF NOT EXISTS agent_health{suffix}{on_cluster}
(
    from_ns Int64 CODEC(Delta, ZSTD(1)),
    to_ns Int64 CODEC(Delta, ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    layer LowCardinality(String) CODEC(ZSTD(1)),
    events UInt64 CODEC(ZSTD(1)),
    lost_launches UInt64 CODEC(ZSTD(1)),
    lost_syncs UInt64 CODEC(ZSTD(1)),
    lost_other UInt64 CODEC(ZSTD(1)),
    agent_cpu_ns Int64 CODEC(ZSTD(1)),
    drain_lag_ns Int64 CODEC(ZSTD(1)),
    attached_probes UInt32 CODEC(ZSTD(1)),
    unresolved_launches UInt64 CODEC(ZSTD(1))
)
ENGINE = {replicated}MergeTree
PARTITION BY toYYYYMM(toDate(toUInt16(intDiv(from_ns, 86400000000000))))
ORDER BY (service, host, from_ns)
TTL toDate(toUInt16(intDiv(from_ns, 86400000000000))) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};
