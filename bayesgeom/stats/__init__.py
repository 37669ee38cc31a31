"""Functions on arrays: information, scores, intervals, resampling, axes, overlaps, clusters, read-outs, observers."""
