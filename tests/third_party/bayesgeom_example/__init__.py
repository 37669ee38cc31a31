"""One extension of every kind, which `docs/extending.md` describes."""
