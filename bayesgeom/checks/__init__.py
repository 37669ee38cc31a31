"""Checks of arguments against annotations, of the cost of a task and of tokenizers; the form of values in messages."""
