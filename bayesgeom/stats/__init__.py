"""Functions on arrays: information, intervals, and the geometry of vectors."""
