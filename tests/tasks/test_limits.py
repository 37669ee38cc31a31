"""Limits: parameters whose memory or time cannot be afforded are refused with an estimate, before anything is drawn."""

import re
import time
from collections.abc import Callable

import pytest
import torch

from bayesgeom import tasks
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.base import BLOCK, WindTunnel, check_affordable
from bayesgeom.tasks.evidence import BoundEvidence
from bayesgeom.tasks.in_context import BoundInContext

ESTIMATE = r"needs about [\d.e+]+ GB of memory and [\d.e+-]+ minutes to draw one block of sequences \(\d+\)"
TOO_LARGE: dict[str, Callable[[], WindTunnel]] = {
    "hmm, long": lambda: tasks.HMM(length=10**9),
    "hmm, fine": lambda: tasks.HMM(grid=1e-9),
    "bijection": lambda: tasks.Bijection(n_values=1_000, n_pairs=1_000),
    "recall, filler": lambda: tasks.AssociativeRecall(n_filler=10**9),
    "modular-recurrence, wide": lambda: tasks.ModularRecurrence(modulus=10**6),
    "mess3": lambda: tasks.Mess3(length=10**9),
    "sticky-markov": lambda: tasks.StickyMarkov(n_states=1_000),
    "linear-gaussian": lambda: tasks.LinearGaussian(noise=1e-4),
    "evidence": lambda: evidence(ks=(10**9,)),
    "in-context": lambda: in_context(tasks.HMM(length=30_000)),
}


def evidence(ks: tuple[int, ...]) -> BoundEvidence:
    return BoundEvidence(
        n_ids=11,
        prefix=(),
        words=("a",),
        word_ids=(0,),
        labels=("b", "c"),
        label_ids=(1, 2),
        colon_id=3,
        separator_id=4,
        mask_ids=(),
        ks=ks,
        reliability=0.9,
        query="next",
        control="none",
    )


def in_context(task: WindTunnel) -> BoundInContext:
    n = task.d_vocab
    symbols = tuple(f"w{i}" for i in range(n))
    return BoundInContext(task=task, n_ids=n, prefix=(), separator_ids=(), symbols=symbols, symbol_ids=tuple(range(n)))


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_cannot_be_afforded_is_refused_at_once_with_an_estimate(name: str) -> None:
    start = time.monotonic()
    inner = name.replace("in-context", "hmm")  # what is rendered is what costs
    with pytest.raises(InvalidArgument, match=rf"^task '{inner.split(',', maxsplit=1)[0]}' with .*{ESTIMATE}"):
        TOO_LARGE[name]()
    assert time.monotonic() - start < 5


def test_what_was_measured_is_stated_for_the_bijection() -> None:
    """6.5 GB were measured for a block of 128 sequences."""
    with pytest.raises(InvalidArgument) as raised:
        tasks.Bijection(n_values=1_000, n_pairs=1_000)
    found = re.search(r"about ([\d.]+) GB", str(raised.value))
    assert found and float(found[1]) == pytest.approx(6.5, rel=0.3)
    assert "the limits are 4 GB and 10 minutes" in str(raised.value)


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
        lambda: evidence(ks=(10**5,)),
        lambda: in_context(tasks.HMM(length=200)),
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
    ("grid", "message"), [(1e-320, "divide 1"), (float("nan"), "be a number, got nan"), (-0.0, "divide 1")]
)
def test_grids_without_steps_are_refused(grid: float, message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"grid must {message}"):
        tasks.HMM(grid=grid)


def test_more_sequences_than_the_memory_holds_are_refused() -> None:
    for draw in (tasks.HMM().sample, tasks.HMM().sample_pair):
        with pytest.raises(InvalidArgument, match=r"10,000,000 sequences need about .* GB.*this machine has"):
            draw(10**7, seed=0)
    assert len(next(iter(tasks.HMM().stream(10**7, seed=0)))) == BLOCK  # drawn as they are asked for
    with pytest.raises(InvalidArgument, match=r"1,000,000,000,000 sequences need about .* GB.*this machine has"):
        tasks.HMM().stream(10**12, seed=0)  # of which a measurement keeps a number for each position


def test_a_larger_sample_does_not_move_what_is_drawn() -> None:
    task = tasks.Bijection(n_values=5, n_pairs=3)
    n = BLOCK + 3
    plain = task.draw(n, torch.Generator().manual_seed(7))
    assert torch.equal(task.sample(n, seed=7).tokens, plain.tokens)


def test_time_alone_is_refused_too() -> None:
    task = tasks.Bijection(n_values=5, n_pairs=3)
    check_affordable(task, 1.0, on=("n_values",))
    with pytest.raises(
        InvalidArgument, match=r"needs about .* GB of memory and 11.7 minutes to draw one block of sequences \(128\)"
    ):
        check_affordable(task, 1.0, constant_seconds=700, on=("n_values",))
