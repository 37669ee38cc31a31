"""Limits: sizes that cannot be drawn are refused with one sentence."""

from collections.abc import Callable

import pytest
import torch

from bayesgeom import tasks
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.base import BLOCK, WindTunnel

TOO_LARGE: dict[str, Callable[[], WindTunnel]] = {
    "hmm": lambda: tasks.HMM(length=10**9),
    "bijection": lambda: tasks.Bijection(n_values=10**15),
    "recall": lambda: tasks.AssociativeRecall(n_filler=10**9),
    "mess3": lambda: tasks.Mess3(length=10**9),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_too_large_to_draw_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^task '{name}' (has .* positions|cannot be drawn).* lower"):
        TOO_LARGE[name]().sample(1, seed=0)


@pytest.mark.parametrize(
    "made",
    [
        lambda: tasks.HMM(length=10**5),
        lambda: tasks.HMM(grid=1e-5, floor=0.05),
        lambda: tasks.Bijection(n_values=400, n_pairs=400),
        lambda: tasks.AssociativeRecall(n_pairs=256, n_keys=1_024, n_values=1_024, n_queries=16, n_filler=32),
        lambda: tasks.ModularRecurrence(modulus=101, length=64),
        lambda: tasks.StickyMarkov(n_states=64, length=128),
        lambda: tasks.Mess3(length=10**5),
    ],
)
def test_sizes_beyond_the_papers_are_allowed(made: Callable[[], WindTunnel]) -> None:
    assert made().n_pos > 0


@pytest.mark.parametrize("value", [10**30, -(10**5_000)], ids=["30", "-5000"])
def test_whole_numbers_beyond_64_bits_are_refused_without_printing_them(value: int) -> None:
    with pytest.raises(InvalidArgument, match=r"length must be an integer below 2\^63, got one of \d+ bits") as raised:
        tasks.HMM(length=value)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("grid", "message"), [(1e-320, "divide 1"), (float("nan"), "be float, got nan"), (-0.0, "divide 1")]
)
def test_grids_without_steps_are_refused(grid: float, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"grid must {message}"):
        tasks.HMM(grid=grid)


def test_a_larger_sample_does_not_move_what_is_drawn() -> None:
    task = tasks.Bijection(n_values=5, n_pairs=3)
    n = BLOCK + 3
    plain = task.draw(n, torch.Generator().manual_seed(7))
    assert torch.equal(task.sample(n, seed=7).tokens, plain.tokens)
