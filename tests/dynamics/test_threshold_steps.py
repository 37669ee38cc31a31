import math

import numpy as np
import pytest

from bayesgeom.dynamics.threshold_steps import NEVER, ThresholdStep, reached, settled, stable, times_later

STEPS = (0, 10, 20, 40, 80)


@pytest.mark.parametrize("counts_last", [True, False])
def test_both_rules_equal_a_search_over_snapshots(rng: np.random.Generator, counts_last: bool) -> None:
    for _ in range(97):
        distance = np.append(1.0, rng.choice([0.0, 0.05, 0.1, 0.3], size=4))
        distance[-1] = 0.0 if counts_last else distance[-1]  # from the last value, or to the last snapshot
        known = STEPS if counts_last else STEPS[:-1]
        stays = [all(d <= 0.1 for d in distance[at : len(known)]) for at in range(len(known))]
        found = settled(STEPS, 7.0 - distance) if counts_last else stable(STEPS, distance)
        if any(stays):
            at = stays.index(True)
            assert found == ThresholdStep(STEPS[at], max(STEPS[at - 1], 1))
        else:
            assert math.isnan(found.step) and found.before == max(known[-1], 1)


def test_reached_is_the_first_time_and_settled_the_last() -> None:
    curve = np.array([1.0, 0.05, 0.5, 0.08, 0.0])
    assert reached(STEPS, curve <= 0.1) == ThresholdStep(10.0, 1.0)
    assert settled(STEPS, curve) == stable(STEPS, curve) == ThresholdStep(40.0, 20.0)


def test_a_curve_may_settle_at_the_last_snapshot_and_is_not_stable_there() -> None:
    curve = np.array([1.0, 0.9, 0.8, 0.7, 0.0])
    assert settled(STEPS, curve) == ThresholdStep(80.0, 40.0)
    found = stable(STEPS, curve)
    assert math.isnan(found.step) and found.before == 40.0


def test_what_holds_from_the_start_or_never_has_no_moment() -> None:
    for holds in ([True] * 5, [False] * 5):
        assert repr(reached(STEPS, np.array(holds))) == repr(NEVER)
    assert repr(stable(STEPS, np.zeros(5))) == repr(settled(STEPS, np.zeros(5))) == repr(NEVER)


def test_the_spacing_of_snapshots_bounds_the_ratio() -> None:
    assert times_later(ThresholdStep(40.0, 20.0), ThresholdStep(10.0, 5.0)) == (4.0, 2.0, 8.0)
