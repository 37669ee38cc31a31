"""Training on a part of the labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import NO_LABEL, Trials
from bayesgeom.tasks.modular_recurrence import ModularRecurrence
from bayesgeom.training import loop
from bayesgeom.training.loop import Pace, labeled, loss_nats, train
from bayesgeom.training.recipes import Recipe
from tests.dynamics.trainings import a_recipe

QUIET = Pace(quiet=True)
TINY = a_recipe(
    name="tiny",
    task=ModularRecurrence(modulus=3, length=7, opaque=True),
    warmup=3,
    steps=6,
    batch_size=11,
    late_batch_size=11,
    snapshots=0,
    loss_positions=2,
    label_share=0.3,
)


def marks(own: Recipe, step: int, n: int = 11) -> Tensor:
    """Which scored positions of a step's batch have a label."""
    trials = own.task.sample(n, seed=loop.batch_seed(own, step))
    kept = labeled(own, trials, step)
    assert torch.equal(kept.tokens, trials.tokens) and torch.equal(kept.scored, trials.scored)
    has_label = kept.labels != NO_LABEL
    assert torch.equal(kept.labels[has_label], trials.labels[has_label]) and not has_label[~trials.scored].any()
    return trials.at_scored(has_label)


def test_the_first_positions_have_labels_and_a_share_of_the_others() -> None:
    found = marks(TINY, 0, n=4_000)
    assert found[:, :2].all()
    share = float(found[:, 2:].double().mean())
    assert abs(share - 0.3) < 4 * (0.21 / 20_000) ** 0.5
    assert not marks(replace(TINY, label_share=0.0), 0)[:, 2:].any() and marks(replace(TINY, label_share=1.0), 0).all()
    assert marks(replace(TINY, loss_positions=7), 0).all()


def test_which_positions_have_labels_depends_on_seed_and_step_only() -> None:
    assert torch.equal(marks(TINY, 3), marks(replace(TINY, name="other", lr=1.0), 3))
    assert not torch.equal(marks(TINY, 3), marks(TINY, 4))
    assert not torch.equal(marks(TINY, 3), marks(TINY.reseeded(1), 3))


def test_without_a_horizon_the_batch_is_untouched() -> None:
    plain = replace(TINY, loss_positions=None, label_share=0.0)
    trials = plain.task.sample(5, seed=0)
    assert labeled(plain, trials, step=2) is trials


@pytest.mark.parametrize("targets", ["sampled", "exact"])
def test_the_loss_is_the_mean_over_labels(targets: Any) -> None:
    own = replace(TINY, targets=targets)
    trials = own.task.sample(7, seed=1)
    kept = labeled(own, trials, step=4)
    logits = torch.randn(*trials.tokens.shape, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    terms = []
    for row, pos in (kept.labels != NO_LABEL).nonzero().tolist():
        log_probability = np.log(np.exp(logits[row, pos].numpy()) / np.exp(logits[row, pos].numpy()).sum())
        if targets == "sampled":
            terms.append(-log_probability[int(trials.labels[row, pos])])
        else:
            exact = trials.predictive[row, pos].tolist()
            terms.append(-sum(p * log_probability[3 + answer] for answer, p in enumerate(exact)))
    assert 14 < len(terms) < 49
    assert float(loss_nats(own, logits, kept)) == pytest.approx(np.mean(terms), rel=1e-12)


def test_a_stopped_run_trains_on_the_same_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def watched(own: Recipe, logits: Tensor, trials: Trials) -> Tensor:
        seen.append(trials.labels)
        if len(seen) == 4:
            raise RuntimeError
        return loss_nats(own, logits, trials)

    whole = train(TINY, tmp_path / "whole", pace=QUIET).state_dict()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(loop, "loss_nats", watched)
        train(TINY, tmp_path / "run", pace=Pace(quiet=True, save_seconds=0.0))
    resumed = train(TINY, tmp_path / "run", resume=True, pace=QUIET).state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert len({tuple(own.flatten().tolist()) for own in seen}) == 4
    other = train(replace(TINY, label_share=0.0), tmp_path / "other", pace=QUIET).state_dict()
    assert not torch.equal(other["embed.weight"], whole["embed.weight"]), "labels beyond the horizon count"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label_share": 1.5}, r"label_share must be between 0 and 1, got 1\.5"),
    ],
)
def test_impossible_horizons_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        replace(TINY, **change)
