-- What each GPU did in a window, once a second. A sample is of the host: whatever ran there, of whichever service.
SELECT
    host,
    gpu_uuid,
    parent_uuid,
    gpu_name,
    timestamp_ns,
    sm_clock_mhz,
    mem_clock_mhz,
    throttle_reasons,
    power_mw,
    temperature_c,
    gpu_utilization,
    memory_utilization,
    memory_used_bytes,
    memory_total_bytes,
    ecc_corrected,
    ecc_uncorrected,
    processes,
    pids,
    pid_memory_bytes
FROM gpu_samples
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service IN ('', {service:String})) /* AND scope(host) */
ORDER BY host, gpu_uuid, timestamp_ns
