"""Every notebook runs from the first cell to the last, in a fresh kernel, offline and in miniature."""

import json
import os
from pathlib import Path

import nbformat
import pytest

from tests.structure.source import ROOT
from tests.tiny import tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SHOWN = {
    "first_diagnosis": "entropy error",
    "hugging_face_model": "calibration: ",
    "your_own_task": "KL(exact",
}


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


def test_there_are_three() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(SHOWN)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_valid_and_holds_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    assert all(not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell)
