-- The rows of kernel_executions in a stretch of time.
SELECT *
FROM kernel_executions
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String})
ORDER BY timestamp_ns
