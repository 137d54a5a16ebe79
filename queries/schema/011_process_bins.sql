-- kernel_bins with process, GPU and shape: for a part of a fleet, and for shapes compared with each other.

CREATE VIEW IF NOT EXISTS process_bins{on_cluster}
AS SELECT minute, kind, kernel_name, service, host, pid, gpu_uuid, grid_x, grid_y, grid_z, block_x, block_y, block_z, 'completion' AS measure, toUInt8(1) AS alone, mapKeys(isolated_bins) AS bins, mapValues(isolated_bins) AS met
FROM kernel_minutes
UNION ALL
SELECT minute, kind, kernel_name, service, host, pid, gpu_uuid, grid_x, grid_y, grid_z, block_x, block_y, block_z, 'completion' AS measure, toUInt8(0) AS alone, mapKeys(shared_bins) AS bins, mapValues(shared_bins) AS met
FROM kernel_minutes
UNION ALL
SELECT minute, kind, kernel_name, service, host, pid, gpu_uuid, grid_x, grid_y, grid_z, block_x, block_y, block_z, 'call' AS measure, toUInt8(0) AS alone, mapKeys(call_bins) AS bins, mapValues(call_bins) AS met
FROM kernel_minutes
UNION ALL
SELECT minute, kind, kernel_name, service, host, pid, gpu_uuid, grid_x, grid_y, grid_z, block_x, block_y, block_z, 'device' AS measure, toUInt8(0) AS alone, mapKeys(device_bins) AS bins, mapValues(device_bins) AS met
FROM kernel_minutes;
