-- What kdiff said of each kernel, as often as a run of it was kept. Times are Unix ns, values ns. NULL: not known, or infinite.

CREATE TABLE IF NOT EXISTS verdicts{suffix}{on_cluster}
(
    judged_at_ns Int64 CODEC(Delta, ZSTD(1)),
    run_id String CODEC(ZSTD(1)),
    kernel_name LowCardinality(String) CODEC(ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    label String CODEC(ZSTD(1)),
    verdict LowCardinality(String) CODEC(ZSTD(1)),
    metric LowCardinality(String) CODEC(ZSTD(1)),
    quantile Float64 CODEC(ZSTD(1)),
    tolerance Float64 CODEC(ZSTD(1)),
    before_from_ns Int64 CODEC(Delta, ZSTD(1)),
    before_to_ns Int64 CODEC(Delta, ZSTD(1)),
    after_from_ns Int64 CODEC(Delta, ZSTD(1)),
    after_to_ns Int64 CODEC(Delta, ZSTD(1)),
    n_before UInt64 CODEC(ZSTD(1)),
    n_after UInt64 CODEC(ZSTD(1)),
    value_before Nullable(Int64) CODEC(ZSTD(1)),
    value_after Nullable(Int64) CODEC(ZSTD(1)),
    ratio Nullable(Float64) CODEC(ZSTD(1)),
    ci_low Nullable(Float64) CODEC(ZSTD(1)),
    ci_high Nullable(Float64) CODEC(ZSTD(1)),
    reasons Array(String) CODEC(ZSTD(1)),
    run_verdict LowCardinality(String) CODEC(ZSTD(1)),
    run_cause String CODEC(ZSTD(1))
)
ENGINE = {replicated}MergeTree
PARTITION BY toYYYYMM(toDate(toUInt16(intDiv(judged_at_ns, 86400000000000))))
ORDER BY (kernel_name, judged_at_ns)
TTL toDate(toUInt16(intDiv(judged_at_ns, 86400000000000))) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};
