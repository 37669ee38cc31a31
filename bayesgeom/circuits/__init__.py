"""Circuits in bits: what the parts of a model write for the answers, and through which edges they act on each other."""
