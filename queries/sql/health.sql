-- What agents recorded and lost in the stretches that overlap a window. A stretch counts whole: an agent does not know
-- where in it a loss fell. Where a host has several services, what counts for each of them is of the service '': it counts
-- on the hosts that have accounts of the service itself in the window, without a host on all of them.
SELECT
    from_ns,
    to_ns,
    service,
    host,
    events,
    lost_launches,
    lost_syncs,
    lost_other,
    clock_set_ns,
    slept_ns
FROM agent_health
WHERE to_ns > {from_ns:Int64}
    AND from_ns < {to_ns:Int64}
    AND (
        {service:String} = ''
        OR service = {service:String}
        OR (service = '' AND host = '')
        OR (
            service = ''
            AND host GLOBAL IN (
                SELECT host
                FROM agent_health
                WHERE service = {service:String}
                    AND to_ns > {from_ns:Int64}
                    AND from_ns < {to_ns:Int64}
            )
        )
    ) /* AND scope(host?) */
ORDER BY from_ns, to_ns
