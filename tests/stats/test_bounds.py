"""The rule that an interval stays within the range of its quantity."""

import numpy as np
import pytest

from bayesgeom.stats.bounds import within_bounds

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("value", "lo", "hi", "bounds", "found"),
    [
        (0.9, 0.87, 0.95, (0.0, 1.0), (0.87, 0.95, False)),
        (0.9, 0.87, 1.0, (0.0, 1.0), (0.87, 1.0, True)),
        (0.5, 0.3, 0.995, (0.0, 1.0), (0.3, 0.995, False)),
        (0.5 + 1e-8, 0.004, 0.7, (0.0, 1.0), (0.004, 0.7, False)),  # equally far from both bounds, up to rounding
        (0.02, 0.001, 2.77, (0.0, 1.0), (0.001, 1.0, True)),
        (0.98, 0.9, 0.9999, (0.0, 1.0), (0.9, 0.9999, False)),  # narrow, at the nearer bound
        (0.034, 0.017, 0.99999, (0.0, 1.0), (0.017, 1.0, True)),  # spans the distance to the farther bound
        (0.034, 0.017, 0.98, (0.0, 1.0), (0.017, 0.98, False)),
        (-0.4, -0.43, 1.57, (-1.0, 1.0), (-0.43, 1.0, True)),
        (0.3, -1.2, 0.9, (-INF, 1.0), (-1.2, 0.9, False)),
        (1400.0, -1206.0, 2548.0, (0.0, INF), (0.0, 2548.0, True)),
        (1400.0, 1e-9, 2548.0, (0.0, INF), (1e-9, 2548.0, False)),
        (5.0, 1.0, INF, (0.0, INF), (1.0, INF, False)),  # no bound there
        (1.0, 1.0, 1.0, (0.0, 1.0), (1.0, 1.0, False)),  # exact
        (0.5, NAN, NAN, (0.0, 1.0), (NAN, NAN, False)),
        (5.0, -1e9, 1e9, (-INF, INF), (-1e9, 1e9, False)),
        (1.0, 1e-6, 1e-4, (0.0, 1.0), (1e-6, 1e-4, False)),  # beyond its estimate: bias is another rule's reason
    ],
)
def test_an_interval_ends_at_a_bound(
    value: float, lo: float, hi: float, bounds: tuple[float, float], found: tuple[float, float, bool]
) -> None:
    ends = within_bounds(np.array(value), np.array(lo), np.array(hi), bounds)
    assert [end.item() for end in ends] == pytest.approx(found, nan_ok=True)
