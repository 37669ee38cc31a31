"""Changes of behavior and geometry over training."""
