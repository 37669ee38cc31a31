"""The published EM schedule on one attention head."""
