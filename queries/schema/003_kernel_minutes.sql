-- What each kernel did in each UTC minute, by process, GPU and shape: counts, sums and histograms, which add up whatever
-- the order in which the server merges them. The views fill it from each batch as it arrives, under the batch's token.

CREATE TABLE IF NOT EXISTS kernel_minutes{suffix}{on_cluster}
(
    minute DateTime('UTC') CODEC(Delta, ZSTD(1)),
    kind LowCardinality(String) CODEC(ZSTD(1)), -- launch, graph_launch, device
    kernel_name LowCardinality(String) CODEC(ZSTD(1)),
    kernel_id UInt64 CODEC(ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    gpu_uuid LowCardinality(String) CODEC(ZSTD(1)),
    pid UInt32 CODEC(ZSTD(1)),
    grid_x UInt32 CODEC(ZSTD(1)),
    grid_y UInt32 CODEC(ZSTD(1)),
    grid_z UInt32 CODEC(ZSTD(1)),
    block_x UInt32 CODEC(ZSTD(1)),
    block_y UInt32 CODEC(ZSTD(1)),
    block_z UInt32 CODEC(ZSTD(1)),
    launches SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    ran SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)), -- neither failed nor captured
    failed SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1)),
    captured SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1)),
    unresolved SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1)),
    completions SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    isolated SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    timed SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    completion_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    isolated_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    launch_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    executions SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)), -- this and the next two: of kind device
    in_graphs SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    device_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    isolated_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(T64, ZSTD(1)), -- completions alone between syncs
    shared_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(T64, ZSTD(1)), -- completions of launches that share one
    call_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(T64, ZSTD(1)), -- time in the host call
    device_bins SimpleAggregateFunction(sumMap, Map(UInt16, UInt64)) CODEC(T64, ZSTD(1)) -- device start to device end
)
ENGINE = {replicated}AggregatingMergeTree
PARTITION BY toYYYYMM(minute)
ORDER BY (service, minute, kernel_name, kind, kernel_id, host, gpu_uuid, pid, grid_x, grid_y, grid_z, block_x, block_y, block_z)
TTL toDate(minute) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE MATERIALIZED VIEW IF NOT EXISTS kernel_minutes_of_events{suffix}{on_cluster} TO kernel_minutes{suffix}
AS {rollup_events};

CREATE MATERIALIZED VIEW IF NOT EXISTS kernel_minutes_of_executions{suffix}{on_cluster} TO kernel_minutes{suffix}
AS {rollup_executions};
