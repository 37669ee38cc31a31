"""Tiny checkpoints under the shipped names: code that loads one by name runs in miniature, as written."""

from functools import cache
from pathlib import Path

import pytest

from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.checkpoint_files import FOLDER_VARIABLE
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.training.formation import pack
from bayesgeom.training.recipes import RECIPES, Recipe

FORMATION = "bijection-formation"
SIZES = {"architecture": "transformer", "n_layers": 2, "n_heads": 3, "d_model": 15, "d_mlp": 7}


def tiny_checkpoint(path: Path, recipe: Recipe, *, step: int = 0) -> None:
    """An untrained two-layer transformer on the recipe's task, as a checkpoint directory; `step` is its seed."""
    small = Recipe(name=recipe.name, task=recipe.task, sizes=SIZES, steps=1)
    module = small.model_config().build(seed=step)
    assert isinstance(module, Transformer)
    save_checkpoint(path, module, module.config, recipe=small.to_dict(), step=step, card=f"# {recipe.name}, tiny\n")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a tiny checkpoint for every committed recipe, and a tiny packed training."""
    return _made_in(tmp_path_factory.getbasetemp())


@cache
def _made_in(base: Path) -> Path:
    """Once a session: pytest sets up a fixture again for every module that imports it."""
    folder, run = base / "tiny-checkpoints", base / "tiny-run"
    for name, recipe in RECIPES.items():
        tiny_checkpoint(folder / name, recipe)
    for step in (0, 10, 100):
        tiny_checkpoint(run / "snapshots" / f"step-{step:07d}", RECIPES["bijection-v20"], step=step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayesgeom.training.formation.HELD_OUT", 16)
        pack(run, folder / FORMATION)
    return folder


@pytest.fixture
def tiny_checkpoints(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Names lead to tiny checkpoints for the length of a test."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tiny_folder))
    return tiny_folder
