import numpy as np
import pytest

from bayesgeom.core.batching import even_slices


@pytest.mark.parametrize("n", [0, 1, 3, 7, 31])
@pytest.mark.parametrize("at_most", [None, 0, 2, 5, 97])
@pytest.mark.parametrize("at_least", [1, 3])
def test_parts_are_even_and_hold_everything_once(n: int, at_most: int | None, at_least: int) -> None:
    parts = even_slices(n, at_most=at_most, at_least=at_least)
    sizes = [part.stop - part.start for part in parts]
    assert [i for part in parts for i in range(n)[part]] == [*range(n)]
    # numpy splits evenly too, larger parts first.
    assert sizes == [len(part) for part in np.array_split(np.arange(n), max(1, len(parts))) if len(part)]
    assert not sizes or min(sizes) >= min(n, at_least)
    if at_most is not None and at_least <= max(1, at_most) and at_least == 1:
        assert max(sizes, default=0) <= max(1, at_most)
        assert len(parts) == -(-n // max(1, at_most))  # as few as fit
