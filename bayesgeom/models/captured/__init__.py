"""Captures: recorded activations and reduced predictions on disk, and the model that they stand for."""
