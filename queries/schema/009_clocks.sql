-- Which clock times are by: a row's time less clock_offset_ns is CLOCK_MONOTONIC of the boot boot_id of its host, in which
-- nothing is reordered by a clock that was set. '' and 0: recorded before this was kept.

ALTER TABLE cuda_events{suffix}{on_cluster}
    ADD COLUMN IF NOT EXISTS boot_id LowCardinality(String) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS clock_offset_ns Int64 CODEC(ZSTD(1));

ALTER TABLE kernel_executions{suffix}{on_cluster}
    ADD COLUMN IF NOT EXISTS boot_id LowCardinality(String) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS clock_offset_ns Int64 CODEC(ZSTD(1));

ALTER TABLE device_windows{suffix}{on_cluster}
    ADD COLUMN IF NOT EXISTS boot_id LowCardinality(String) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS clock_offset_ns Int64 CODEC(ZSTD(1));

ALTER TABLE agent_health{suffix}{on_cluster}
    ADD COLUMN IF NOT EXISTS boot_id LowCardinality(String) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS clock_offset_ns Int64 CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS clock_set_ns Int64 CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS slept_ns Int64 CODEC(ZSTD(1));
