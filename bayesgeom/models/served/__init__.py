"""Models behind an inference server: predictions only."""
