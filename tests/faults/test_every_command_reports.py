"""Every command says what it does: on a terminal at once and at least every five seconds, elsewhere in two lines.

Seconds are processor seconds of the command's process, read when its output arrives: a busy machine does not change
them. The first output must come within two of them after the interpreter started, imports included.
"""

import contextlib
import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from bayesgeom.cli import COMMANDS
from benchmarks import fault_files

ROOT = Path(__file__).parents[2]
FIRST_SECONDS, SILENT_SECONDS, STUCK_SECONDS = 2.0, 5.0, 800.0
# Arguments of every command, on the smallest checkpoints; RUN is a training, ROTARY a model that can be exported.
LINES = {
    "ablate": "mess3-small --n 16 --battery mlps",
    "capture": "mess3-small --n 16 --out captured",
    "checkpoints": "",
    "compare": "mess3-small mess3-small --n 16",
    "diagnose": "mess3-small --n 16 --n-untrained 1 --out report",
    "dynamics": "RUN --n 8",
    "export": "ROTARY --out exported",
    "gradients": "mess3-small --n 16",
    "intervene": "mess3-small --subspace random:2 --kind remove --controls 1 --n 16",
    "length": "ROTARY --to 4 --n 16",
    "pack": "RUN packed",
    "relabel": "bijection-mlp --n 16",
    "selftest": "",
    "sweep": "bijection --vary n_pairs=2,3 --n 16",
    "train": "mess3-small --steps 20 --keep 2 --out trained",
}


@dataclass(frozen=True)
class Ran:
    """What a command wrote to its standard error: each piece with the processor seconds at its arrival."""

    pieces: list[tuple[float, str]]
    status: int

    @property
    def text(self) -> str:
        return "".join(piece for _, piece in self.pieces)

    @property
    def silences(self) -> list[float]:
        moments = [moment for moment, _ in self.pieces]
        return [after - before for before, after in zip([0.0, *moments], moments, strict=False)]


def ran(line: list[str], folder: Path, *, on_terminal: bool) -> Ran:
    """Run a command with standard error on a terminal or in a pipe."""
    above, below = pty.openpty() if on_terminal else os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "bayesgeom", *line], cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=below
    )
    os.close(below)
    pieces, begun = list[tuple[float, str]](), time.monotonic()
    with contextlib.closing(os.fdopen(above, "rb", buffering=0)) as stream, contextlib.suppress(OSError):
        while piece := stream.read(65_536):  # a terminal whose other end is closed raises OSError
            pieces.append((processor_seconds(process.pid), piece.decode(errors="replace")))
            assert time.monotonic() - begun < STUCK_SECONDS, "stuck"
    return Ran(pieces, process.wait(60))


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used, in all its threads."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    fault_files.checkpoint(folder / "rotary", recipe=fault_files.ROTARY)
    return fault_files.training(folder / "run")


def given(name: str, run: Path) -> list[str]:
    places = {"RUN": str(run), "ROTARY": str(run.parent / "rotary")}
    return [name, *(places.get(word, word) for word in LINES[name].split())]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine gives a command a tenth of a core
@pytest.mark.skipif(sys.platform != "linux", reason="reads processor times from /proc")
@pytest.mark.parametrize("name", LINES)
def test_on_a_terminal_a_command_is_never_silent_for_long(name: str, run: Path, tmp_path: Path) -> None:
    done = ran(given(name, run), tmp_path, on_terminal=True)
    assert done.status == 0, done.text
    first, text = done.pieces[0]
    assert first < FIRST_SECONDS and text.startswith(f"bayesgeom {name}")
    assert max(done.silences) < SILENT_SECONDS, done.pieces
    assert re.search(rf"bayesgeom {name}: finished in [\d.e-]+ s\s*$", done.text)


def test_every_command_is_tried() -> None:
    assert COMMANDS.keys() == LINES.keys()
