"""The precision of products: chosen by what the processor does, kept by a run, and no part of a recipe."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import read_description
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training import environment as precision
from bayesgeom.training import loop
from bayesgeom.training.environment import recorded_precision, resolve_precision
from bayesgeom.training.loop import Pace, run_precision, train
from bayesgeom.training.publish import score_and_save
from bayesgeom.training.recipes import deciding
from tests.dynamics.trainings import a_recipe

TINY = a_recipe(
    name="tiny",
    task=Bijection(n_values=5, n_pairs=3),
    sizes={"architecture": "lstm", "n_layers": 2, "d_model": 11},
    warmup=3,
    steps=7,
    batch_size=5,
    snapshots=0,
)
CONFIG, QUIET = TINY.model_config(), Pace(quiet=True)


@pytest.fixture(params=[True, False], ids=["fast", "slow"])
def is_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """On a processor that is fast at bfloat16, and on one that is not."""
    monkeypatch.setattr(precision, "is_bfloat16_fast", lambda kind: request.param)
    return bool(request.param)


def test_auto_is_what_the_processor_is_fast_at(is_fast: bool) -> None:
    expected = "bfloat16" if is_fast else "float32"
    assert resolve_precision("auto", "cpu") == expected
    assert resolve_precision("float32", "cpu") == "float32"


def test_float32_differs_from_bfloat16_in_weights_and_not_in_its_recipe(tmp_path: Path) -> None:
    sizes = {"architecture": "transformer", "n_layers": 2, "n_heads": 3, "d_model": 21, "d_mlp": 13}
    own = replace(TINY, sizes=sizes)
    modules = {kind: train(own, tmp_path / kind, precision=kind, pace=QUIET) for kind in ("bfloat16", "float32")}
    a, b = (module.state_dict() for module in modules.values())
    assert any(not torch.equal(a[name], b[name]) for name in a)
    recipes = {}
    for kind, module in modules.items():
        snapshot = tmp_path / kind / "snapshots" / "step-0000007"
        score_and_save(own, module, tmp_path / kind / "checkpoint", precision=recorded_precision(tmp_path / kind))
        for path in (snapshot, tmp_path / kind / "checkpoint"):
            assert read_description(path)["precision"] == kind
            load_checkpoint(path)
        recipes[kind] = deciding(read_description(snapshot)["recipe"])
    assert recipes["bfloat16"] == recipes["float32"] == deciding(own.to_dict())


def test_a_run_keeps_the_precision_it_was_begun_with(is_fast: bool, tmp_path: Path) -> None:
    begun = "float32" if is_fast else "bfloat16"  # not what the processor would choose
    own = replace(TINY, sizes={"architecture": "mlp", "n_layers": 2, "d_model": 21, "d_mlp": 13}, after=None)
    whole = train(own, tmp_path / "whole", precision=begun, pace=QUIET)
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        step = loop.training_step
        patch.setattr(loop, "training_step", lambda *given: _stopping(step, *given))
        with pytest.raises(KeyboardInterrupt):
            train(own, out, precision=begun, pace=Pace(quiet=True, save_seconds=0.0))
    assert run_precision(out, "auto") == begun
    for other in {"bfloat16", "float32"} - {begun}:
        with pytest.raises(InvalidArgument, match=rf"was started in {begun} and cannot continue in {other}"):
            train(own, out, resume=True, precision=other, pace=QUIET)
    resumed = train(own, out, resume=True, pace=QUIET).state_dict()
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.state_dict().items())


@pytest.mark.parametrize("text", ["", "{", json.dumps({"precision": "half"})])
def test_a_missing_or_spoilt_record_is_named(text: str, tmp_path: Path) -> None:
    if text:
        (tmp_path / "precision.json").write_text(text)
    with pytest.raises(CheckpointFault, match=r"precision\.json (cannot be read|must name bfloat16 or float32)"):
        recorded_precision(tmp_path)


def test_stages_share_the_precision(tmp_path: Path) -> None:
    staged = replace(TINY, name="second", after=TINY)
    train(staged, tmp_path / "run", precision="float32", pace=QUIET)
    assert recorded_precision(tmp_path / "run") == recorded_precision(tmp_path / "run" / "before") == "float32"


def _stopping(step: object, *given: object) -> float:
    if given[3] == 4:
        raise KeyboardInterrupt
    assert callable(step)
    return float(step(*given))
