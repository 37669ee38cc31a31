"""The audit of a predictor against the exact posterior, from its predictions alone."""
