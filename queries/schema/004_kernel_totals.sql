-- kernel_minutes without process, GPU and shape: the counts and histograms that a verdict reads, small for months of a
-- fleet.

CREATE TABLE IF NOT EXISTS kernel_totals{suffix}{on_cluster}
(
    minute DateTime('UTC') CODEC(Delta, ZSTD(1)),
    kind LowCardinality(String) CODEC(ZSTD(1)),
    kernel_name LowCardinality(String) CODEC(ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    launches SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    ran SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    failed SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    captured SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    unresolved SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    completions SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    isolated SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    timed SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    completion_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    isolated_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    launch_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    executions SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    in_graphs SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    device_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    isolated_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(T64, ZSTD(1)),
    shared_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(T64, ZSTD(1)),
    call_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(T64, ZSTD(1)),
    device_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(T64, ZSTD(1))
)
ENGINE = {replicated}AggregatingMergeTree
PARTITION BY toYYYYMM(minute)
ORDER BY (service, minute, kernel_name, kind)
TTL toDate(minute) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE MATERIALIZED VIEW IF NOT EXISTS kernel_totals_of_minutes{suffix}{on_cluster} TO kernel_totals{suffix}
AS SELECT
    minute,
    kind,
    kernel_name,
    service,
    sum(minutes.launches) AS launches,
    sum(minutes.ran) AS ran,
    sum(minutes.failed) AS failed,
    sum(minutes.captured) AS captured,
    sum(minutes.unresolved) AS unresolved,
    sum(minutes.completions) AS completions,
    sum(minutes.isolated) AS isolated,
    sum(minutes.timed) AS timed,
    sum(minutes.completion_ns) AS completion_ns,
    sum(minutes.isolated_ns) AS isolated_ns,
    sum(minutes.launch_ns) AS launch_ns,
    sum(minutes.executions) AS executions,
    sum(minutes.in_graphs) AS in_graphs,
    sum(minutes.device_ns) AS device_ns,
    sumMap(minutes.isolated_bins) AS isolated_bins,
    sumMap(minutes.shared_bins) AS shared_bins,
    sumMap(minutes.call_bins) AS call_bins,
    sumMap(minutes.device_bins) AS device_bins
FROM kernel_minutes{suffix} AS minutes
GROUP BY minute, kind, kernel_name, service;

CREATE VIEW IF NOT EXISTS kernel_bins{on_cluster}
AS SELECT minute, kind, kernel_name, service, 'completion' AS measure, toUInt8(1) AS alone, mapKeys(isolated_bins) AS bins, mapValues(isolated_bins) AS met
FROM kernel_totals
UNION ALL
SELECT minute, kind, kernel_name, service, 'completion' AS measure, toUInt8(0) AS alone, mapKeys(shared_bins) AS bins, mapValues(shared_bins) AS met
FROM kernel_totals
UNION ALL
SELECT minute, kind, kernel_name, service, 'call' AS measure, toUInt8(0) AS alone, mapKeys(call_bins) AS bins, mapValues(call_bins) AS met
FROM kernel_totals
UNION ALL
SELECT minute, kind, kernel_name, service, 'device' AS measure, toUInt8(0) AS alone, mapKeys(device_bins) AS bins, mapValues(device_bins) AS met
FROM kernel_totals;
