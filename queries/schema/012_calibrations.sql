-- What `kdiff calibrate` measured on a service's own history, a row each time. Times are Unix ns. Of the kernels with pairs enough
-- of their own kernel_* say it, place by place; the last of a service, metric, quantile and window length is the one that counts. All of them stay: one
-- that a fast clock made must not make away with those after it.

CREATE TABLE IF NOT EXISTS calibrations{suffix}{on_cluster}
(
    made_at_ns Int64 CODEC(Delta, ZSTD(1)),
    calibration_id String CODEC(ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    metric LowCardinality(String) CODEC(ZSTD(1)),
    quantile Float64 CODEC(ZSTD(1)),
    tolerance Float64 CODEC(ZSTD(1)),
    window_ns Int64 CODEC(ZSTD(1)),
    from_ns Int64 CODEC(ZSTD(1)),
    to_ns Int64 CODEC(ZSTD(1)),
    windows UInt64 CODEC(ZSTD(1)),
    left_out UInt64 CODEC(ZSTD(1)),
    pairs UInt64 CODEC(ZSTD(1)),
    shifts UInt64 CODEC(ZSTD(1)),
    pooled Float64 CODEC(ZSTD(1)),
    kernel_names Array(String) CODEC(ZSTD(1)),
    kernel_metrics Array(LowCardinality(String)) CODEC(ZSTD(1)),
    kernel_factors Array(Float64) CODEC(ZSTD(1)),
    kernel_pairs Array(UInt64) CODEC(ZSTD(1)),
    comparisons UInt64 CODEC(ZSTD(1)),
    regressed UInt64 CODEC(ZSTD(1)),
    regressed_widened UInt64 CODEC(ZSTD(1)),
    not_passed UInt64 CODEC(ZSTD(1)),
    not_passed_widened UInt64 CODEC(ZSTD(1)),
    runs UInt64 CODEC(ZSTD(1)),
    runs_regressed UInt64 CODEC(ZSTD(1)),
    runs_regressed_widened UInt64 CODEC(ZSTD(1))
)
ENGINE = {replicated}ReplacingMergeTree(made_at_ns)
ORDER BY (service, metric, window_ns, quantile, made_at_ns, calibration_id)
SETTINGS {remember};
