-- As minutes_tails, from the rows of a capture.
SELECT
    kernel_key,
    bucket,
    arrayJoin(if(from_floor, [bin, toUInt16(65535)], [toUInt16(65535)])) AS bin,
    sum(met) AS count
FROM
(
    SELECT
        cityHash64(kernel_name) AS kernel_key,
        /* by host: host */ toInt32(intDiv(timestamp_ns - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
        kernel_bins.bin >= toUInt16(transform(kernel_key, {keys:Array(UInt64)}, {floors:Array(UInt16)}, toUInt16(0))) AS from_floor,
        if(from_floor, kernel_bins.bin, toUInt16(0)) AS bin,
        count() AS met
    FROM kernel_bins
    WHERE kind = {kind:String}
        AND measure = {measure:String}
        AND ({isolated:UInt8} = 0 OR alone = 1)
        AND timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        AND kernel_key IN {keys:Array(UInt64)}
    GROUP BY kernel_key, bucket, from_floor, bin
)
GROUP BY kernel_key, bucket, bin
