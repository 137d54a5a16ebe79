"""kdiff.agent."""
