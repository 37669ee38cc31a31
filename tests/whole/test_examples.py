"""Every example runs in miniature, as a script and as a notebook's cells."""

import runpy
from pathlib import Path

import jupytext
import pytest

from bayesgeom import Diagnosis
from tests.structure.source import ROOT
from tests.tiny import tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures

EXAMPLES = sorted((ROOT / "examples").glob("[!_]*.py"))
SMALL = [path for path in EXAMPLES if path.stem != "diagnose_a_language_model"]  # tests/real runs that one


@pytest.mark.examples
@pytest.mark.timeout(900)  # the page on Hugging Face models takes minutes at its full size
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
@pytest.mark.parametrize("checkpoint", ["bijection-v20", "hmm-s5"])
def test_example_runs(
    path: Path,
    checkpoint: str,
    tmp_path: Path,
    tiny_checkpoints: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESGEOM_EXAMPLE_N", "16")
    monkeypatch.setenv("BAYESGEOM_EXAMPLE_CHECKPOINT", checkpoint)
    monkeypatch.setenv("BAYESGEOM_EXAMPLE_HF", str(ROOT / "checkpoints" / "bijection-v20-llama"))
    monkeypatch.setenv("BAYESGEOM_EXAMPLE_OUT", str(tmp_path / "out"))
    names = runpy.run_path(str(path))
    printed = capsys.readouterr().out
    assert Diagnosis.load(tmp_path / "out").summary() == names["diagnosis"].summary()
    assert names["diagnosis"].title in printed
    assert all(headline.label in printed for _, headline in names["diagnosis"].headlines())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_a_notebook(path: Path) -> None:
    cells = jupytext.read(path).cells
    kinds = [cell.cell_type for cell in cells]
    assert kinds[0] == "markdown"
    assert kinds.count("code") >= 5
    assert kinds.count("markdown") >= 5
