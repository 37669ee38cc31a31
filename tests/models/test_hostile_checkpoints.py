"""Files made to hang are refused."""

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bayesgeom
from bayesgeom.core.errors import CheckpointFault
from bayesgeom.training.formation import pack
from bayesgeom.training.packed import read_formation
from tests.models.test_checkpoint import saved

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SECONDS, ROOM = 5, 2 * 2**30


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    """What hangs or asks for gigabytes fails, and does not end the session."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"still busy after {SECONDS} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    former = signal.signal(signal.SIGPROF, ring), signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor: on a crowded machine 5 s of the clock are little
    signal.alarm(12 * SECONDS)  # what only waits
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    for number, own in zip((signal.SIGPROF, signal.SIGALRM), former, strict=True):
        signal.signal(number, own)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    saved(tmp_path / "tiny")
    return tmp_path / "tiny"


def replaced(name: str, by: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        (path / name).unlink()
        by(path / name)

    return change


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "many digits": (replaced(CONFIG, lambda file: file.write_text('{"schema": ' + "1" * 5_000 + "}")), r"JSON"),
    "nesting": (replaced(CONFIG, lambda file: file.write_text('{"model_type":' + "[" * 100_000)), r"JSON"),
    "a pipe": (replaced(CONFIG, os.mkfifo), r"config.json is no regular file"),
    "a device": (replaced(CONFIG, lambda file: file.symlink_to("/dev/zero")), r"config.json is no regular file"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_checkpoints_are_refused_at_once(fault: str, checkpoint: Path) -> None:
    change, message = HOSTILE[fault]
    change(checkpoint)
    with pytest.raises(CheckpointFault, match=message):
        bayesgeom.load(checkpoint)


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/etc/passwd", 3], ids=str)
def test_a_pack_that_names_other_files_is_refused(file: object, tmp_path: Path) -> None:
    for step in (1, 2):
        saved(tmp_path / "run" / "snapshots" / f"step-{step}", seed=step)
    pack(tmp_path / "run", tmp_path / "packed", keep=2)
    assert len(read_formation(tmp_path / "packed")["snapshots"]) == 2
    _change_pack(tmp_path / "packed", lambda data: data["snapshots"][0].update(file=file))
    with pytest.raises(CheckpointFault, match=r"formation.json names .* as the file of a snapshot"):
        read_formation(tmp_path / "packed")


def _change_pack(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    from bayesgeom.models.checkpoint_files import hashed

    data = json.loads((path / "formation.json").read_text())
    change(data)
    (path / "formation.json").write_text(json.dumps(hashed(data)))
