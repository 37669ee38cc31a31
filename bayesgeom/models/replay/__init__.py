"""Edited forward passes that reuse what an edit did not change."""
