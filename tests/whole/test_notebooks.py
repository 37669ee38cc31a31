"""Every notebook runs from first cell to last, in a fresh kernel and offline; its stored outputs are its own."""

import json
import os
import re
import tomllib
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from tests.store_notebooks import code_cells, executed, printed
from tests.structure.source import ROOT
from tests.tiny import tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
GALLERY = sorted((ROOT / "examples/gallery").glob("*.ipynb"))
SHOWN = {
    "first_diagnosis": "entropy error",
    "hugging_face_model": "calibration: ",
    "your_own_task": "KL(exact",
}
MOST_BYTES = 300_000
NUMBER = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-−]?\d+)?")
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
PLAIN = str.maketrans({"−": "-", ",": None})


@pytest.mark.examples
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, tiny_checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("BAYESGEOM_EXAMPLE_N", "16")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [own for cell in notebook.cells if cell.cell_type == "code" for own in cell.outputs]
    assert all(own.output_type != "error" for own in outputs)
    assert SHOWN[path.stem] in json.dumps(outputs, ensure_ascii=False)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_valid_and_holds_the_outputs_of_one_run(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    cells = list(code_cells(notebook))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(
        cell.outputs for cell in cells if re.search(r"^\s*print\(|^model$|\.plot\(\)$", cell.source, re.MULTILINE)
    )
    assert not any("execution" in cell.metadata for cell in cells), "no times of a run"
    assert SHOWN[path.stem] in "".join(map(printed, cells))
    assert "image/png" in json.dumps(notebook), "GitHub shows pictures, and no figures of plotly"
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_those_of_a_run(path: Path, tmp_path: Path) -> None:
    """Otherwise: `python -m tests.store_notebooks`."""
    again = map(printed, code_cells(executed(path, tmp_path)))
    stored = map(printed, code_cells(nbformat.read(path, as_version=4)))
    for new, old in zip(again, stored, strict=True):
        assert_alike(new, old)


def assert_alike(new: str, old: str) -> None:
    """Compare words and numbers; where a row wraps depends on the lengths of its numbers.

    A network that is trained on another processor rounds otherwise, so that numbers differ by some percent. Those of
    untrained networks are near zero or one. The tolerance is 10 %, or 0.002.
    """
    texts = [re.sub(r"\s+", " ", text) for text in (new, old)]
    words = [Counter(NUMBER.sub("#", text).split()) for text in texts]
    assert words[0] == words[1]
    values = [[float(found.translate(PLAIN)) for found in NUMBER.findall(text)] for text in texts]
    assert values[0] == pytest.approx(values[1], rel=0.1, abs=0.002)


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_an_example_of_the_gallery_is_short_installs_itself_in_colab_and_has_a_place_on_the_site(path: Path) -> None:
    """The build of the site runs it; outputs are stored nowhere else."""
    text = path.read_text(encoding="utf-8")
    cells = list(code_cells(nbformat.reads(text, as_version=4)))
    lines = [line for cell in cells for line in cell.source.splitlines() if line.strip()]
    assert len(lines) <= 60 and not any(cell.outputs for cell in cells)
    assert cells[0].source.startswith("import sys\n")
    assert f"%pip install -q 'bayesgeom[fetch] @ git+{REPOSITORY}'" in cells[0].source
    assert text.count("github.com") == 1
    assert f": gallery/{path.stem}.md\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
