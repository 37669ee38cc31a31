"""Functions on arrays: information, scores of predictions, intervals, resampling, principal axes, window observers."""
