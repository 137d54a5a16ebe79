-- How often each bin was met in each stretch of whole minutes, by stratum, of the kernels in `keys`. The rest as in
-- minutes_bins.
SELECT
    kernel_key,
    stratum,
    bucket,
    bin,
    count
FROM
(
    SELECT
        cityHash64(kernel_name) AS kernel_key,
        /* stratum */ toUInt64(0) AS stratum,
        /* by host: host */ toInt32(intDiv(toInt64(toUnixTimestamp(minute)) * 1000000000 - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
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
    GROUP BY kernel_key, stratum, bucket
)
ARRAY JOIN
    mapKeys(histogram) AS bin,
    mapValues(histogram) AS count
