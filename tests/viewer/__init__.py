"""The viewer: its data, its widget and its page."""
