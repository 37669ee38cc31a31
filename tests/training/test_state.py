"""A stopped training is checked before it goes on: bit flips, wrong steps, damaged logs, a second process."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bayesgeom.core.errors import CheckpointFault
from bayesgeom.core.files import read_safetensors
from bayesgeom.training import state
from bayesgeom.training.loop import Pace, train
from bayesgeom.training.state import read_log
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


def rewrite(run: Path, *, without: str) -> None:
    """The same state without some tensors; its stored hash is kept."""
    path = run / "state.safetensors"
    _, metadata = read_safetensors(path, framework="pt")
    tensors = {name: tensor for name, tensor in load_file(path).items() if without not in name}
    save_file(tensors, path, metadata=metadata)


def test_a_flipped_bit_is_found(run: Path, rng: np.random.Generator) -> None:
    path = run / "state.safetensors"
    content = bytearray(path.read_bytes())
    at = int(rng.integers(len(content)))
    content[at] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)
    with pytest.raises(CheckpointFault, match=r"state\.safetensors .*Delete it to train from the start"):
        train(TINY, run, resume=True, pace=QUIET)


@pytest.mark.parametrize("without", ["weights.ln_final", "momentum"])
def test_missing_tensors_are_refused(run: Path, without: str) -> None:
    rewrite(run, without=without)
    with pytest.raises(CheckpointFault, match="was changed after it was written"):
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
