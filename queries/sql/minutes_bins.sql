-- How often each bin was met in a window of whole minutes, of the kernels in `keys`. kind = launch, graph_launch or
-- device; measure = completion, call or device. isolated = 1: only launches alone between two syncs.
-- Whole hours are read from the roll-ups of hours, from when on they are complete, the minutes before and behind them one
-- by one. Maps are added up, not bins: that takes half the time.
WITH
    toStartOfHour(toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')) AS end_hour,
    (
        SELECT if(count() = 0, toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC'), greatest(toStartOfHour(toDateTime(intDiv({from_ns:Int64}, 1000000000) + 3599, 'UTC')), min(since)))
        FROM hours_since
    ) AS from_hour
SELECT
    kernel_key,
    bin,
    count
FROM
(
    SELECT
        cityHash64(kernel_name) AS kernel_key,
        sumMap(mapFromArrays(bins, met)) AS histogram
    FROM
    (
        SELECT kernel_name, bins, met
        FROM hour_bins
        WHERE kind = {kind:String}
            AND measure = {measure:String}
            AND ({isolated:UInt8} = 0 OR alone = 1)
            AND hour >= from_hour
            AND hour < end_hour
            AND ({service:String} = '' OR service = {service:String})
            AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
        UNION ALL
        SELECT kernel_name, bins, met
        FROM kernel_bins
        WHERE kind = {kind:String}
            AND measure = {measure:String}
            AND ({isolated:UInt8} = 0 OR alone = 1)
            AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
            AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
            AND (minute < from_hour OR minute >= end_hour)
            AND ({service:String} = '' OR service = {service:String})
            AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
    )
    GROUP BY kernel_name
)
ARRAY JOIN
    mapKeys(histogram) AS bin,
    mapValues(histogram) AS count
