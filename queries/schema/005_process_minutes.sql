-- What each process did of each kernel in each UTC minute, without its shapes: who launched from when to when, and whose
-- executions were timed.

CREATE TABLE IF NOT EXISTS process_minutes{suffix}{on_cluster}
(
    minute DateTime('UTC') CODEC(Delta, ZSTD(1)),
    kind LowCardinality(String) CODEC(ZSTD(1)), -- launch, graph_launch, device
    kernel_name LowCardinality(String) CODEC(ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    pid UInt32 CODEC(ZSTD(1)),
    launches SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    executions SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    in_graphs SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    device_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    first_ns SimpleAggregateFunction(min, Int64) CODEC(Delta, ZSTD(1)),
    last_ns SimpleAggregateFunction(max, Int64) CODEC(Delta, ZSTD(1))
)
ENGINE = {replicated}AggregatingMergeTree
PARTITION BY toYYYYMM(minute)
ORDER BY (service, minute, kind, kernel_name, host, pid)
TTL toDate(minute) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE MATERIALIZED VIEW IF NOT EXISTS process_minutes_of_events{suffix}{on_cluster} TO process_minutes{suffix}
AS SELECT
    toDateTime(intDiv(timestamp_ns, 60000000000) * 60, 'UTC') AS minute,
    kind,
    kernel_name,
    service,
    host,
    pid,
    count() AS launches,
    toUInt64(0) AS executions,
    toUInt64(0) AS in_graphs,
    toInt64(0) AS device_ns,
    min(timestamp_ns) AS first_ns,
    max(timestamp_ns) AS last_ns
FROM cuda_events{suffix}
WHERE kind IN ('launch', 'graph_launch')
GROUP BY minute, kind, kernel_name, service, host, pid;

CREATE MATERIALIZED VIEW IF NOT EXISTS process_minutes_of_executions{suffix}{on_cluster} TO process_minutes{suffix}
AS SELECT
    toDateTime(intDiv(timestamp_ns, 60000000000) * 60, 'UTC') AS minute,
    'device' AS kind,
    kernel_name,
    service,
    host,
    pid,
    toUInt64(0) AS launches,
    count() AS executions,
    countIf(graph_id != 0) AS in_graphs,
    sum(duration_ns) AS device_ns,
    min(timestamp_ns) AS first_ns,
    max(timestamp_ns) AS last_ns
FROM kernel_executions{suffix}
GROUP BY minute, kind, kernel_name, service, host, pid;
