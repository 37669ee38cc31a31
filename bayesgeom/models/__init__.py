"""Sequence models and the adapters that run them, one architecture a file."""
