"""The rule that an interval stays within the range of its quantity."""

import numpy as np
import pytest

from bayesgeom.stats.bounds import reaches_bound

INF = np.inf


@pytest.mark.parametrize(
    ("value", "lo", "hi", "bounds", "is_withheld"),
    [
        (0.9, 0.87, 0.95, (0.0, 1.0), False),
        (0.9, 0.87, 1.0, (0.0, 1.0), True),  # clipped
        (0.02, 0.001, 2.77, (0.0, 1.0), True),
        (0.98, 0.9, 0.9999, (0.0, 1.0), False),  # narrow, at the nearer bound
        (0.034, 0.017, 0.99999, (0.0, 1.0), True),  # spans the distance to the farther bound
        (0.034, 0.017, 0.98, (0.0, 1.0), False),
        (-0.4, -0.43, 1.57, (-1.0, 1.0), True),
        (0.3, -1.2, 0.9, (-INF, 1.0), False),
        (1400.0, -1206.0, 2548.0, (0.0, INF), True),
        (1400.0, 1e-9, 2548.0, (0.0, INF), False),
        (5.0, 1.0, INF, (0.0, INF), False),  # no bound there
        (1.0, 1.0, 1.0, (0.0, 1.0), False),  # exact
        (0.5, np.nan, np.nan, (0.0, 1.0), False),
        (5.0, -1e9, 1e9, (-INF, INF), False),
    ],
)
def test_an_interval_reaches_a_bound(
    value: float, lo: float, hi: float, bounds: tuple[float, float], is_withheld: bool
) -> None:
    assert bool(reaches_bound(np.array(value), np.array(lo), np.array(hi), bounds)) == is_withheld


def test_an_interval_beyond_its_estimate_is_judged_by_its_ends_alone() -> None:
    assert not reaches_bound(np.array(1.0), np.array(1e-6), np.array(1e-4), (0.0, 1.0)), "bias is another rule's reason"
