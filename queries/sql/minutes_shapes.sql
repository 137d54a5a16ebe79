-- As shapes, from the roll-ups of whole minutes.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    /* stratum */ toUInt64(0) AS stratum,
    sum(if({measure:String} = 'device', executions, if({measure:String} = 'call', timed, if({isolated:UInt8} = 1, isolated, completions)))) AS met
FROM kernel_minutes
WHERE kind = {kind:String}
    AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, minute) */
    AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
GROUP BY kernel_key, stratum
HAVING met > 0
