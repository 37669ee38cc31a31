"""Tiny checkpoints under the shipped names: code that loads one by name runs in miniature, as written."""

from pathlib import Path

import pytest

from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.resolve import FOLDER_VARIABLE
from bayesgeom.models.transformer import Transformer
from bayesgeom.training.recipe import Recipe
from bayesgeom.training.recipes import RECIPES

SIZES = {"architecture": "transformer", "n_layers": 2, "n_heads": 3, "d_model": 15, "d_mlp": 7}


def tiny_checkpoint(path: Path, recipe: Recipe) -> None:
    """An untrained two-layer transformer on the recipe's task, as a checkpoint directory."""
    small = Recipe(name=recipe.name, task=recipe.task, sizes=SIZES, steps=1)
    module = small.model_config().build(seed=0)
    assert isinstance(module, Transformer)
    save_checkpoint(path, module, module.config, recipe=small.to_dict(), step=0, card=f"# {recipe.name}, tiny\n")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a tiny checkpoint for every committed recipe."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, recipe in RECIPES.items():
        tiny_checkpoint(folder / name, recipe)
    return folder


@pytest.fixture
def tiny_checkpoints(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Names lead to tiny checkpoints for the length of a test."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tiny_folder))
    return tiny_folder
