-- As samples_completion, and for how much of each completion its thread was ready to run and had no processor: in the launch,
-- in the sync that proves it, and in and between the calls of the thread from one to the other; -1: unknown, as where the
-- sync is another thread's. kind = launch or graph_launch. isolated = 1: only those alone between two syncs.
WITH calls AS
(
    SELECT
        kind,
        kernel_name,
        service,
        host,
        pid,
        timestamp_ns,
        timestamp_ns - clock_offset_ns + if(kind = 'sync', duration_ns, completion_ns) AS end_ns, -- the clock may be steered between the two
        completion_ns,
        status,
        flags,
        batch_launches,
        cityHash64(host, pid, tid) AS thread,
        coalesce(runnable_ns, toInt64(-1)) AS runnable,
        sum(coalesce(runnable_before_ns, toInt64(0)) + coalesce(runnable_ns, toInt64(0))) OVER (PARTITION BY cityHash64(host, pid, tid) ORDER BY timestamp_ns) AS so_far
    FROM cuda_events
    WHERE timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64} + 10000000000
)
SELECT
    cityHash64(launches.kernel_name) AS kernel_key,
    launches.completion_ns AS value,
    if(launches.runnable < 0 OR syncs.found = 0, toInt64(-1), syncs.so_far - launches.so_far + launches.runnable) AS waited
FROM calls AS launches
GLOBAL LEFT JOIN
(
    SELECT thread, end_ns, so_far, toUInt8(1) AS found
    FROM calls
    WHERE kind = 'sync'
        AND runnable >= 0
) AS syncs ON launches.thread = syncs.thread AND launches.end_ns = syncs.end_ns
WHERE launches.kind = {kind:String}
    AND launches.timestamp_ns < {to_ns:Int64}
    AND launches.completion_ns > 0
    AND launches.status = 0
    AND bitAnd(launches.flags, 1) = 0
    AND ({isolated:UInt8} = 0 OR launches.batch_launches = 1)
    AND ({service:String} = '' OR launches.service = {service:String}) /* AND scope(launches.host, launches.pid, launches.timestamp_ns) */
    AND cityHash64(launches.kernel_name) IN {keys:Array(UInt64)}
