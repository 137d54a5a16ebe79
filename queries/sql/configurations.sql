-- The launch configuration that most executions of each kernel in `keys` had, how many had it, and of how many.
SELECT
    kernel_key,
    argMax((grid_x, grid_y, grid_z, block_x, block_y, block_z, registers, shared_bytes, local_bytes), (met, grid_x, grid_y, grid_z, block_x)) AS usual,
    max(met) AS most,
    sum(met) AS executions
FROM
(
    SELECT
        cityHash64(kernel_name) AS kernel_key,
        grid_x,
        grid_y,
        grid_z,
        block_x,
        block_y,
        block_z,
        registers,
        static_shared + dynamic_shared AS shared_bytes,
        local_bytes,
        count() AS met
    FROM kernel_executions
    WHERE timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
        AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
    GROUP BY kernel_key, grid_x, grid_y, grid_z, block_x, block_y, block_z, registers, shared_bytes, local_bytes
)
GROUP BY kernel_key
