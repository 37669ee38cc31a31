"""Generalization beyond the training distribution: other lengths, other names, other task parameters."""
