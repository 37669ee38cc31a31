"""The gradient laws of attention, measured: advantage, responsibilities and value updates, now and over training."""
