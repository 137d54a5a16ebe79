-- Executions of each kernel in a window of whole hours and their time, all processes together.
-- Nanoseconds of a fleet's month do not fit into 64 bits.
SELECT
    kernel_name,
    cityHash64(kernel_name) AS kernel_key,
    sum(hours.executions) AS executions,
    sum(hours.in_graphs) AS in_graphs,
    toFloat64(sum(toInt128(hours.device_ns))) AS device_ns
FROM kernel_hours AS hours
WHERE kind = 'device'
    AND hour >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND hour < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String})
GROUP BY kernel_name
ORDER BY kernel_name
