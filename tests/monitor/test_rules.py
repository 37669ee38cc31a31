"""Thresholds and degeneration: what trips them, and that noise does not."""

import numpy as np
import pytest

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.monitor.rules import BLOCK, Event, RisingKL, Rules, Side, Thresholds

GOOD = {"key_orthogonality": 0.95, "coverage": 0.9, "separation": 0.8, "kl_bits": 0.001, "attention_entropy_bits": 1.0}
CHANCE = {"key_orthogonality": 0.82, "coverage": 0.98, "kl_bits": 1.1}
N = 16


def spread(kl: float, rng: np.random.Generator) -> np.ndarray:
    """KL of sequences about a mean: they differ, and are the same sequences every time."""
    own = np.random.default_rng(7).lognormal(0, 0.5, size=N)
    return kl * own / own.mean() * rng.lognormal(0, 0.05, size=N)


def first_alarm(levels: np.ndarray, seed: int = 0) -> int | None:
    rng, rule = np.random.default_rng(seed), RisingKL(least_bits=1e-3)
    return next((i for i, level in enumerate(levels) if rule.update(spread(level, rng))), None)


@pytest.mark.parametrize("seed", range(2))
def test_a_noisy_training_that_goes_down_never_alarms(seed: int) -> None:
    steps = np.arange(1_000)
    levels = 2 * np.exp(-steps / 150).clip(0.002) * np.random.default_rng(seed).lognormal(0, 0.3, size=1_000)
    assert first_alarm(levels, seed) is None


@pytest.mark.parametrize(("jitter", "within"), [(0.05, BLOCK), (0.3, 2 * BLOCK)])
@pytest.mark.parametrize("seed", range(3))
def test_a_lasting_rise_alarms_soon(jitter: float, within: int, seed: int) -> None:
    noise = np.random.default_rng(seed).lognormal(0, jitter, size=160)
    levels = np.where(np.arange(160) < 100, 0.01, 0.1) * noise
    found = first_alarm(levels, seed)
    assert found is not None and 100 <= found < 100 + within


def test_one_spike_does_not_alarm() -> None:
    levels = np.full(100, 0.01)
    levels[[40, 41, 70]] = 5.0
    assert first_alarm(levels) is None


def test_a_rise_that_is_too_small_to_matter_does_not_alarm() -> None:
    assert first_alarm(np.where(np.arange(100) < 50, 1e-6, 1e-5)) is None


def test_a_rise_of_a_few_sequences_does_not_alarm() -> None:
    """One of sixteen is lost: the mean is up tenfold, the paired error over sequences says that it may be chance."""
    rule, base = RisingKL(least_bits=1e-3), np.full(N, 0.01)
    lost = base.copy()
    lost[3] = 1.5
    assert not any(rule.update(base if i < 30 else lost) for i in range(60))


def test_a_side_changes_after_two_in_a_row() -> None:
    side = Side()
    moved = [side.moved(is_good) for is_good in (True, False, True, True, False, True, False, False)]
    assert moved == [False, False, False, True, False, False, False, True]


def events(values: list[float], metric: str = "key_orthogonality") -> list[Event]:
    rules, kl = Rules(Thresholds()), np.full(N, 0.001)
    return [
        e
        for i, v in enumerate(values)
        for e in rules.update(10 * i, GOOD | {metric: v}, kl, CHANCE)
        if e.metric == metric
    ]


def test_thresholds_reached_and_lost_are_reported_with_their_chance_level() -> None:
    found = events([0.5, 0.95, 0.95, 0.95, 0.8, 0.8, 0.95])
    assert [(e.step, e.kind, e.is_warning) for e in found if e.kind != "degenerated"] == [
        (20, "reached", False),
        (50, "lost", True),
    ]
    assert str(found[0]) == "step 20: key_orthogonality reached (0.95; threshold 0.9, chance 0.82)"


def test_a_frame_degenerates_only_after_it_was_there() -> None:
    assert not [e for e in events([0.5] * 6) if e.kind == "degenerated"]
    found = [e for e in events([0.95] * 3 + [0.6] * 4 + [0.95] * 2 + [0.6] * 2) if e.kind == "degenerated"]
    assert [e.step for e in found] == [40, 100]  # confirmed by a second measurement; once per fall
    assert found[0].threshold == 0.7


def test_health_is_about_the_marks_that_are_acted_on() -> None:
    rules, kl = Rules(Thresholds()), np.full(N, 0.001)
    for i, value in enumerate([0.95] * 3 + [0.5] * 2):
        rules.update(i, GOOD | {"key_orthogonality": value}, kl, CHANCE)
    assert rules.is_healthy(kl, frozenset({"kl_bits"}))
    assert not rules.is_healthy(kl, frozenset({"key_orthogonality"}))
    assert not rules.is_healthy(2 * kl, frozenset({"kl_bits"}))  # not marked, and no state to go back to either


def rollbacks(values: list[float], metric: str) -> list[tuple[int, int]]:
    """The step of every fall of a metric, and the step of the good state that a rollback then restores."""
    rules, kept, found = Rules(Thresholds()), -1, list[tuple[int, int]]()
    for step, value in enumerate(values):
        summary = GOOD | {metric: value}
        kl = spread(summary["kl_bits"], np.random.default_rng(step))
        if any(e.kind == "degenerated" for e in rules.update(step, summary, kl, CHANCE)):
            rules.put_back()
            found.append((step, kept))
        elif rules.is_healthy(kl, frozenset({metric})):
            rules.keep()
            kept = step
    return found


@pytest.mark.parametrize("n_good", [3, 12])
@pytest.mark.parametrize(("metric", "good", "bad"), [("key_orthogonality", 0.95, 0.5), ("kl_bits", 0.001, 1.0)])
def test_every_fall_goes_back_to_a_good_state(metric: str, good: float, bad: float, n_good: int) -> None:
    """A fall is an event after several bad measurements: none of them is stored, and a second fall is an event too."""
    values = [good] * n_good + [bad] * 6 + [good] * 6 + [bad] * 6
    found = rollbacks(values, metric)
    assert found[0][1] == n_good - 1 and found[-1][0] > n_good + 12
    assert [values[kept] for _, kept in found] == [good] * len(found)


def test_after_an_early_rollback_a_higher_kl_is_not_good() -> None:
    """Before five measurements there is no best level: the KL of the good state is the reference then."""
    rules, kl = Rules(Thresholds()), np.full(N, 0.001)
    for step, orthogonality in enumerate((0.95, 0.95, 0.5, 0.5)):
        rules.update(step, GOOD | {"key_orthogonality": orthogonality}, kl, CHANCE)
        if rules.is_healthy(kl, frozenset({"key_orthogonality"})):
            rules.keep()
    rules.put_back()
    rules.update(4, GOOD, 1_000 * kl, CHANCE)
    assert not rules.is_healthy(1_000 * kl, frozenset({"key_orthogonality"}))
    rules.update(5, GOOD, kl, CHANCE)
    rules.put_back()
    assert rules.is_healthy(kl, frozenset({"key_orthogonality"}))


def test_unknown_orthogonality_is_not_stored_as_good() -> None:
    rules, kl = Rules(Thresholds()), np.full(N, 0.001)
    for i, value in enumerate([0.95, 0.95, np.nan]):
        rules.update(i, GOOD | {"key_orthogonality": value}, kl, CHANCE)
    assert not rules.is_healthy(kl, frozenset({"key_orthogonality"}))
    assert rules.is_healthy(kl, frozenset({"kl_bits"}))


def test_thresholds_that_cannot_be_are_refused() -> None:
    for changes in ({"kl_bits": 0.0}, {"coverage": float("inf")}):
        with pytest.raises(InvalidArgument, match="finite numbers"):
            Thresholds(**changes)
    with pytest.raises(InvalidArgument, match=r"coverage must be .*float.*, got nan"):
        Thresholds(coverage=float("nan"))
