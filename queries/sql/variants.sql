-- The configurations in which each process launched each kernel in `keys`, or ran it on the device, of those with three
-- or more of them of which at least three are rare: at most `most` times, and of at most 5% of its launches. A kernel of
-- more than 1,000 configurations has none that say anything. Another `code` is what no input of the kernel decides.
SELECT
    host,
    pid,
    kernel_key,
    arrayMap(x -> x.1, rare) AS variants,
    arraySum(x -> x.3, rare) AS launches
FROM
(
    SELECT
        host,
        pid,
        kernel_key,
        groupArray((variant, code, met)) AS every,
        arrayFilter(x -> x.3 <= {most:UInt64} AND x.3 * 20 <= arraySum(y -> y.3, every), every) AS rare
    FROM
    (
        SELECT
            host,
            pid,
            cityHash64(kernel_name) AS kernel_key,
            cityHash64(block_x, block_y, block_z) AS code,
            cityHash64(block_x, block_y, block_z, shared_bytes) AS variant,
            count() AS met
        FROM cuda_events
        WHERE {source:String} = 'launch'
            AND kind = 'launch'
            AND timestamp_ns >= {from_ns:Int64}
            AND timestamp_ns < {to_ns:Int64}
            AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
            AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
        GROUP BY host, pid, kernel_key, code, variant
        UNION ALL
        SELECT
            host,
            pid,
            cityHash64(kernel_name) AS kernel_key,
            cityHash64(block_x, block_y, block_z, registers, local_bytes, static_shared) AS code,
            cityHash64(block_x, block_y, block_z, registers, local_bytes, static_shared, dynamic_shared) AS variant,
            count() AS met
        FROM kernel_executions
        WHERE {source:String} = 'device'
            AND timestamp_ns >= {from_ns:Int64}
            AND timestamp_ns < {to_ns:Int64}
            AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
            AND cityHash64(kernel_name) IN {keys:Array(UInt64)}
        GROUP BY host, pid, kernel_key, code, variant
    )
    GROUP BY host, pid, kernel_key
    HAVING count() BETWEEN 3 AND 1000
        AND uniqExact(code) >= 2
        AND length(rare) >= 3
)
ORDER BY host, pid, kernel_key
