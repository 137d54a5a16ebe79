-- As minutes_tails, of some hosts and processes. There are many rows of each stretch: they are added up first.
SELECT
    kernel_key,
    bucket,
    bin,
    count
FROM
(
    SELECT
        cityHash64(kernel_name) AS kernel_key,
        /* by host: host */ toInt32(intDiv(toInt64(toUnixTimestamp(minute)) * 1000000000 - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
        toUInt16(transform(kernel_key, {keys:Array(UInt64)}, {floors:Array(UInt16)}, toUInt16(0))) AS floor,
        sumMap(mapFromArrays(bins, met)) AS histogram
    FROM process_bins
    WHERE kind = {kind:String}
        AND measure = {measure:String}
        AND ({isolated:UInt8} = 0 OR alone = 1)
        AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
        AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
        AND notEmpty(bins)
    GROUP BY kernel_key, bucket
)
ARRAY JOIN
    arrayPushBack(arrayFilter(bin -> bin >= floor, mapKeys(histogram)), toUInt16(65535)) AS bin,
    arrayPushBack(arrayFilter((times, bin) -> bin >= floor, mapValues(histogram), mapKeys(histogram)), arraySum(mapValues(histogram))) AS count
