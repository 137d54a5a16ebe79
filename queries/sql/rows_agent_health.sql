-- The rows of agent_health that overlap a stretch of time.
SELECT *
FROM agent_health
WHERE to_ns > {from_ns:Int64}
    AND from_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service IN ('', {service:String}))
ORDER BY from_ns, to_ns
