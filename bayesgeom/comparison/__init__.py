"""Comparison of architectures on accumulation, transport and binding, with equal training, and published verdicts."""
