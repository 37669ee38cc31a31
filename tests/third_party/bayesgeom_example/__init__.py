"""One extension of every kind, as `docs/extending.md` shows them."""
