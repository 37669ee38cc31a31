"""The rules of the house, as tests. Each module holds one rule: the check, its verdict, and proof that it can fail."""
