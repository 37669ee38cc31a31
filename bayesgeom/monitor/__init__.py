"""Watch a running training: events, responses and the last good state."""
