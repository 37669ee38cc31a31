"""`--keep`: as many snapshots as asked for, and the same weights whatever their number."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bayesgeom.cli import main
from bayesgeom.core.errors import CheckpointFault
from bayesgeom.training import publish, recipes
from bayesgeom.training.loop import Pace, snapshot_steps, train
from tests.dynamics.trainings import a_recipe

RECIPE = a_recipe(steps=40, batch_size=4, warmup=1, snapshots=2)
QUIET = Pace(quiet=True)


def kept(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "snapshots").iterdir())


@pytest.mark.slow
def test_the_command_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recipes.RECIPES, "small", RECIPE)
    monkeypatch.setattr(publish, "N_SCORED", 8)
    for keep in (0, 4):
        assert main(["train", "small", "--keep", str(keep), "--out", str(tmp_path / str(keep))]) == 0
        steps = {*snapshot_steps(replace(RECIPE, snapshots=keep)), 40}
        assert kept(tmp_path / str(keep)) == [f"step-{step:07d}" for step in sorted(steps)]
    assert len(kept(tmp_path / "0")) == 1 and len(kept(tmp_path / "4")) == 5
    assert main(["train", "small", "--keep", "-1", "--out", str(tmp_path / "none")]) == 2


@pytest.mark.exhaustive
def test_a_run_goes_on_with_another_number(tmp_path: Path) -> None:
    train(RECIPE, tmp_path / "run", pace=QUIET)
    again = train(replace(RECIPE, snapshots=7), tmp_path / "run", resume=True, pace=QUIET)
    whole = train(replace(RECIPE, snapshots=0), tmp_path / "whole", pace=QUIET)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), whole.state_dict().values(), strict=True))
    with pytest.raises(CheckpointFault, match=r"a different recipe"):
        train(replace(RECIPE, lr=0.5), tmp_path / "run", resume=True, pace=QUIET)
