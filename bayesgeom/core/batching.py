"""Splitting of work into parts that fit a budget."""

from itertools import pairwise


def even_slices(n: int, *, at_most: int | None = None, at_least: int = 1) -> list[slice]:
    """Split `n` items into consecutive parts whose sizes differ by at most one.

    Args:
        n: Number of items.
        at_most: Maximum size of a part; there are as few parts as possible. None: no maximum, and as many parts as
            `at_least` allows.
        at_least: Minimum size of a part, unless `n` is smaller. It takes precedence over `at_most`.

    Example:
        >>> [part.stop - part.start for part in even_slices(13, at_most=5)]
        [5, 4, 4]
        >>> [part.stop - part.start for part in even_slices(13, at_least=5)]
        [7, 6]
    """
    fewest, most = 1 if at_most is None else -(-n // max(1, at_most)), n // max(1, at_least)
    n_parts = max(1, most if at_most is None else min(fewest, most))
    size, n_larger = divmod(n, n_parts)
    ends = [index * size + min(index, n_larger) for index in range(n_parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends) if end > start]
