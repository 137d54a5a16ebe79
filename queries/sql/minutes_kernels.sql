-- As kernels_between, from the roll-ups of whole minutes, without p99: the reader takes it from the bins.
SELECT
    kernel_name,
    cityHash64(kernel_name) AS kernel_key,
    sumIf(minutes.ran, kind = 'launch') AS launches,
    sumIf(minutes.completions, kind = 'launch') AS completions,
    if(completions = 0, NULL, sumIf(minutes.completion_ns, kind = 'launch') / completions) AS completion_avg_ns,
    sum(minutes.executions) AS executions,
    if(executions = 0, NULL, device_total_ns / executions) AS device_avg_ns,
    sum(minutes.device_ns) AS device_total_ns,
    min(minutes.first_ns) AS first_ns,
    max(minutes.last_ns) AS last_ns
FROM kernel_minutes AS minutes
WHERE kind IN ('launch', 'device')
    AND minute >= toDateTime(intDiv({from_ns:Int64}, 1000000000), 'UTC')
    AND minute < toDateTime(intDiv({to_ns:Int64}, 1000000000), 'UTC')
    AND ({service:String} = '' OR service = {service:String})
GROUP BY kernel_name
ORDER BY device_total_ns DESC, launches DESC, kernel_name
