-- What agents recorded and lost in the stretches that overlap a window. A stretch counts whole: an agent does not know
-- where in it a loss fell.
SELECT
    from_ns,
    to_ns,
    host,
    events,
    lost_launches,
    lost_syncs,
    lost_other
FROM agent_health
WHERE to_ns > {from_ns:Int64}
    AND from_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service IN ('', {service:String}))
ORDER BY from_ns, to_ns
