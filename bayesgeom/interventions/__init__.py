"""Interventions: does the model use what can be decoded from a subspace? Swap it and test whether the answer moves."""
