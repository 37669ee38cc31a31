"""Replications of single published experiments; nothing else uses them."""
