"""Threads that use one model at the same time get the numbers that each would get alone."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from torch import nn

import bayesgeom
from bayesgeom.core.run import RESID_POST
from bayesgeom.models.base import Model
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.resolve import as_model
from bayesgeom.tasks.bijection import Bijection

TASK = Bijection(n_values=5, n_pairs=3)
SIZES = {"d_vocab": 10, "n_ctx": 5, "n_layers": 2, "d_model": 12}
TRANSFORMER = {"architecture": "transformer", **SIZES, "n_heads": 3, "d_mlp": 13}
LLAMA = {"architecture": "llama", **SIZES, "n_heads": 3, "n_kv_heads": 3, "d_mlp": 13}
RWKV = {"architecture": "rwkv", **SIZES, "d_mlp": 13}
LSTM = {"architecture": "lstm", **SIZES}
PATIENCE = 0.3
A = TypeVar("A")
B = TypeVar("B")


def made(sizes: dict[str, object]) -> Model:
    return as_model(config_from_dict(sizes).build(seed=1))


def both(one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
    """Run two calls in two threads and return what each returns."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(one), pool.submit(other)
        return first.result(60), second.result(60)


class Meeting:
    """Makes two threads meet inside a pass: each forward of a part waits, for a while, until another one comes."""

    def __init__(self, part: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        self.barrier = threading.Barrier(2)
        self.n_met = 0
        plain = part.forward

        def forward(*args: object, **kwargs: object) -> object:
            try:
                self.barrier.wait(PATIENCE)
                self.n_met += 1
            except threading.BrokenBarrierError:
                self.barrier.reset()
            return plain(*args, **kwargs)

        monkeypatch.setattr(part, "forward", forward)


@pytest.mark.parametrize("sizes", [TRANSFORMER, LLAMA, LSTM], ids=lambda sizes: sizes["architecture"])
def test_two_threads_that_meet_in_a_pass_record_what_each_records_alone(
    sizes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(sizes)
    blocks = {seed: [TASK.sample(7, seed=seed)] for seed in (0, 1)}

    def run(seed: int) -> dict[str, torch.Tensor]:
        found = model.run(blocks[seed], record=[RESID_POST], n_recorded=7)
        return {"recorded": found.recorded[RESID_POST], "log_answers": found.log_answers}

    alone = [run(seed) for seed in (0, 1)]
    Meeting(next(part for part in model.module.modules() if isinstance(part, nn.Embedding)), monkeypatch)
    together = both(lambda: run(0), lambda: run(1))
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_diagnoses_in_two_threads_equal_diagnoses_one_after_another() -> None:
    model = made(TRANSFORMER)

    def diagnosed(seed: int) -> str:
        found = bayesgeom.diagnose(model, TASK, n=20, n_untrained=1, seed=seed, probes=["calibration", "key_overlap"])
        return str(found.to_pandas().to_csv())

    alone = [diagnosed(seed) for seed in (0, 1)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(diagnosed, [0, 1, 0, 1]))
    assert together == [*alone, *alone]


@pytest.mark.parametrize("sizes", [RWKV, TRANSFORMER], ids=lambda sizes: sizes["architecture"])
def test_weights_that_two_threads_draw_are_those_of_their_seeds(sizes: dict[str, object]) -> None:
    config = config_from_dict(sizes)
    alone = [config.build(seed=seed).state_dict() for seed in range(8)]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        together = [module.state_dict() for module in pool.map(lambda seed: config.build(seed=seed), range(8))]
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(state, torch.get_rng_state()) and torch.get_default_dtype() == torch.float32
