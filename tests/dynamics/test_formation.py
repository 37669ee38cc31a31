"""Packed trainings: half precision only where scores do not change, strict reading, and analysis by name."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.dynamics.report import DynamicsReport
from bayesgeom.dynamics.run import training_dynamics
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import FOLDER_VARIABLE, hashed
from bayesgeom.training import formation
from bayesgeom.training.formation import is_unchanged, load_packed, pack
from bayesgeom.training.packed import chosen_among, formations
from tests.dynamics.trainings import STEPS, a_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_run(tmp_path_factory.mktemp("formation") / "run")


def test_weights_come_back_in_float32_to_half_precision(run: Path, tmp_path: Path) -> None:
    packed = pack(run, tmp_path / "packed", keep=4)
    assert [own.step for own in packed] == list(STEPS) and {own.dtype for own in packed} == {"float16"}
    assert {file.name for file in (tmp_path / "packed").iterdir()} == {
        "formation.json",
        "card.md",
        *(f"step-{step:07d}.safetensors" for step in STEPS),
    }
    for own in packed:
        read = load_packed(tmp_path / "packed" / own.file)
        whole = load_checkpoint(run / "snapshots" / Path(own.file).stem)
        assert (read.step, read.task, read.config, read.recipe) == (own.step, whole.task, whole.config, whole.recipe)
        for name, value in read.module.state_dict().items():
            assert value.dtype == torch.float32
            assert torch.equal(value, whole.module.state_dict()[name].half().float())
        assert is_unchanged(own.kl_bits, own.kl_bits_stored)


def test_a_snapshot_whose_score_would_change_stays_whole(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coarse = pack(run, tmp_path / "bf16", keep=4, dtype="bfloat16")
    assert all(is_unchanged(own.kl_bits, own.kl_bits_stored) for own in coarse)
    monkeypatch.setattr(formation, "is_unchanged", lambda before, after: False)
    whole = pack(run, tmp_path / "whole", keep=4)
    assert {own.dtype for own in whole} == {"float32"} and all(own.kl_bits == own.kl_bits_stored for own in whole)
    file = whole[-1].file
    there = load_packed(tmp_path / "whole" / file).module.state_dict()
    original = load_checkpoint(run / "snapshots" / Path(file).stem).module.state_dict()
    assert all(torch.equal(there[name], original[name]) for name in original)
    sizes = [(tmp_path / kind / file).stat().st_size for kind in ("bf16", "whole")]
    assert coarse[-1].dtype == "float32" or sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (1.2345, 1.2394, True),
        (1.2345, 1.2396, False),
        (0, 0, True),
        (0, 1e-9, False),
    ],
)
def test_three_digits_are_half_a_unit_of_the_third(before: float, after: float, same: bool) -> None:
    assert is_unchanged(before, after) is same


def test_the_first_and_last_snapshots_are_chosen() -> None:
    assert chosen_among(22, 12)[0] == 0 and chosen_among(22, 12)[-1] == 21 and len(chosen_among(22, 12)) == 12
    assert chosen_among(5, 9) == [0, 1, 2, 3, 4] and chosen_among(9, 2) == [0, 8]


def test_it_is_analyzed_by_name_as_the_run_is(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    pack(run, tmp_path / "small-formation", keep=2, dtype="float32")
    assert list(formations()) == ["small-formation"]
    steps = [run / "snapshots" / f"step-{step:07d}" for step in (0, 100)]
    named, listed = (training_dynamics(*sources, n=8)["dynamics"] for sources in (("small-formation",), steps))
    assert isinstance(named, DynamicsReport) and isinstance(listed, DynamicsReport)
    assert named.runs == ("small-formation",) and np.array_equal(named.kl_bits.value, listed.kl_bits.value)
    assert not (tmp_path / "small-formation" / "dynamics").exists()


def test_what_was_edited_or_is_too_new_is_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    file = folder / pack(run, folder, keep=2)[0].file
    data = json.loads((folder / "formation.json").read_text())
    (folder / "formation.json").write_text(json.dumps({**data, "schema": 99}))
    with pytest.raises(CheckpointFault, match=r"has schema 99; .*Upgrade"):
        load_packed(file)
    data["snapshots"][0]["weights_hash"] = "0" * 16
    (folder / "formation.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointFault, match=r"formation\.json does not have its config_hash"):
        load_packed(file)
    (folder / "formation.json").write_text(json.dumps(hashed(data)))
    with pytest.raises(CheckpointFault, match=r"replaced or edited"):
        load_packed(file)
    (folder / "formation.json").write_text(json.dumps({"schema": 1}))
    with pytest.raises(CheckpointFault, match=r"lacks model, recipe, snapshots, task\. Pack the training again"):
        load_packed(file)
    with pytest.raises(InvalidArgument, match=r"keep must be at least 2 and dtype one of"):
        pack(run, folder, keep=1)
    with pytest.raises(InvalidArgument, match=r"1 snapshot;"):
        pack(a_run(tmp_path / "one", steps=(100,)), tmp_path / "out")
    with pytest.raises(InvalidArgument, match=r"contains no snapshots"):
        pack(tmp_path, tmp_path / "out")
