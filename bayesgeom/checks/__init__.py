"""Checks of arguments against annotations, and the form of values in messages."""
