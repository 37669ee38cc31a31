"""How behavior and geometry change over training."""
