"""Figures and dashboards over what kdiff records: Grafana dashboards as code, and figures for reports. None yet."""
