-- The histograms of kernel_minutes without process, GPU and shape: what a verdict reads, small for months of a fleet.

CREATE TABLE IF NOT EXISTS kernel_totals{suffix}{on_cluster}
(
    minute DateTime('UTC') CODEC(Delta, ZSTD(1)),
    kind LowCardinality(String) CODEC(ZSTD(1)),
    kernel_name LowCardinality(String) CODEC(ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    isolated_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(ZSTD(1)),
    shared_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(ZSTD(1)),
    call_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(ZSTD(1)),
    device_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(ZSTD(1))
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
    sumMap(minutes.isolated_bins) AS isolated_bins,
    sumMap(minutes.shared_bins) AS shared_bins,
    sumMap(minutes.call_bins) AS call_bins,
    sumMap(minutes.device_bins) AS device_bins
FROM kernel_minutes{suffix} AS minutes
GROUP BY minute, kind, kernel_name, service;

CREATE VIEW IF NOT EXISTS kernel_bins{on_cluster}
AS SELECT minute, kind, kernel_name, service, 'isolated' AS measure, bin, met
FROM kernel_totals ARRAY JOIN mapKeys(isolated_bins) AS bin, mapValues(isolated_bins) AS met
UNION ALL
SELECT minute, kind, kernel_name, service, 'shared' AS measure, bin, met
FROM kernel_totals ARRAY JOIN mapKeys(shared_bins) AS bin, mapValues(shared_bins) AS met
UNION ALL
SELECT minute, kind, kernel_name, service, 'call' AS measure, bin, met
FROM kernel_totals ARRAY JOIN mapKeys(call_bins) AS bin, mapValues(call_bins) AS met
UNION ALL
SELECT minute, kind, kernel_name, service, 'device' AS measure, bin, met
FROM kernel_totals ARRAY JOIN mapKeys(device_bins) AS bin, mapValues(device_bins) AS met;
