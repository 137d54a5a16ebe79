-- Kept verdicts of some kernels, the newest first.
SELECT *
FROM verdicts
WHERE cityHash64(kernel_name) IN {keys:Array(UInt64)}
    AND judged_at_ns >= {from_ns:Int64}
    AND (NOT {one_service:UInt8} OR service = {service:String})
ORDER BY judged_at_ns DESC, run_id, kernel_name
LIMIT {most:UInt64}
