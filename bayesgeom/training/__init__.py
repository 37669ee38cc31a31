"""Training from committed recipes: fresh data every step, resumable to the same weights."""
