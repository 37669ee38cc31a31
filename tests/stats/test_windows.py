"""Equivalent window: planted window observers have their own width, the exact filter the whole sequence."""

import math

import numpy as np
import pytest
import torch

from bayesgeom.core.observers import STARTS
from bayesgeom.core.run import Trials, WindowScores
from bayesgeom.stats import windows
from bayesgeom.stats.behavior import BehaviorLog, predicted_behavior
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.windows import (
    END_LEVEL,
    TRANSPORT_BITS,
    EquivalentWindow,
    equivalent_window,
    joined,
    wider_window,
    window_predictives,
    window_scores,
    windows_beyond_own,
)
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM, SLOW
from bayesgeom.tasks.markov import DynamicTask
from bayesgeom.tasks.process import Mess3

SLOW_TRIALS = SLOW.sample(211, seed=1)
FAST_TRIALS = HMM().sample(211, seed=1)


def window_of(trials: Trials, text: torch.Tensor) -> EquivalentWindow:
    scores = window_scores(trials)
    assert scores is not None
    return equivalent_window(scores, predicted_behavior(trials, text).kl_bits, seed=0)


def window(trials: Trials, w: int, start: str = "stationary") -> torch.Tensor:
    return [*window_predictives(trials, start)][w]


def planted_scores(kl_bits: np.ndarray) -> WindowScores:
    """Return scores of window observers with these errors; errors by position are not used here."""
    along = np.zeros((2, kl_bits.shape[1], 5))
    return WindowScores(kl_bits=kl_bits, kl_bits_by_position=along, entropy_error_bits=along)


def widest_beaten(found: EquivalentWindow) -> int:
    """The widest window observer that the model beats, of any width; −1 if it beats none: another definition."""
    return int(np.flatnonzero(found.is_beaten).max(initial=-1))


@pytest.mark.parametrize("w", [0, 1, 2, 3, 5, 11, 23])
def test_a_planted_window_observer_has_its_own_width(w: int) -> None:
    found = window_of(SLOW_TRIALS, window(SLOW_TRIALS, w))
    assert (found.symbols, found.most_symbols) == (w, w)
    assert found.gain_bits[w] == pytest.approx(0, abs=1e-12) and (w == 0 or found.gain_ends[0][w - 1] > 0)
    assert widest_beaten(found) == w - 1, "the definition as the widest observer that is beaten gives one less"


@pytest.mark.parametrize(
    ("beaten", "symbols", "widest"),
    [
        ((0, 1, 2), 3, 2),  # in order: one apart
        ((), 0, -1),  # not even the prior
        ((0, 1, 3, 4), 2, 4),  # a width that is not beaten, then wider ones that are
        ((1, 2), 0, 2),
        (tuple(range(6)), 7, 5),  # every observer that differs from the posterior: the whole sequence
    ],
)
def test_memory_ends_at_the_first_width_that_is_not_beaten(
    beaten: tuple[int, ...], symbols: int, widest: int, rng: np.random.Generator
) -> None:
    """Observers of width 0 to 5 differ from the posterior; those of 6 and 7 symbols are exact."""
    n, own = 101, 0.1 + 0.01 * rng.random(101)
    kl_bits = np.zeros((2, 8, n))
    for w in range(6):
        kl_bits[:, w] = own + (0.05 if w in beaten else -0.05) + 0.01 * rng.normal(size=n)
    found = equivalent_window(planted_scores(kl_bits), own[:, None], seed=0)
    assert (found.symbols, found.most_symbols, widest_beaten(found)) == (symbols, symbols, widest)
    assert tuple(np.flatnonzero(found.is_beaten)) == beaten
    assert found.symbols <= widest_beaten(found) + 1 or found.symbols == found.length


def test_a_width_without_an_interval_is_not_counted_as_beaten() -> None:
    """The gain over the window of three is undecided (below); wider ones are worse than this model nowhere."""
    scores = window_scores(SLOW_TRIALS)
    assert scores is not None
    own = scores.kl_bits[STARTS.index("stationary"), 3].copy()
    own[:5] += 0.1
    found = equivalent_window(scores, own[:, None], seed=0)
    assert math.isnan(found.symbols) and widest_beaten(found) == 2 and not found.is_beaten[3]


def test_the_exact_filter_mixed_with_uniform_uses_all_symbols_and_has_a_short_window() -> None:
    """The equivalent window is an accuracy: a fifth of uniform costs as much as all but seven symbols."""
    trials = SLOW.sample(512, seed=0)
    exact = trials.at_scored(trials.predictive)
    found = window_of(trials, 0.8 * exact + 0.2 / exact.shape[-1])
    assert (found.symbols, widest_beaten(found)) == (7, 6)


def test_the_exact_filter_beats_every_window() -> None:
    for trials, length in ((SLOW_TRIALS, 64), (FAST_TRIALS, 20)):
        found = window_of(trials, trials.at_scored(trials.predictive))
        assert (found.symbols, found.most_symbols, found.length) == (length, length, length)


def test_ten_symbols_are_enough_for_the_fast_task_only() -> None:
    slow, fast = (window_of(trials, trials.at_scored(trials.predictive)) for trials in (SLOW_TRIALS, FAST_TRIALS))
    assert slow.transport_gap_bits > TRANSPORT_BITS and fast.transport_gap_bits < 1e-5
    short = window_of(
        trials := HMM(length=7, floor=0.01, stay=0.9).sample(53, seed=0), trials.at_scored(trials.predictive)
    )
    assert short.transport_gap_bits == 0, "ten symbols are the whole sequence"


@pytest.mark.exhaustive
def test_an_end_near_zero_does_not_depend_on_the_seed_of_the_resamples(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upper end of the gain over the third window is above 0 by the error of one set of 1,000 resamples."""
    n, own = 61, np.full(61, 0.1)
    noise = 0.02 * rng.normal(size=n)
    kl_bits = np.stack([np.zeros((2, n)) + own + gain + noise for gain in (0.05, 0.03, 0.0, -0.05, -0.2)], axis=1)
    level = np.mean([mean_interval(kl_bits[0, 2] - own, seed=seed, level=END_LEVEL).hi for seed in range(40)])
    kl_bits[:, 2] += 0.00018 - level
    found = {}
    for sets in (1, 16):
        monkeypatch.setattr(windows, "_SETS", sets)
        scores = planted_scores(kl_bits)
        found[sets] = {equivalent_window(scores, own[:, None], seed=seed).most_symbols for seed in range(11)}
    assert found == {1: {2.0, 3.0}, 16: {3.0}}


@pytest.mark.slow
def test_noise_seldom_widens_the_window(rng: np.random.Generator) -> None:
    """A predictor as good as the window of 2 on average must not be given 3 symbols more often than its level says."""
    n, draws, longer = 101, 200, 0
    observer = rng.gamma(0.5, size=(6, n)) * np.array([9, 7, 5, 3, 2, 0])[:, None] / 100
    for draw in range(draws):
        own = rng.gamma(0.5, size=n) * 5 / 100  # the distribution of width 2, independent of it
        mixed = planted_scores(np.stack([observer * 2, observer]))
        mixed.kl_bits[1, 2] = rng.gamma(0.5, size=n) * 5 / 100
        mixed.kl_bits[0, 2] = 1.0
        longer += equivalent_window(mixed, own[:, None], seed=draw).symbols > 2
    assert longer / draws < 0.07


def test_without_latent_dynamics_there_is_nothing_to_score() -> None:
    assert window_scores(Bijection(n_values=5, n_pairs=3).sample(2, seed=0)) is None and joined([]) is None


def test_a_log_scores_the_windows_of_all_blocks() -> None:
    task: DynamicTask = Mess3(length=7)
    trials, log = task.sample(11, seed=2), BehaviorLog()
    for rows in (slice(0, 4), slice(4, 11)):
        block = trials.rows(rows)
        exact = block.at_scored(block.predictive)
        log.add(block, exact.log(), torch.zeros_like(exact[..., 0]), task.baseline_predictives(block))
    whole, logged = window_scores(trials), log.windows()
    assert whole is not None and logged is not None
    np.testing.assert_allclose(logged.kl_bits, whole.kl_bits, atol=1e-12)
    np.testing.assert_allclose(logged.kl_bits_by_position, whole.kl_bits_by_position, atol=1e-12)
    np.testing.assert_allclose(logged.entropy_error_bits, whole.entropy_error_bits, atol=1e-12)


@pytest.mark.parametrize(
    "task", [Mess3(length=7), HMM(n_states=3, n_symbols=2, length=13, floor=0.01, stay=0.9)], ids=str
)
def test_errors_of_windows_by_position_are_those_of_their_predictives(task: DynamicTask) -> None:
    trials = task.sample(11, seed=2)
    scores, widest = window_scores(trials), min(10, trials.n_scored)
    assert scores is not None and scores.entropy_error_bits.shape == (len(STARTS), widest + 1, trials.n_scored)
    np.testing.assert_allclose(scores.kl_bits_by_position.mean(axis=2), scores.kl_bits.mean(axis=2)[:, : widest + 1])
    for start, name in enumerate(STARTS):
        for width in range(widest + 1):
            own = predicted_behavior(trials, task.window_predictives(trials, width, name))
            expected = np.abs(own.model_entropy_bits - own.exact_entropy_bits).mean(axis=0)
            np.testing.assert_allclose(scores.entropy_error_bits[start, width], expected, atol=1e-6)
            np.testing.assert_allclose(scores.kl_bits_by_position[start, width], own.kl_bits.mean(axis=0), atol=1e-6)
    assert scores.entropy_error_bits[1, 3].max() > 1e-3


@pytest.mark.parametrize(
    ("symbols", "width"),
    [(4.0, None), (5.0, 5), (12.0, 10), (17.0, 10), (math.nan, 10)],  # the fourth is the exact filter
)
def test_up_to_ten_symbols_are_baselines_and_a_wider_window_is_named(symbols: float, width: int | None) -> None:
    kl_bits = np.stack([np.linspace(1.8, 0.1, 18), np.linspace(1.7, 0.0, 18)])
    found = wider_window(kl_bits, symbols)
    assert found == (None if width is None else (STARTS.index("stationary"), width))


def test_curves_are_compared_with_every_window_of_up_to_ten_symbols() -> None:
    """All wider than a task's own, from the better start; the one that decides is among them."""
    kl_bits = np.stack([np.linspace(1.8, 0.1, 18), np.linspace(1.7, 0.0, 18)])
    kl_bits[0, 7] = 0.01
    found = windows_beyond_own(kl_bits)
    assert found == tuple((0 if width == 7 else 1, width) for width in range(5, 11))
    assert all(wider_window(kl_bits, float(symbols)) in found for symbols in range(5, 19))
    near = np.geomspace(1, 1e-9, 12)[None].repeat(2, axis=0)  # that of eight symbols is below 1e-6 bits
    assert [width for _, width in windows_beyond_own(near)] == [5, 6, 7]
