"""Geometry on arrays and nothing else: no model, no task, no plot."""
