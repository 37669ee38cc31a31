"""Probes: one file per diagnostic, each with its report, its baselines and its planted controls."""
