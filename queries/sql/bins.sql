-- As minutes_bins, from the rows of a capture.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    bin,
    count() AS count
FROM kernel_bins
WHERE kind = {kind:String}
    AND measure = {measure:String}
    AND ({isolated:UInt8} = 0 OR alone = 1)
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
    AND kernel_key IN {keys:Array(UInt64)}
GROUP BY kernel_key, bin
