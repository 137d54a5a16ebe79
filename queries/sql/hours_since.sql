-- From when on the roll-ups of hours hold all that those of minutes hold, Unix ns; NULL where nobody said.
SELECT minOrNull(toInt64(toUnixTimestamp(since)) * 1000000000) AS since_ns
FROM hours_since
