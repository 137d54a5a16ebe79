-- What each GPU did in a window, summed up. Clocks and why they are not higher: of samples in which it was not idle, bit
-- 0x1 of nvmlClocksEventReasons. A column is null where no sample has the reading.
WITH ifNull(bitAnd(gpu.throttle_reasons, 1), 0) = 0 AS busy
SELECT
    host,
    gpu_uuid,
    parent_uuid,
    gpu_name,
    count() AS samples,
    countIf(busy) AS samples_busy,
    avgIf(gpu.sm_clock_mhz, busy) AS sm_clock_mhz,
    quantileExactWeightedIf(0.05)(gpu.sm_clock_mhz, 1, busy) AS sm_clock_p5_mhz,
    avgIf(bitAnd(gpu.throttle_reasons, 0x4) != 0, busy) AS power_cap,
    avgIf(bitAnd(gpu.throttle_reasons, 0x60) != 0, busy) AS thermal,
    avgIf(bitAnd(gpu.throttle_reasons, 0x80) != 0, busy) AS power_brake,
    avgIf(bitAnd(gpu.throttle_reasons, 0x8) != 0 AND bitAnd(gpu.throttle_reasons, 0xc0) = 0, busy) AS hardware_slowdown,
    avgIf(bitAnd(gpu.throttle_reasons, 0x10) != 0, busy) AS sync_boost,
    avgIf(bitAnd(gpu.throttle_reasons, 0x102) != 0, busy) AS clock_setting,
    avg(gpu.power_mw) AS power_mw,
    avg(gpu.temperature_c) AS temperature_c,
    max(gpu.temperature_c) AS temperature_max_c,
    avg(gpu.gpu_utilization) AS gpu_utilization,
    avg(gpu.memory_utilization) AS memory_utilization,
    avg(gpu.memory_used_bytes) AS memory_used_bytes,
    max(gpu.memory_total_bytes) AS memory_total_bytes,
    arraySort(groupUniqArrayArray(10000)(gpu.pids)) AS pids
FROM gpu_samples AS gpu
WHERE timestamp_ns >= {from_ns:Int64}
    AND timestamp_ns < {to_ns:Int64}
    AND ({service:String} = '' OR service IN ('', {service:String})) /* AND scope(host) */
GROUP BY host, gpu_uuid, parent_uuid, gpu_name
ORDER BY host, gpu_uuid, gpu_name
