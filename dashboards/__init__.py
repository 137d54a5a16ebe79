"""kdiff.dashboards."""
