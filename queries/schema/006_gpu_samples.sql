-- What NVML said of each GPU, once a second. A reading that a GPU does not have is NULL.

CREATE TABLE IF NOT EXISTS gpu_samples{suffix}{on_cluster}
(
    timestamp_ns Int64 CODEC(Delta, ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    parent_uuid LowCardinality(String) CODEC(ZSTD(1)),
    gpu_name LowCardinality(String) CODEC(ZSTD(1)),
    sm_clock_mhz Nullable(UInt32) CODEC(ZSTD(1)),
    mem_clock_mhz Nullable(UInt32) CODEC(ZSTD(1)),
    throttle_reasons Nullable(UInt64) CODEC(ZSTD(1)),
    power_mw Nullable(UInt32) CODEC(ZSTD(1)),
    temperature_c Nullable(UInt16) CODEC(ZSTD(1)),
    gpu_utilization Nullable(UInt16) CODEC(ZSTD(1)),
    memory_utilization Nullable(UInt16) CODEC(ZSTD(1)),
    memory_used_bytes Nullable(UInt64) CODEC(ZSTD(1)),
    memory_total_bytes Nullable(UInt64) CODEC(ZSTD(1)),
    ecc_corrected Nullable(UInt64) CODEC(ZSTD(1)),
    ecc_uncorrected Nullable(UInt64) CODEC(ZSTD(1)),
    processes Nullable(UInt32) CODEC(ZSTD(1)),
    pids Array(UInt32) CODEC(ZSTD(1)),
    pid_memory_bytes Array(Nullable(UInt64)) CODEC(ZSTD(1))
)
ENGINE = {replicated}MergeTree
PARTITION BY toDate(toUInt16(intDiv(timestamp_ns, 86400000000000)))
ORDER BY (host, gpu_uuid, timestamp_ns)
TTL toDate(toUInt16(intDiv(timestamp_ns, 86400000000000))) + INTERVAL {raw_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};
