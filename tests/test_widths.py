"""Every command prints at most 100 columns, also on a wider terminal or into a pipe; only paths are never broken.

One that measures also prints at most 30 lines.
"""

from pathlib import Path

import pytest

from bayesgeom.cli import COMMANDS, GROUPS, main, tell
from bayesgeom.core.columns import WIDTH, fitted
from bayesgeom.diagnosis.plan import all_probes
from bayesgeom.selftest import run as selftests
from bayesgeom.selftest.run import ControlResult, intervention_controls
from benchmarks import fault_files
from tests.tiny import FORMATION, tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures

LONG = "bijection-transformer-untied"  # the longest name of a checkpoint
CHEAP = {
    "checkpoints": "",
    "diagnose": f"{LONG} --n 16 --n-untrained 1",
    "ablate": f"{LONG} --n 8",
    "intervene": f"{LONG} --n 8 --n-fit 32 --controls 2 --n-untrained 0",
    "length": "slow-hmm-transformer slow-hmm-mamba --untrained-rows --n 8",
    "relabel": f"{LONG} --n 8",
    "sweep": f"bijection --vary n_pairs=3,5 --checkpoint {LONG} --n 4",
    "gradients": f"{LONG} --n 4",
    "compare": f"{LONG} bijection-transformer --n 8",
    "dynamics": f"{FORMATION} --n 8",
    "capture": f"{LONG} --n 4 --out captured",
    "pack": "RUN packed",
    "export": "ROTARY --out exported",
    "selftest": "",  # every control is listed, none is measured
}
SCREEN = 30  # lines
LISTS = {"checkpoints", "selftest"}  # they list checkpoints and controls


def too_long(text: str) -> list[str]:
    """The lines that could have been broken."""
    return [line for line in text.splitlines() if len(line) > WIDTH and not line.startswith("report: ")]


def unmeasured() -> list[ControlResult]:
    """A verdict for every control of the self-test, without its measurement."""
    found = [(name, control.label) for name, probe in all_probes().items() for control in probe.controls()]
    found += [("intervention", control.label) for control in intervention_controls()]
    return [ControlResult(probe=name, control=label, passed=True) for name, label in found]


@pytest.mark.parametrize("command", CHEAP)
def test_the_output_of_a_command_fits(
    command: str,
    tmp_path: Path,
    tiny_checkpoints: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(selftests, "selftest", unmeasured)
    fault_files.training(Path("RUN"))
    fault_files.checkpoint(Path("ROTARY"), recipe=fault_files.ROTARY)
    assert main([command, *CHEAP[command].split()]) == 0
    out = capsys.readouterr().out
    assert out and too_long(out) == []
    assert command in LISTS or len(out.splitlines()) <= SCREEN, "print(report), and where its page is"


def test_every_command_is_run() -> None:
    assert set(CHEAP) == set(COMMANDS) - {"train"}, "a training has no small table"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([*([command] if command else []), "--help"])
    out = capsys.readouterr().out
    assert out.startswith("usage: bayesgeom") and too_long(out) == []


def test_help_lists_the_commands_in_the_order_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in COMMANDS]
    assert listed == list(COMMANDS) and len(COMMANDS) <= 16
    assert lines.index("Example:") < min(lines.index(f"{group}:") for group in GROUPS)
    assert not any("…" in line for line in lines), "one whole sentence each"


def test_a_wide_table_wraps_without_losing_text() -> None:
    rows = [("head", "a header of several words", "interval", "note")]
    rows += [(f"L0H{at}", "0.1234", "0.1 [0.05 … 0.15]", "a note that is longer than its column") for at in range(3)]
    lines = fitted(rows, width=60)
    assert max(map(len, lines)) <= 60 and lines[0].startswith("head  a header")
    words = " ".join(lines).split()
    assert sorted(words) == sorted(" ".join(" ".join(row) for row in rows).split())
    assert sum("0.1 [0.05 … 0.15]" in line for line in lines) == 3, "an interval stays on one line"
    assert fitted([row[:2] for row in rows], width=60)[1] == "L0H0  0.1234"


def test_further_columns_follow_below_and_name_their_rows() -> None:
    head = ("layer", "metric", *(f"column-{at}" for at in range(7)))
    rows = [head, *((layer, kind, *"1234567") for layer in "01" for kind in ("KL", "entropy"))]
    lines = fitted(rows, width=40)
    assert max(map(len, lines)) <= 40
    blocks = "\n".join(lines).split("\n\n")
    assert len(blocks) > 1
    for block in blocks:
        first, *others = block.splitlines()
        assert first.startswith("layer  metric") and [line.split()[:2] for line in others] == [
            [layer, kind] for layer in "01" for kind in ("KL", "entropy")
        ]


def test_a_path_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/{'directory/' * 12}report.html"
    tell(f"  written: {path} and more words that go on and on", "x " * 80)
    out = capsys.readouterr().out
    assert path in out and len(out.splitlines()) > 3 and all(path in line for line in too_long(out))
