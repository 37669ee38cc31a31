"""The published laws of attention gradients, and the movement of attention and values over training."""
