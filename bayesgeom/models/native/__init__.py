"""Architectures of this package, and the parts that they share."""
