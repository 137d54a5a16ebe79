-- Whether a window has a call of which it is known for how long its thread waited: --scheduling was on.
SELECT toUInt8(count() > 0) AS known
FROM
(
    SELECT 1
    FROM cuda_events
    WHERE timestamp_ns >= {from_ns:Int64}
        AND timestamp_ns < {to_ns:Int64}
        AND runnable_ns IS NOT NULL
        AND ({service:String} = '' OR service = {service:String}) /* AND scope(host, pid, timestamp_ns) */
    LIMIT 1
)
