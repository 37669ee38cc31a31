"""The commands: what they print, what they leave, and mistakes in one line."""

from pathlib import Path

import pytest

from bayesgeom.cli import main
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.storage import parts_of
from tests.dynamics.trainings import a_run


def test_a_run_is_packed_and_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, packed, out = a_run(tmp_path / "run"), tmp_path / "packed", tmp_path / "out"
    assert main(["pack", str(run), str(packed), "--keep", "2"]) == 0
    assert "step     100  float16" in capsys.readouterr().out
    assert main(["dynamics", str(packed), "--n", "8", "--out", str(out)]) == 0
    assert "report.html" in " ".join(capsys.readouterr().out.split())  # a long name wraps the lines
    assert sorted(path.name for path in out.iterdir()) == [
        "arrays.safetensors",
        "metrics.parquet",
        "report.html",
        "report.json",
    ]
    found = Diagnosis.load(out)
    assert parts_of(found["attention_maps"])[0]["shown_steps"][-1] == "100"
    assert found.provenance["model"]["name"] == "packed"


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "novel.txt").write_text("…")
    mistakes = {
        ("dynamics", "nowhere"): "there is no training named 'nowhere'",
        ("dynamics", str(tmp_path)): "contains no snapshots",
        ("dynamics", "nowhere", "--out", str(tmp_path / "other")): "holds something else than a report",
        ("dynamics", "bijection-formation", "--device", "foo"): "device 'foo' cannot be used here",
        ("pack", str(tmp_path), str(tmp_path / "p")): "contains no snapshots",
    }
    for arguments, message in mistakes.items():
        assert main(list(arguments)) == 2
        output = capsys.readouterr().err
        assert message in output and output.count("\n") == 1
