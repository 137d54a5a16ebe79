-- When configurations of kernels, as variants.sql numbers them, were launched or ran: every one, of each process.
SELECT
    host,
    pid,
    cityHash64(kernel_name) AS kernel_key,
    cityHash64(block_x, block_y, block_z) AS code,
    cityHash64(block_x, block_y, block_z, shared_bytes) AS variant,
    timestamp_ns
FROM cuda_events
WHERE {source:String} = 'launch'
    AND kind = 'launch'
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
    AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
    AND variant IN {variants:Array(UInt64)}
UNION ALL
SELECT
    host,
    pid,
    cityHash64(kernel_name) AS kernel_key,
    cityHash64(block_x, block_y, block_z, registers, local_bytes, static_shared) AS code,
    cityHash64(block_x, block_y, block_z, registers, local_bytes, static_shared, dynamic_shared) AS variant,
    timestamp_ns
FROM kernel_executions
WHERE {source:String} = 'device'
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
    AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
    AND variant IN {variants:Array(UInt64)}
