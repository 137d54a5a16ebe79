-- How often each bin from `floors` on was met in each stretch of whole hours, of the kernels in `keys`, which belong
-- together place by place. bin = 65535: how many durations the stretch has in all. The rest as in minutes_bins.
SELECT
    kernel_key,
    bucket,
    bin,
    sum(met) AS count
FROM
(
    SELECT
        cityHash64(kernel_name) AS kernel_key,
        toInt32(intDiv(toInt64(toUnixTimestamp(hour)) * 1000000000 - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
        toUInt16(transform(kernel_key, {keys:Array(UInt64)}, {floors:Array(UInt16)}, toUInt16(0))) AS floor,
        bins,
        met
    FROM hour_bins
    WHERE kind = {kind:String}
        AND measure = {measure:String}
        AND ({isolated:UInt8} = 0 OR alone = 1)
        AND hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String})
        AND kernel_key IN {keys:Array(UInt64)}
        AND notEmpty(bins)
)
ARRAY JOIN
    arrayPushBack(arrayFilter(bin -> bin >= floor, bins), toUInt16(65535)) AS bin,
    arrayPushBack(arrayFilter((times, bin) -> bin >= floor, met, bins), arraySum(met)) AS met
GROUP BY kernel_key, bucket, bin
