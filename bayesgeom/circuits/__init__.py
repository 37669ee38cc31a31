"""Circuits: what single activations, components and paths contribute to the answer, in bits."""
