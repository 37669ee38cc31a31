"""One pass of a model that serves every probe, and the same for untrained networks."""
