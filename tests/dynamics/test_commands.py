"""The commands: what they print, what they leave, and mistakes in one line."""

from pathlib import Path

import pytest

from bayesgeom.cli import main
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.storage import parts_of
from bayesgeom.training import publish, recipes
from tests.dynamics.trainings import a_recipe, a_run


def test_a_run_is_packed_and_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, packed, out = a_run(tmp_path / "run"), tmp_path / "packed", tmp_path / "out"
    assert main(["pack", str(run), str(packed), "--keep", "2"]) == 0
    assert "step     100  float16" in capsys.readouterr().out
    assert main(["dynamics", str(packed), "--n", "8", "--maps-at", "100", "--out", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # a long name wraps the lines
    assert "1 training, 8 sequences" in printed and "report.html" in printed
    assert sorted(path.name for path in out.iterdir()) == [
        "arrays.safetensors",
        "metrics.parquet",
        "report.html",
        "report.json",
    ]
    found = Diagnosis.load(out)
    assert parts_of(found["attention_maps"])[0]["shown_steps"] == ["100"]
    assert found.provenance["model"]["name"] == "packed"


def test_seeds_are_trained_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(recipes.RECIPES, "small", a_recipe(steps=3, batch_size=2, warmup=1, snapshots=0))
    monkeypatch.setattr(publish, "N_SCORED", 8)
    shared = ["replicate", "small", "--runs", str(tmp_path), "--n", "8"]
    assert main([*shared, "--seeds", "2"]) == 0
    out, err = capsys.readouterr()
    assert "small-seed1" in out and "  small-seed1: 6 sequences in 3 steps\n" in err
    assert main([*shared, "--seeds", "3", "--only-existing"]) == 0
    out, err = capsys.readouterr()
    assert "missing: small-seed2" in out and err == ""
    (tmp_path / "small-seed1").rename(tmp_path / "elsewhere")
    assert main([*shared, "--seeds", "2", "--only-existing"]) == 0
    (spread,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("spread"))
    assert spread.split() == ["spread", "–", "–"]


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "novel.txt").write_text("…")
    mistakes = {
        ("dynamics", "nowhere"): "there is no training named 'nowhere'",
        ("dynamics", str(tmp_path)): "contains no snapshots",
        ("dynamics", "nowhere", "--out", str(tmp_path / "other")): "holds something else than a report",
        ("dynamics", "bijection-formation", "--device", "foo"): "device 'foo' cannot be used here",
        ("pack", str(tmp_path), str(tmp_path / "p")): "contains no snapshots",
        ("replicate", "small", "--seeds", "0"): "there is no recipe named 'small'",
    }
    for arguments, message in mistakes.items():
        assert main(list(arguments)) == 2
        output = capsys.readouterr().err
        assert message in output and output.count("\n") == 1
