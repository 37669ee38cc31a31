"""Stages that end once enough answers are named."""

import contextlib
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.training import loop
from bayesgeom.training.loop import Pace, named_share, train
from bayesgeom.training.recipes import Recipe, chained
from bayesgeom.training.state import LOG

QUIET = Pace(quiet=True)
FEW = AssociativeRecall(n_pairs=1, n_keys=4, n_values=4, n_queries=2, n_filler=0)
SIZES = {"architecture": "transformer", "n_layers": 1, "n_heads": 1, "d_model": 8, "d_mlp": 8, "positions": "rotary"}
EVERY = 3
TINY = Recipe(
    name="tiny", task=FEW, sizes=SIZES, steps=4 * EVERY, warmup=3, batch_size=4, late_batch_size=4, snapshots=0
)


@pytest.fixture(autouse=True)
def _checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CHECK_EVERY", EVERY)


def steps_of(out: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (out / LOG).read_text().splitlines()]


def test_a_stage_ends_once_enough_answers_are_named(tmp_path: Path) -> None:
    ended = train(replace(TINY, until=0.0), tmp_path / "ended", pace=QUIET).state_dict()
    assert steps_of(tmp_path / "ended") == [EVERY]
    with pytest.warns(UserWarning, match=r"tiny ended after 12 steps with 0\.\d+ of the answers named; until is 1\.0"):
        train(replace(TINY, until=1.0), tmp_path / "whole", pace=QUIET)
    assert steps_of(tmp_path / "whole")[-1] == TINY.steps
    again = train(replace(TINY, until=0.0), tmp_path / "ended", resume=True, pace=QUIET).state_dict()
    assert all(torch.equal(ended[name], again[name]) for name in ended)


@pytest.mark.parametrize("until", [0.0, 1.0, None])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("writes", ["save_state", "save_checkpoint"])
def test_a_run_that_is_killed_at_one_of_its_last_writes_ends_with_the_same_files(
    until: float | None, is_after: bool, writes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(TINY, until=until)
    expects = pytest.warns(UserWarning, match="tiny ended") if until == 1.0 else contextlib.nullcontext()
    with expects:
        train(recipe, tmp_path / "whole", pace=QUIET)
    written = getattr(loop, writes)

    def killed(*args: Any, **given: Any) -> None:
        if is_after:
            written(*args, **given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, writes, killed)  # with this pace, it writes its state only once
        train(recipe, tmp_path / "killed", pace=QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # after the last state, there is nothing to warn of
        train(recipe, tmp_path / "killed", resume=True, pace=QUIET)
    assert files_in(tmp_path / "killed") == files_in(tmp_path / "whole")


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_curriculum_goes_on_with_more_pairs(tmp_path: Path) -> None:
    room = {**SIZES, "n_ctx": 30}
    first = replace(TINY, name="one", sizes=room, until=0.0)
    last = replace(TINY, name="two", task=replace(FEW, n_pairs=2), sizes=room, steps=7, warmup=1)
    train(chained([first, last]), tmp_path / "run", pace=QUIET)
    assert steps_of(tmp_path / "run" / "before") == [EVERY] and steps_of(tmp_path / "run") == [7]


def test_the_share_counts_positions_with_a_single_most_probable_answer() -> None:
    trials = FEW.sample(400, seed=1)
    exact = trials.predictive.nan_to_num()
    assert named_share(_Says(exact, FEW), trials) == 1.0
    first = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(exact.shape)
    known = trials.at_scored(exact).flatten(0, 1)
    stored = known[known.amax(dim=1) == 1]  # three values are equally probable for a key that was not stored
    assert named_share(_Says(first, FEW), trials) == pytest.approx(float(stored[:, 0].mean()))
    assert np.isnan(named_share(_Says(exact, FEW), replace(trials, predictive=torch.full_like(exact, 0.25))))


class _Says(nn.Module):
    """Gives these answers."""

    def __init__(self, answers: torch.Tensor, task: AssociativeRecall) -> None:
        super().__init__()
        self.answers, self.task = answers, task

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.full((*tokens.shape, self.task.d_vocab), -1.0)
        logits[..., self.task.n_keys : self.task.n_keys + self.task.n_values] = self.answers.float()
        return logits


@pytest.mark.parametrize("until", [-0.1, 1.1, float("nan")])
def test_only_shares_are_allowed(until: float) -> None:
    with pytest.raises(InvalidArgument, match=r"until must be"):
        replace(TINY, until=until)


def test_it_is_stored() -> None:
    assert replace(TINY, until=0.5).to_dict()["until"] == 0.5 and "until" not in TINY.to_dict()
    assert isinstance(TINY, Recipe)
