"""Arguments compared with annotations, and how messages show values."""
