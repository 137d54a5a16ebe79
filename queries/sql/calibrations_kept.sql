-- The newest calibration by the history of a service that fits windows between two lengths.
SELECT *
FROM calibrations
WHERE service = {service:String}
    AND metric = {metric:String}
    AND toInt64(round(quantile * 1000000000)) = {quantile_e9:Int64}
    AND window_ns BETWEEN {shortest_ns:Int64} AND {longest_ns:Int64}
ORDER BY made_at_ns <= {until_ns:Int64} DESC, made_at_ns DESC, calibration_id
LIMIT 1
