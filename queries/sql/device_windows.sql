-- The device windows that overlap a window, and what each of them collected and missed.
SELECT
    host,
    pid,
    from_ns,
    to_ns,
    executions,
    uncollected,
    dropped,
    lost,
    clock_error_ns
FROM device_windows
WHERE to_ns > {from_ns:Int64}
    AND from_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String}) /* AND scope(host) */
ORDER BY host, pid, from_ns, to_ns
