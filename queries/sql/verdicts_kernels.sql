-- The kernels that have kept verdicts.
SELECT DISTINCT
    kernel_name,
    cityHash64(kernel_name) AS kernel_key
FROM verdicts
WHERE judged_at_ns >= {from_ns:Int64}
    AND (NOT {one_service:UInt8} OR service = {service:String})
