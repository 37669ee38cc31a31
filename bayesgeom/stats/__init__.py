"""Functions on arrays: information, intervals and resampling, principal axes, window observers."""
