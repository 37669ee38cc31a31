import math

import numpy as np
import pytest

from bayesgeom.dynamics.report import NEVER, ThresholdStep, stable, times_later

STEPS = (0, 10, 20, 40, 80)


def test_stable_is_a_search_over_snapshots(rng: np.random.Generator) -> None:
    for _ in range(97):
        distance = np.append(1.0, rng.choice([0.0, 0.05, 0.1, 0.3], size=4))
        known = STEPS[:-1]
        stays = [all(d <= 0.1 for d in distance[at : len(known)]) for at in range(len(known))]
        found = stable(STEPS, distance)
        if any(stays):
            at = stays.index(True)
            assert found == ThresholdStep(STEPS[at], max(STEPS[at - 1], 1))
        else:
            assert math.isnan(found.step) and found.before == max(known[-1], 1)


def test_the_last_snapshot_does_not_count() -> None:
    found = stable(STEPS, np.array([1.0, 0.9, 0.8, 0.7, 0.0]))
    assert math.isnan(found.step) and found.before == 40.0
    assert repr(stable(STEPS, np.zeros(5))) == repr(NEVER)


@pytest.mark.parametrize(
    ("later", "earlier", "known"),
    [
        (ThresholdStep(40, 20), ThresholdStep(10, 5), (4, 2, 8)),
        (ThresholdStep(10, 1), ThresholdStep(40, 20), (0.25, 0.025, 0.5)),
        (ThresholdStep(math.nan, 40), ThresholdStep(20, 10), (math.nan, 2, math.nan)),
        (ThresholdStep(10, 1), ThresholdStep(math.nan, 40), (math.nan, math.nan, 0.25)),
    ],
)
def test_the_spacing_of_snapshots_bounds_the_ratio(
    later: ThresholdStep, earlier: ThresholdStep, known: tuple[float, ...]
) -> None:
    np.testing.assert_allclose(times_later(later, earlier), known)
