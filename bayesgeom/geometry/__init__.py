"""Functions on clouds of vectors: cosines, clusters, curves, read-outs, and their levels for random data."""
