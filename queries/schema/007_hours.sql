-- What windows of days and months are judged by: the roll-ups and the accounts of agents by UTC hours. Only what a verdict
-- reads: processes without their kernels, stretches of accounts without their times.
-- A stretch of time is counted in the hour in which it begins; in each later hour that it reaches into, what it counted
-- is `carried`: a window of whole hours adds up the hours and what its first one carries, and has each stretch that
-- overlaps it once. Of a stretch of more than 800 hours the first 800 count.

CREATE TABLE IF NOT EXISTS kernel_hours{suffix}{on_cluster}
(
    hour DateTime('UTC') CODEC(Delta, ZSTD(1)),
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
PARTITION BY toYYYYMM(hour)
ORDER BY (service, hour, kernel_name, kind)
TTL toDate(hour) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE TABLE IF NOT EXISTS process_hours{suffix}{on_cluster}
(
    hour DateTime('UTC') CODEC(Delta, ZSTD(1)),
    kind LowCardinality(String) CODEC(ZSTD(1)), -- launch, graph_launch, device
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    pid UInt32 CODEC(ZSTD(1)),
    launches SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    executions SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    device_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)),
    first_ns SimpleAggregateFunction(min, Int64) CODEC(Delta, ZSTD(1)),
    last_ns SimpleAggregateFunction(max, Int64) CODEC(Delta, ZSTD(1))
)
ENGINE = {replicated}AggregatingMergeTree
PARTITION BY toYYYYMM(hour)
ORDER BY (service, hour, kind, host, pid)
TTL toDate(hour) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE TABLE IF NOT EXISTS health_hours{suffix}{on_cluster}
(
    hour DateTime('UTC') CODEC(Delta, ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    events SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    events_within SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)), -- of stretches that lie in the hour
    lost_launches SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    lost_syncs SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    lost_other SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    carried_events SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    carried_launches SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)), -- lost; as the next two
    carried_syncs SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    carried_other SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    covered_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)) -- of the hour
)
ENGINE = {replicated}AggregatingMergeTree
PARTITION BY toYYYYMM(hour)
ORDER BY (service, hour, host)
TTL toDate(hour) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE TABLE IF NOT EXISTS device_hours{suffix}{on_cluster}
(
    hour DateTime('UTC') CODEC(Delta, ZSTD(1)),
    service LowCardinality(String) CODEC(ZSTD(1)),
    host LowCardinality(String) CODEC(ZSTD(1)),
    pid UInt32 CODEC(ZSTD(1)),
    windows SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    executions SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    uncollected SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    dropped SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    lost SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    carried_windows SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    carried_executions SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    carried_uncollected SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    carried_dropped SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    carried_lost SimpleAggregateFunction(sum, UInt64) CODEC(T64, ZSTD(1)),
    clock_error_ns SimpleAggregateFunction(max, Int64) CODEC(T64, ZSTD(1)),
    covered_ns SimpleAggregateFunction(sum, Int64) CODEC(T64, ZSTD(1)), -- of the hour
    first_ns SimpleAggregateFunction(min, Int64) CODEC(Delta, ZSTD(1)), -- where what is covered of the hour begins
    last_ns SimpleAggregateFunction(max, Int64) CODEC(Delta, ZSTD(1)) -- and ends
)
ENGINE = {replicated}AggregatingMergeTree
PARTITION BY toYYYYMM(hour)
ORDER BY (service, hour, host, pid)
TTL toDate(hour) + INTERVAL {rollup_days} DAY
SETTINGS ttl_only_drop_parts = 1, {remember};

CREATE MATERIALIZED VIEW IF NOT EXISTS kernel_hours_of_totals{suffix}{on_cluster} TO kernel_hours{suffix}
AS SELECT
    toStartOfHour(minute) AS hour,
    kind,
    kernel_name,
    service,
    sum(totals.launches) AS launches,
    sum(totals.ran) AS ran,
    sum(totals.failed) AS failed,
    sum(totals.captured) AS captured,
    sum(totals.unresolved) AS unresolved,
    sum(totals.completions) AS completions,
    sum(totals.isolated) AS isolated,
    sum(totals.timed) AS timed,
    sum(totals.completion_ns) AS completion_ns,
    sum(totals.isolated_ns) AS isolated_ns,
    sum(totals.launch_ns) AS launch_ns,
    sum(totals.executions) AS executions,
    sum(totals.in_graphs) AS in_graphs,
    sum(totals.device_ns) AS device_ns,
    sumMap(totals.isolated_bins) AS isolated_bins,
    sumMap(totals.shared_bins) AS shared_bins,
    sumMap(totals.call_bins) AS call_bins,
    sumMap(totals.device_bins) AS device_bins
FROM kernel_totals{suffix} AS totals
GROUP BY hour, kind, kernel_name, service;

CREATE MATERIALIZED VIEW IF NOT EXISTS process_hours_of_minutes{suffix}{on_cluster} TO process_hours{suffix}
AS SELECT
    toStartOfHour(minute) AS hour,
    kind,
    service,
    host,
    pid,
    sum(minutes.launches) AS launches,
    sum(minutes.executions) AS executions,
    sum(minutes.device_ns) AS device_ns,
    min(minutes.first_ns) AS first_ns,
    max(minutes.last_ns) AS last_ns
FROM process_minutes{suffix} AS minutes
GROUP BY hour, kind, service, host, pid;

CREATE MATERIALIZED VIEW IF NOT EXISTS health_hours_of_accounts{suffix}{on_cluster} TO health_hours{suffix}
AS SELECT
    toDateTime(number * 3600, 'UTC') AS hour,
    service,
    host,
    sumIf(accounts.events, number = first_hour) AS events,
    sumIf(accounts.events, first_hour = last_hour) AS events_within,
    sumIf(accounts.lost_launches, number = first_hour) AS lost_launches,
    sumIf(accounts.lost_syncs, number = first_hour) AS lost_syncs,
    sumIf(accounts.lost_other, number = first_hour) AS lost_other,
    sumIf(accounts.events, number > first_hour) AS carried_events,
    sumIf(accounts.lost_launches, number > first_hour) AS carried_launches,
    sumIf(accounts.lost_syncs, number > first_hour) AS carried_syncs,
    sumIf(accounts.lost_other, number > first_hour) AS carried_other,
    sum(greatest(least(to_ns, (number + 1) * 3600000000000) - greatest(from_ns, number * 3600000000000), 0)) AS covered_ns
FROM
(
    SELECT
        from_ns,
        to_ns,
        service,
        host,
        events,
        lost_launches,
        lost_syncs,
        lost_other,
        intDiv(greatest(from_ns, 0), 3600000000000) AS first_hour,
        greatest(intDiv(to_ns - 1, 3600000000000), first_hour) AS last_hour,
        first_hour + toInt64(arrayJoin(range(toUInt64(least(last_hour - first_hour, 799) + 1)))) AS number
    FROM agent_health{suffix}
) AS accounts
GROUP BY hour, service, host;

CREATE MATERIALIZED VIEW IF NOT EXISTS device_hours_of_windows{suffix}{on_cluster} TO device_hours{suffix}
AS SELECT
    toDateTime(number * 3600, 'UTC') AS hour,
    service,
    host,
    pid,
    countIf(number = first_hour) AS windows,
    sumIf(accounts.executions, number = first_hour) AS executions,
    sumIf(accounts.uncollected, number = first_hour) AS uncollected,
    sumIf(accounts.dropped, number = first_hour) AS dropped,
    sumIf(accounts.lost, number = first_hour) AS lost,
    countIf(number > first_hour) AS carried_windows,
    sumIf(accounts.executions, number > first_hour) AS carried_executions,
    sumIf(accounts.uncollected, number > first_hour) AS carried_uncollected,
    sumIf(accounts.dropped, number > first_hour) AS carried_dropped,
    sumIf(accounts.lost, number > first_hour) AS carried_lost,
    max(accounts.clock_error_ns) AS clock_error_ns,
    sum(greatest(ends - begins, 0)) AS covered_ns,
    min(begins) AS first_ns,
    max(ends) AS last_ns
FROM
(
    SELECT
        from_ns,
        to_ns,
        service,
        host,
        pid,
        executions,
        uncollected,
        dropped,
        lost,
        clock_error_ns,
        intDiv(greatest(from_ns, 0), 3600000000000) AS first_hour,
        greatest(intDiv(to_ns - 1, 3600000000000), first_hour) AS last_hour,
        first_hour + toInt64(arrayJoin(range(toUInt64(least(last_hour - first_hour, 799) + 1)))) AS number,
        greatest(from_ns, number * 3600000000000) AS begins,
        least(to_ns, (number + 1) * 3600000000000) AS ends
    FROM device_windows{suffix}
) AS accounts
GROUP BY hour, service, host, pid;

CREATE VIEW IF NOT EXISTS hour_bins{on_cluster}
AS SELECT hour, kind, kernel_name, service, 'completion' AS measure, toUInt8(1) AS alone, mapKeys(isolated_bins) AS bins, mapValues(isolated_bins) AS met
FROM kernel_hours
UNION ALL
SELECT hour, kind, kernel_name, service, 'completion' AS measure, toUInt8(0) AS alone, mapKeys(shared_bins) AS bins, mapValues(shared_bins) AS met
FROM kernel_hours
UNION ALL
SELECT hour, kind, kernel_name, service, 'call' AS measure, toUInt8(0) AS alone, mapKeys(call_bins) AS bins, mapValues(call_bins) AS met
FROM kernel_hours
UNION ALL
SELECT hour, kind, kernel_name, service, 'device' AS measure, toUInt8(0) AS alone, mapKeys(device_bins) AS bins, mapValues(device_bins) AS met
FROM kernel_hours;

-- From when on hours hold all that minutes hold: always in a database that had no roll-ups when the views were made, else
-- from an hour on in which nothing can have arrived before them. The least one counts, if there are several.
CREATE TABLE IF NOT EXISTS hours_since{suffix}{on_cluster}
(
    since DateTime('UTC')
)
ENGINE = {replicated}MergeTree
ORDER BY since
SETTINGS {remember};

INSERT INTO hours_since (since)
SELECT if(
    (SELECT count() FROM process_minutes) + (SELECT count() FROM agent_health) + (SELECT count() FROM device_windows) = 0,
    toDateTime(0, 'UTC'),
    toDateTime(toStartOfHour(now('UTC')) + INTERVAL 2 HOUR, 'UTC'))
