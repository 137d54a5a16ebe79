-- Executions in a short stretch of a window, to see what runs before and after what: at most `most`, by their stream.
SELECT
    cityHash64(kernel_name) AS kernel_key,
    cityHash64(host, pid, gpu_uuid, stream) AS lane,
    timestamp_ns,
    if(grid_x = 0, 0, cityHash64(grid_x, grid_y, grid_z, block_x, block_y, block_z)) AS shape
FROM kernel_executions
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
ORDER BY timestamp_ns
LIMIT {most:Int64}
