-- How often each bin was met in each stretch of whole minutes, of the kernels in `keys`. kind = launch, graph_launch or
-- device; measure = isolated, shared, call or device.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    toInt32(intDiv(toInt64(toUnixTimestamp(minute)) * 1000000000 - {from_ns:Int64}, {bucket_ns:Int64})) AS bucket,
    bin,
    sum(met) AS count
FROM kernel_bins
WHERE kind = {kind:String}
    AND measure = {measure:String}
    AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String})
    AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
GROUP BY kernel_key, bucket, bin
