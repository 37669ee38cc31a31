"""Interventions: is what can be decoded from a subspace causal, or inert? Swap it, and see whether the answer moves."""
