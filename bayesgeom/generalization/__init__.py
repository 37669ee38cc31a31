"""Beyond the training distribution: other lengths, other names, sweeps over a parameter."""
