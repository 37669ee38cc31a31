"""Stages that end once enough answers are named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.training.loop import CHECK_EVERY, LOG, Pace, named_share, train
from bayesgeom.training.recipes import Recipe, chained
from tests.dynamics.trainings import a_recipe

QUIET = Pace(quiet=True)
FEW = AssociativeRecall(n_pairs=1, n_keys=4, n_values=4, n_queries=2, n_filler=0)
SIZES = {"architecture": "transformer", "n_layers": 1, "n_heads": 1, "d_model": 8, "d_mlp": 8, "positions": "rotary"}
TINY = a_recipe(name="tiny", task=FEW, steps=4 * CHECK_EVERY, warmup=3, batch_size=4, late_batch_size=4, snapshots=0)


def steps_of(out: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (out / LOG).read_text().splitlines()]


def test_a_stage_ends_once_enough_answers_are_named(tmp_path: Path) -> None:
    ended = train(replace(TINY, until=0.01), tmp_path / "ended", pace=QUIET).state_dict()
    assert steps_of(tmp_path / "ended") == [CHECK_EVERY]
    train(replace(TINY, until=1.0), tmp_path / "whole", pace=QUIET)
    assert steps_of(tmp_path / "whole")[-1] == TINY.steps
    again = train(replace(TINY, until=0.01), tmp_path / "ended", resume=True, pace=QUIET).state_dict()
    assert all(torch.equal(ended[name], again[name]) for name in ended)


def test_a_curriculum_goes_on_with_more_pairs(tmp_path: Path) -> None:
    room = {**SIZES, "n_ctx": 30}
    first = replace(TINY, name="one", sizes=room, until=0.01)
    last = replace(TINY, name="two", task=replace(FEW, n_pairs=2), sizes=room, steps=7, warmup=1)
    train(chained([first, last]), tmp_path / "run", pace=QUIET)
    assert steps_of(tmp_path / "run" / "before") == [CHECK_EVERY] and steps_of(tmp_path / "run") == [7]


def test_the_share_counts_each_of_the_equally_probable_answers() -> None:
    trials = replace(FEW, unstored_share=0.0).sample(50, seed=0)
    assert named_share(_Says(trials.predictive.nan_to_num(), FEW), trials) == 1.0
    others = FEW.sample(400, seed=1)
    share = named_share(_Says(torch.ones(400, FEW.n_pos, 4), FEW), others)  # always the first value
    exact = others.at_scored(others.predictive)
    assert share == pytest.approx(float((exact[..., 0] == exact.amax(dim=2)).double().mean())) and 0.2 < share < 0.6


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
    with pytest.raises(InvalidArgument, match=r"until must be (between 0 and 1|a number)"):
        replace(TINY, until=until)


def test_it_is_stored() -> None:
    assert replace(TINY, until=0.5).to_dict()["until"] == 0.5 and "until" not in TINY.to_dict()
    assert isinstance(TINY, Recipe)
