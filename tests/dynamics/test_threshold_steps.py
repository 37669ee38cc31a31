import math

import numpy as np

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


def test_the_spacing_of_snapshots_bounds_the_ratio() -> None:
    assert times_later(ThresholdStep(40.0, 20.0), ThresholdStep(10.0, 5.0)) == (4.0, 2.0, 8.0)
