"""Interventions: is what can be read from a subspace also used? Swap it and see whether the answer follows."""
