-- What one process launched, or ran on the device, in a stretch beside one kernel: how many kernels, how often, and how
-- often that one.
SELECT
    uniqExactIf(kernel_name, cityHash64(kernel_name) != {kernel_key:UInt64}) AS kernels,
    countIf(cityHash64(kernel_name) != {kernel_key:UInt64}) AS launches,
    countIf(cityHash64(kernel_name) = {kernel_key:UInt64}) AS own
FROM
(
    SELECT kernel_name
    FROM cuda_events
    WHERE {source:String} = 'launch'
        AND kind IN ('launch', 'graph_launch')
        AND timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String})
        AND host = {host:String}
        AND pid = {pid:UInt32} /* AND scope(host, pid, timestamp_ns) */
    UNION ALL
    SELECT kernel_name
    FROM kernel_executions
    WHERE {source:String} = 'device'
        AND timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String})
        AND host = {host:String}
        AND pid = {pid:UInt32} /* AND scope(host, pid, timestamp_ns) */
)
