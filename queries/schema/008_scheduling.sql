-- For how long the thread of a call was off the processor, in it and since its call before. NULL: not known.

ALTER TABLE cuda_events{suffix}{on_cluster}
    ADD COLUMN IF NOT EXISTS runnable_ns Nullable(Int64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS blocked_ns Nullable(Int64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS runnable_before_ns Nullable(Int64) CODEC(ZSTD(1)),
    ADD COLUMN IF NOT EXISTS blocked_before_ns Nullable(Int64) CODEC(ZSTD(1));
