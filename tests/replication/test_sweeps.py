"""The sweeps: their cells, what each row states, and what an interrupted sweep leaves out."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bayesgeom.core import Trials
from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.executors import Batch
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.scorecards.cell import named_scores
from bayesgeom.training.recipes import Recipe
from examples.replication import sweeps


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table that small sweeps fill, in this process."""

    @contextmanager
    def executor() -> Iterator[Batch]:
        with ThreadPoolExecutor(1) as pool:
            yield Batch(executor=pool, folder=tmp_path / "jobs")

    small = {"POOLS": (2, 3), "SYMBOLS": 2, "LENGTH": 5, "PAIRS": (1, 2), "BEYOND": (3,), "KEYS": 5, "N_HELD_OUT": 16}
    for name, value in {**small, "CHECK_EVERY": 1, "WIDTHS": (64, 16), "DEPTHS": (1, 2), "LENGTHS": (3,)}.items():
        monkeypatch.setattr(sweeps, name, value)
    for name, names in {"RATES": (1e-3, 2e-3), "COMPARED": ("transformer", "lstm"), "LONGEST": 41}.items():
        monkeypatch.setattr(sweeps, name, names)
    monkeypatch.setattr(sweeps, "sweep", partial(sweeps.sweep, machines=SimpleNamespace(executor=executor)))
    return tmp_path / "sweeps.csv"


def test_a_sweep_continues_where_it_stopped(table: Path) -> None:
    sweeps.sweep("pools", steps=2, only=("3",), table=table)
    first = sweeps.read(table)
    sweeps.sweep("pools", steps=2, table=table)
    found = sweeps.read(table)
    assert str(found[: len(first)]) == str(first) and [row.setting for row in found] == ["pool 3"] * 9 + ["pool 2"] * 9
    measured = [row for row in found if row.quantity != "parameters"]
    assert {(row.at, row.quantity) for row in measured} == {
        (at, f"kl_to_{observer}") for at in ("pool", "fresh") for observer in ("memorizing", "generalizing")
    }
    assert {row.step for row in measured} == {0, 2}
    assert all(row.value > 0 and (math.isnan(row.lower) or row.lower < row.value < row.upper) for row in measured)


def test_stages_end_once_the_values_are_named(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "NAMED", 0.0)
    sweeps.sweep("capacity", steps=3, table=table)
    found = sweeps.read(table)
    cells = {(row.architecture, row.lr) for row in found}
    assert cells == {(name, lr) for name in ("transformer", "lstm") for lr in (1e-3, 2e-3)}
    assert {row.step for row in found if row.at} == {0}  # nothing to learn: no stage takes a step
    assert {row.at for row in found} == {
        "",
        "1 pairs",
        "2 pairs",
        "3 pairs",
        *(f"{n} pairs, trained to {n}" for n in (1, 2)),
    }
    sizes = [row.value for row in found if row.quantity == "parameters"]
    assert max(sizes) <= 1.02 * min(sizes)


def test_a_stage_that_is_not_learned_ends_the_training(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "NAMED", 2.0)
    sweeps.sweep("capacity", steps=2, only=("lstm",), table=table)
    found = sweeps.read(table)
    assert not any(row.at == "2 pairs, trained to 2" for row in found) and max(row.step for row in found) == 2


def test_a_trained_network_is_measured_at_each_number_of_pairs(table: Path, tmp_path: Path) -> None:
    sizes = {"architecture": "transformer", "n_layers": 1, "n_heads": 1, "d_model": 8, "d_mlp": 8}
    recipe = Recipe(name="tiny", task=sweeps.recall(2), sizes=sizes, lr=0.5)
    config = recipe.model_config()
    for name, own in (("fits", recipe), ("other", replace(recipe, task=replace(sweeps.recall(2), n_values=6)))):
        module = own.model_config().build(seed=0)
        save_checkpoint(tmp_path / name, module, own.model_config(), recipe=own.to_dict(), step=0, card="")
    sweeps.capacity(str(tmp_path / "fits"), table=table)
    found = sweeps.read(table)
    assert {row.at for row in found} == {"", "1 pairs", "2 pairs", "3 pairs"}
    assert {(row.architecture, row.setting, row.lr) for row in found} == {("transformer", "5 keys, tiny", 0.5)}
    assert found[0].value == sum(p.numel() for p in config.build(seed=0).parameters())
    with pytest.raises(InvalidArgument, match=r"other was trained on AssociativeRecall\(.*n_values=6.*this measures"):
        sweeps.capacity(str(tmp_path / "other"), table=table)


def test_the_depths_have_equal_parameters(table: Path) -> None:
    sweeps.sweep("depth", steps=1, table=table)
    found = sweeps.read(table)
    assert [row.setting for row in found if row.at] == ["depth 1 length 3", "depth 2 length 3"]
    sizes = [row.value for row in found if row.quantity == "parameters"]
    assert len(sizes) == 2 and max(sizes) <= 1.02 * min(sizes)


def test_each_process_of_a_mixture_is_measured_alone(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact answers, but for the first of both symbols, which is uniform: only its own KL is left."""

    def answers(_: nn.Module, trials: Trials) -> torch.Tensor:
        joint = trials.at_scored(trials.predictive).unflatten(-1, (3, 2))
        return (joint.sum(-2, keepdim=True) / 3).expand_as(joint).flatten(-2).log()

    monkeypatch.setattr(sweeps, "_answers", answers)
    sweeps.sweep("mixed", steps=1, only=("both",), table=table)
    found = {(row.setting, row.at): row.value for row in sweeps.read(table) if row.quantity == "kl_bits"}
    assert found["both", "second"] == pytest.approx(0, abs=1e-12)
    assert found["both", "first"] == pytest.approx(found["both", "both"]) and found["both", "first"] > 0.01


def test_cells_that_do_not_exist_are_refused(table: Path) -> None:
    with pytest.raises(UnknownName, match=r"no cell of pools named '4'\. There are: .*3"):
        sweeps.sweep("pools", only=("4",), table=table)


def test_only_stored_values_count(table: Path) -> None:
    trials = sweeps.recall(2).sample(64, seed=0)
    exact = trials.at_scored(trials.predictive)
    assert bool((named_scores(_Says(trials.predictive.nan_to_num()), trials)[1] == 1).all())
    is_stored = exact.amax(2) > 0.99
    says = _Says(torch.eye(sweeps.KEYS)[0].expand(64, trials.tokens.shape[1], -1))
    _, always_first = named_scores(says, trials)
    first = ((exact.argmax(2) == 0) & is_stored).sum(1).double() / is_stored.sum(1)
    assert always_first == pytest.approx(first[is_stored.any(1)].numpy())


class _Says(nn.Module):
    """Gives these probabilities of the values."""

    def __init__(self, answers: torch.Tensor) -> None:
        super().__init__()
        self.answers = answers

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.full((*tokens.shape, 2 * sweeps.KEYS + 10), -1.0)
        logits[..., sweeps.KEYS : 2 * sweeps.KEYS] = self.answers.float()
        return logits
