-- As minutes_bins, of some hosts and processes: hours do not tell these.
SELECT
    kernel_key,
    bin,
    count
FROM
(
    SELECT
        cityHash64(kernel_name) AS kernel_key,
        sumMap(mapFromArrays(bins, met)) AS histogram
    FROM process_bins
    WHERE kind = {kind:String}
        AND measure = {measure:String}
        AND ({isolated:UInt8} = 0 OR alone = 1)
        AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
        AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
        AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
    GROUP BY kernel_name
)
ARRAY JOIN
    mapKeys(histogram) AS bin,
    mapValues(histogram) AS count
