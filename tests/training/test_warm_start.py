"""A training that starts from the weights of a shipped checkpoint."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bayesgeom.core.errors import CheckpointFault, UnknownName
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.training.loop import Pace, train
from bayesgeom.training.recipes import Recipe, recipe, recipe_from_dict

SHIPPED = "sticky-small"


def warm(steps: int = 1, digest: str | None = None) -> Recipe:
    config = json.loads((checkpoints()[SHIPPED] / "config.json").read_text())
    own = recipe(SHIPPED)
    start = f"{SHIPPED}@{config['weights_hash'] if digest is None else digest}"
    tiny = {"steps": steps, "warmup": 0, "lr": 1e-12, "matrix_lr": 1e-12, "weight_decay": 0.0, "batch_size": 2}
    return replace(own, name="warm", warm_start=start, late_batch_size=2, snapshots=0, **tiny)


def test_a_warm_start_is_the_shipped_weights_and_is_recorded(tmp_path: Path) -> None:
    own = warm()
    module = train(own, tmp_path / "run", pace=Pace(quiet=True))
    cold = train(replace(own, warm_start=None), tmp_path / "cold", pace=Pace(quiet=True))
    shipped = load_checkpoint(checkpoints()[SHIPPED]).module
    near = [
        max(float((a - b).detach().abs().max()) for a, b in zip(it.parameters(), shipped.parameters(), strict=True))
        for it in (module, cold)
    ]
    assert near[0] < 1e-6 < 1e-2 < near[1]
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["warm_start"] == own.warm_start
    assert recipe_from_dict(json.loads(json.dumps(own.to_dict()))) == own
    assert "warm_start" not in replace(own, warm_start=None).to_dict()


def test_weights_that_were_replaced_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFault, match=r"warm starts from sticky-small with weights 0123, but the shipped"):
        train(warm(digest="0123"), tmp_path / "a", pace=Pace(quiet=True))
    with pytest.raises(UnknownName, match="no shipped checkpoint named 'nothing'"):
        train(replace(warm(), warm_start="nothing@0123"), tmp_path / "b", pace=Pace(quiet=True))
    other = replace(warm(), sizes={**warm().sizes, "n_layers": 2})
    with pytest.raises(CheckpointFault, match=r"warm builds .* but sticky-small is "):
        train(other, tmp_path / "c", pace=Pace(quiet=True))
