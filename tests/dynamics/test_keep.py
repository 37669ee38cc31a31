"""`--keep`: as many snapshots as asked for, and the same weights whatever their number."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bayesgeom.core.errors import CheckpointFault
from bayesgeom.training.loop import Pace, train
from tests.dynamics.trainings import a_recipe

RECIPE = a_recipe(steps=40, batch_size=4, warmup=1, snapshots=2)
QUIET = Pace(quiet=True)


@pytest.mark.exhaustive
def test_a_run_goes_on_with_another_number(tmp_path: Path) -> None:
    train(RECIPE, tmp_path / "run", pace=QUIET)
    again = train(replace(RECIPE, snapshots=7), tmp_path / "run", resume=True, pace=QUIET)
    whole = train(replace(RECIPE, snapshots=0), tmp_path / "whole", pace=QUIET)
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), whole.state_dict().values(), strict=True))
    with pytest.raises(CheckpointFault, match=r"a different recipe"):
        train(replace(RECIPE, lr=0.5), tmp_path / "run", resume=True, pace=QUIET)
