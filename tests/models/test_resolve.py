"""From a name, a path or a module to a model, and where named checkpoints lie."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, UnknownName
from bayesgeom.models import checkpoint_files as named_checkpoints
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.checkpoint import load_checkpoint, save_checkpoint
from bayesgeom.models.checkpoint_files import checkpoint_folder, checkpoints
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.models.resolve import as_model, check_device, load, task_of
from bayesgeom.tasks.bijection import Bijection
from tests.shape_checks import ARE_ON

TASK = Bijection(n_values=11, n_pairs=5)
CONFIG = TransformerConfig(d_vocab=22, n_ctx=9, n_layers=2, n_heads=3, d_model=21, d_mlp=13)


def save(path: Path, seed: int = 1) -> str:
    recipe = {"name": path.name, "task": TASK.config()}
    return save_checkpoint(path, CONFIG.build(seed=seed), CONFIG, recipe=recipe, step=17, card="# tiny\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two checkpoints and of what is none, where named checkpoints are looked for."""
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "checkpoints"))
    for seed, name in enumerate(("tiny", "small")):
        save(tmp_path / "checkpoints" / name, seed)
    (tmp_path / "checkpoints" / "empty").mkdir()
    (tmp_path / "checkpoints" / "notes.md").write_text("no checkpoint")
    return tmp_path / "checkpoints"


def test_named_checkpoints_are_the_folders_own(folder: Path) -> None:
    assert checkpoint_folder() == folder
    assert checkpoints() == {"small": folder / "small", "tiny": folder / "tiny"}


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "nowhere"))
    assert checkpoints() == {}
    with pytest.raises(UnknownName, match=r"no checkpoint named 'tiny'\. There are: \(none\)"):
        load("tiny")


@pytest.mark.parametrize("is_checkout", [True, False])
def test_a_folder_next_to_an_installed_package_is_ignored(
    is_checkout: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BAYESGEOM_CHECKPOINTS", raising=False)
    monkeypatch.setattr(named_checkpoints, "_PACKAGE", tmp_path / "bayesgeom")
    assert checkpoint_folder() == tmp_path / "bayesgeom" / "_checkpoints"
    (tmp_path / "checkpoints").mkdir()
    if is_checkout:
        (tmp_path / "pyproject.toml").touch()
    expected = tmp_path / "checkpoints" if is_checkout else tmp_path / "bayesgeom" / "_checkpoints"
    assert checkpoint_folder() == expected


def test_names_and_paths_load_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for asked in ("small", folder / "small", str(folder / "small"), "checkpoints/small", Path("checkpoints/small")):
        model = load(asked)
        assert model.spec.name == "small" and model.task == TASK and not model.module.training
        expected = CONFIG.build(seed=1).state_dict()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.module.state_dict().items())
        assert model.spec.weights_hash == load_checkpoint(folder / "small").weights_hash


def test_a_name_goes_before_a_directory_of_that_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = save(tmp_path / "small", seed=5)
    monkeypatch.chdir(tmp_path)
    assert load("small").spec.weights_hash == load_checkpoint(folder / "small").weights_hash != local
    assert load("./small").spec.weights_hash == local


def test_the_spec_is_what_the_config_says(folder: Path) -> None:
    spec = load("tiny").spec
    sizes = {"n_layers": 2, "n_heads": 3, "n_kv_heads": 3, "d_model": 21, "d_head": 7, "d_mlp": 13, "d_vocab": 22}
    assert sizes.items() <= spec.to_dict().items()
    assert (spec.architecture, spec.n_ctx, spec.dtype, spec.device) == ("transformer", 9, "float32", "cpu")
    assert spec.score_scale == pytest.approx(7**-0.5)
    assert spec.n_parameters == sum(parameter.numel() for parameter in CONFIG.build(seed=0).parameters())


def test_what_is_no_checkpoint_directory_is_refused(folder: Path) -> None:
    with pytest.raises(
        CheckpointFault, match=r"notes\.md is a file; a checkpoint is a directory of model\.safetensors and"
    ):
        load(folder / "notes.md")
    with pytest.raises(CheckpointFault, match=r"empty holds no config\.json"):
        load(folder / "empty")


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_devices_that_are_not_there_are_refused(device: str, folder: Path) -> None:
    with pytest.raises(InvalidArgument, match=rf"device '{device}' cannot be used here \(.+\); use cpu\.") as refused:
        load("tiny", device=device)
    assert "\n" not in str(refused.value)
    check_device("cpu")
    check_device(torch.device("cpu"))


def test_whatever_stands_for_a_model_becomes_one(folder: Path) -> None:
    model, module = load("tiny"), CONFIG.build(seed=3)
    assert as_model(model) is model
    for given in ("tiny", folder / "tiny", load_checkpoint(folder / "tiny")):
        found = as_model(given)
        assert isinstance(found, HookedModel) and found.spec == model.spec and found.task == TASK
    bare = as_model(module)
    assert isinstance(bare, HookedModel) and bare.module is module and bare.task is None


@pytest.mark.skipif(ARE_ON, reason="checks of annotations would refuse first")
def test_other_things_are_no_model() -> None:
    with pytest.raises(InvalidArgument, match=r"Linear failed on token ids of shape \(1, 2\)"):
        as_model(nn.Linear(2, 3))
    for thing in (7, None):
        with pytest.raises(
            InvalidArgument, match=rf"cannot diagnose a {type(thing).__name__}: pass a checkpoint's name"
        ):
            inspect.unwrap(as_model)(thing)  # past the type checks that only the tests switch on


def test_a_task_may_be_text(folder: Path) -> None:
    model = load("tiny")
    assert task_of(model, "bijection:repeats=true") == Bijection(n_values=11, n_pairs=5, repeats=True)
    assert task_of(model, None) == TASK


@pytest.mark.parametrize("name", ["./E1", "/nowhere/E1", "a/b/c", Path("E1")])
def test_a_path_to_nowhere_is_no_name(name: str | Path, folder: Path) -> None:
    where = "" if Path(name).is_absolute() else rf" \({re.escape(str(Path(name).absolute()))}\)"
    with pytest.raises(UnknownName, match=rf"^there is no directory '{name}'{where}; `bayesgeom checkpoints` lists"):
        load(name)
