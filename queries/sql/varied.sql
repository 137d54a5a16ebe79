-- The kernels that were launched, or ran on the device, in more than one way that no input of theirs decides.
SELECT cityHash64(kernel_name) AS kernel_key
FROM cuda_events
WHERE {source:String} = 'launch'
    AND kind = 'launch'
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
GROUP BY kernel_name
HAVING min(block_x) != max(block_x)
    OR min(block_y) != max(block_y)
    OR min(block_z) != max(block_z)
UNION ALL
SELECT cityHash64(kernel_name) AS kernel_key
FROM kernel_executions
WHERE {source:String} = 'device'
    AND timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
GROUP BY kernel_name
HAVING min(registers) != max(registers)
    OR min(block_x) != max(block_x)
    OR min(block_y) != max(block_y)
    OR min(block_z) != max(block_z)
    OR min(static_shared) != max(static_shared)
    OR min(local_bytes) != max(local_bytes)
