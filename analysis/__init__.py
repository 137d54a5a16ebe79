"""kdiff.analysis."""
