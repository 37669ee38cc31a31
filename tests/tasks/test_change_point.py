"""Change points: the recursion over run lengths equals the sum over all sets of changes."""

import itertools

import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.change_point import ChangePoint

TASK = ChangePoint(n_symbols=3, hazard=0.3, concentration=0.7, length=5)


def joint(symbols: list[int], changes: tuple[bool, ...]) -> float:
    """Probability of symbols and of these changes before each symbol but the first."""
    p, counts = 1.0, [TASK.concentration] * TASK.n_symbols
    for step, symbol in enumerate(symbols):
        if step:
            p *= TASK.hazard if changes[step - 1] else 1 - TASK.hazard
            if changes[step - 1]:
                counts = [TASK.concentration] * TASK.n_symbols
        p *= counts[symbol] / sum(counts)
        counts[symbol] += 1
    return p


def total(symbols: list[int]) -> float:
    return sum(joint(symbols, changes) for changes in itertools.product((False, True), repeat=len(symbols) - 1))


def test_predictive_and_run_length_equal_the_sum_over_changes() -> None:
    trials = TASK.sample(7, seed=1)
    for row, step in itertools.product(range(7), range(5)):
        seen = trials.tokens[row, : step + 1].tolist()
        exact = torch.tensor([total([*seen, symbol]) / total(seen) for symbol in range(3)], dtype=torch.float64)
        torch.testing.assert_close(trials.predictive[row, step], exact, atol=1e-12, rtol=0)
        for run in range(1, step + 2):
            since = [c for c in itertools.product((False, True), repeat=step) if _run(c) == run]
            share = sum(joint(seen, changes) for changes in since) / total(seen)
            assert float(trials.belief[row, step, run - 1]) == pytest.approx(share, abs=1e-12)
    expected = (trials.belief * torch.arange(1, 6)).sum(dim=2)
    torch.testing.assert_close(trials.statistics["run_length"], expected)


def _run(changes: tuple[bool, ...]) -> int:
    """Length of the run that is under way after these changes."""
    return next((back for back, change in enumerate(reversed(changes), 1) if change), len(changes) + 1)


def test_a_window_is_exact_for_what_it_sees() -> None:
    trials = TASK.sample(11, seed=2)
    windowed = TASK.baseline_predictives(trials)["window_2"]
    for row in range(11):
        seen = trials.tokens[row, 2:4].tolist()
        exact = torch.tensor([total([*seen, symbol]) / total(seen) for symbol in range(3)], dtype=torch.float64)
        torch.testing.assert_close(windowed[row, 3], exact, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "given", [{"hazard": 0.0}, {"hazard": 1.0}, {"concentration": 0.0}, {"concentration": 1e308}, {"n_symbols": 1}]
)
def test_parameters_out_of_range_are_named(given: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        ChangePoint(**given)  # type: ignore[arg-type]
