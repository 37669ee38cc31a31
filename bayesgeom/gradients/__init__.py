"""The published laws of attention gradients, and what gradient steps move."""
