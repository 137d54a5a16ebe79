-- The rows of device_windows that overlap a stretch of time.
SELECT *
FROM device_windows
WHERE to_ns > {from_ns:Int64}
    AND from_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service = {service:String})
ORDER BY from_ns, to_ns
