"""Run the notebooks of examples/ at their full size and store their outputs, which GitHub shows.

python -m tests.store_notebooks [NAME …]

Figures are stored as pictures; for these a `chromium` must be on the path.
"""

import base64
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.structure.source import ROOT

PLOTLY, WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
WIDTH, HEIGHT = 900, 450


def executed(path: Path, folder: Path) -> Any:
    """Return the notebook with the outputs of one run in a fresh kernel, in this working directory."""
    notebook: Any = nbformat.read(path, as_version=4)
    path_of_modules = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PLOTLY_RENDERER": "plotly_mimetype", "PYTHONPATH": path_of_modules}
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute(env=environment)
    for cell in code_cells(notebook):
        cell.metadata.pop("execution", None)  # times of this run
        cell.outputs = [
            own for own in cell.outputs if own.get("name") != "stderr" and WIDGET not in own.get("data", {})
        ]
    notebook.metadata.pop("widgets", None)  # progress bars, like those on stderr
    return notebook


def printed(cell: Any) -> str:
    """Return the text that a cell prints or displays, without figures."""
    shown = [own for own in cell.outputs if {"image/png", PLOTLY}.isdisjoint(own.get("data", {}))]
    return "".join(own.text if own.output_type == "stream" else own.data["text/plain"] for own in shown)


def code_cells(notebook: Any) -> Iterator[Any]:
    yield from (cell for cell in notebook.cells if cell.cell_type == "code")


def store(path: Path) -> None:
    """Write the outputs into the notebook."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(path, Path(folder))
        for cell in code_cells(notebook):
            for output in cell.outputs:
                if PLOTLY in output.get("data", {}):
                    picture = base64.b64encode(picture_of(output.data[PLOTLY], Path(folder))).decode()
                    output.data = {"image/png": picture, "text/plain": "Figure"}
    notebook.metadata["language_info"] = {"name": "python"}  # without the version of this interpreter
    nbformat.write(notebook, path)


def picture_of(figure: Any, folder: Path) -> bytes:
    """Return a figure as PNG, drawn by chromium."""
    from plotly.graph_objects import Figure

    page, picture = folder / "figure.html", folder / "figure.png"
    drawn = Figure({"data": figure["data"], "layout": figure["layout"]})
    drawn.update_layout(width=WIDTH, height=drawn.layout.height or HEIGHT)
    size = f"{WIDTH},{int(drawn.layout.height)}"
    body = drawn.to_html(include_plotlyjs=True, full_html=False, config={"staticPlot": True})
    page.write_text(f'<meta charset="utf-8"><body style="margin:0">{body}</body>', encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=10000"]
    command += [f"--screenshot={picture}", f"--window-size={size}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    return picture.read_bytes()


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(own.stem for own in (ROOT / "examples").glob("*.ipynb")):
        store(ROOT / "examples" / f"{name}.ipynb")
