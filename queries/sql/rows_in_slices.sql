-- Rows of the three large tables in each slice of a stretch that has any.
SELECT
    source,
    slice,
    count() AS rows
FROM
(
    SELECT 'cuda_events' AS source, intDiv(timestamp_ns - {from_ns:Int64}, {slice_ns:Int64}) AS slice
    FROM cuda_events
    WHERE timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String})
    UNION ALL
    SELECT 'kernel_executions' AS source, intDiv(timestamp_ns - {from_ns:Int64}, {slice_ns:Int64}) AS slice
    FROM kernel_executions
    WHERE timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service = {service:String})
    UNION ALL
    SELECT 'gpu_samples' AS source, intDiv(timestamp_ns - {from_ns:Int64}, {slice_ns:Int64}) AS slice
    FROM gpu_samples
    WHERE timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND ({service:String} = '' OR service IN ('', {service:String}))
)
GROUP BY source, slice
ORDER BY source, slice
