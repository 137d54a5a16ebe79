-- The segments that are in the store: what is listed here is not sent again, however long ago it was.

CREATE TABLE IF NOT EXISTS shipped_segments{suffix}{on_cluster}
(
    segment String CODEC(ZSTD(1)),
    "table" LowCardinality(String) CODEC(ZSTD(1)),
    rows UInt64 CODEC(ZSTD(1)),
    shipped_at DateTime64(3) DEFAULT now64(3) CODEC(Delta, ZSTD(1))
)
ENGINE = {replicated}ReplacingMergeTree(shipped_at)
ORDER BY (segment, "table")
TTL toDate(shipped_at) + INTERVAL {rollup_days} DAY
SETTINGS {remember};
