"""A stopped training is checked before it goes on: bit flips, wrong steps, damaged logs, a second process."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bayesgeom.core.errors import CheckpointFault, OutputFault
from bayesgeom.core.files import read_safetensors
from bayesgeom.training import state
from bayesgeom.training.loop import Pace, train
from bayesgeom.training.state import append_log, read_log
from tests.training.test_loop import TINY, assert_same_weights

QUIET = Pace(quiet=True, log_every=4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("state") / "run"
    train(TINY, out, pace=QUIET)
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def rewrite(run: Path, *, step: object = None, without: str = "") -> None:
    """The same state with another step, or without some tensors; its stored hash is kept."""
    path = run / "state.safetensors"
    _, metadata = read_safetensors(path, framework="pt")
    tensors = {name: tensor for name, tensor in load_file(path).items() if not (without and without in name)}
    own = json.loads(metadata["state"])
    save_file(tensors, path, metadata={"state": json.dumps(own if step is None else own | {"step": step})})


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_is_found(run: Path, seed: int) -> None:
    path, rng = run / "state.safetensors", np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    at = int(rng.integers(len(content)))
    content[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)
    with pytest.raises(CheckpointFault, match=r"state\.safetensors .*Delete it to train from the start"):
        train(TINY, run, resume=True, pace=QUIET)


@pytest.mark.parametrize("step", [1_000_000, 7, "many"], ids=lambda step: f"{step!r:.8}")
def test_a_step_that_is_not_the_stored_one_is_refused(run: Path, step: object) -> None:
    rewrite(run, step=step)
    with pytest.raises(CheckpointFault, match=r"steps are done; tiny has 11|was changed after it was written"):
        train(TINY, run, resume=True, pace=QUIET)


@pytest.mark.parametrize("without", ["weights.ln_final", "momentum"])
def test_missing_tensors_are_refused(run: Path, without: str) -> None:
    rewrite(run, without=without)
    with pytest.raises(CheckpointFault, match="was changed after it was written"):
        train(TINY, run, resume=True, pace=QUIET)


def test_a_state_without_its_metadata_is_refused(run: Path) -> None:
    save_file(load_file(run / "state.safetensors"), run / "state.safetensors")
    with pytest.raises(CheckpointFault, match="states that an unknown number of steps are done"):
        train(TINY, run, resume=True, pace=QUIET)


@pytest.mark.parametrize("text", ["{", '{"name": "tiny"}'])
def test_a_damaged_recipe_is_refused(run: Path, text: str) -> None:
    (run / "recipe.json").write_text(text)
    with pytest.raises(CheckpointFault, match=r"recipe\.json (cannot be read as JSON|holds no readable recipe)"):
        train(TINY, run, resume=True, pace=QUIET)


def test_a_half_written_log_line_is_dropped_with_a_warning(run: Path) -> None:
    log = run / "log.jsonl"
    before = read_log(log)
    with log.open("a") as file:
        file.write('{"step": 12, "loss_na')
    with pytest.warns(UserWarning, match=r"log\.jsonl: skipped 1 corrupt or incomplete line"):
        assert read_log(log) == before
    with pytest.warns(UserWarning, match="skipped 1 corrupt or incomplete line"):
        module = train(TINY, run, resume=True, pace=QUIET)
    assert_same_weights(module, train(TINY, run, resume=True, pace=QUIET))
    assert read_log(log) == before


def test_a_full_disk_under_the_log_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputFault, match=r"cannot write .*Free some space, then --resume"):
        append_log(Path("/dev/full"), {"step": 1})


def test_the_hash_sees_the_step_the_seed_and_every_number() -> None:
    tensors = {"weights.a": torch.arange(5.0)}
    changed = {"weights.a": torch.arange(5.0).nextafter(torch.tensor(9.0))}
    hashes = [state._state_hash(tensors, TINY, 3), state._state_hash(tensors, TINY, 4)]
    hashes += [state._state_hash(tensors, TINY.reseeded(1), 3), state._state_hash(changed, TINY, 3)]
    assert len(set(hashes)) == 4


def test_the_state_of_another_recipe_is_refused(run: Path, tmp_path: Path) -> None:
    other = replace(TINY, lr=TINY.lr * 2)
    train(other, tmp_path / "other", pace=QUIET)
    shutil.copy(tmp_path / "other" / "state.safetensors", run / "state.safetensors")
    with pytest.raises(CheckpointFault, match=r"is of a run of a different recipe than 'tiny' \(lr: "):
        train(TINY, run, resume=True, pace=QUIET)


@pytest.mark.parametrize("name", ["state.safetensors", "log.jsonl"])
@pytest.mark.parametrize("kind", ["a named pipe", "a directory"])
def test_what_is_no_file_is_not_opened(run: Path, name: str, kind: str) -> None:
    (run / name).unlink()
    made: dict[str, Callable[[Path], None]] = {
        "a named pipe": os.mkfifo,
        "a directory": Path.mkdir,
    }
    made[kind](run / name)
    with pytest.raises(CheckpointFault, match=f"{name} is {kind}; only regular files are read"):
        train(TINY, run, resume=True, pace=QUIET)
