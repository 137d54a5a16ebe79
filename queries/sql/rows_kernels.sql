-- The identities of the kernels that ran in a stretch of time.
SELECT *
FROM kernels
WHERE ({service:String} = '' OR service = {service:String})
    AND kernel_id IN
    (
        SELECT kernel_id
        FROM cuda_events
        WHERE timestamp_ns >= {from_ns:Int64}
            AND timestamp_ns < {to_ns:Int64}
            AND ({service:String} = '' OR service = {service:String})
        UNION ALL
        SELECT kernel_id
        FROM kernel_executions
        WHERE timestamp_ns >= {from_ns:Int64}
            AND timestamp_ns < {to_ns:Int64}
            AND ({service:String} = '' OR service = {service:String})
    )
ORDER BY kernel_id, first_seen_ns
