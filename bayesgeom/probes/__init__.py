"""Probes: one file per diagnostic, each with its report, its null levels and its planted controls."""
