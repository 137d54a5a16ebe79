-- How often each bin was met in a window of whole hours, of the kernels in `keys`. kind = launch, graph_launch or
-- device; measure = completion, call or device. isolated = 1: only launches alone between two syncs.
-- Kernel and bin are one number while rows are grouped: that takes half the time.
SELECT
    transform(intDiv(code, 65536), range(length({keys:Array(UInt64)})), {keys:Array(UInt64)}, toUInt64(0)) AS kernel_key,
    toUInt16(code % 65536) AS bin,
    sum(met) AS count
FROM
(
    SELECT
        toUInt64(transform(cityHash64(kernel_name), {keys:Array(UInt64)}, range(length({keys:Array(UInt64)})), 0)) * 65536 AS place,
        bins,
        met
    FROM hour_bins
    WHERE kind = {kind:String}
        AND measure = {measure:String}
        AND ({isolated:UInt8} = 0 OR alone = 1)
        AND hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String})
        AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
)
ARRAY JOIN
    arrayMap(bin -> place + bin, bins) AS code,
    met AS met
GROUP BY code
