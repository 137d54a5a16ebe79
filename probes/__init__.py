"""kdiff.probes."""
