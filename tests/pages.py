"""Reading the documentation's own tables: what a page says of a committed report is held to it."""

import re

from tests.structure.source import ROOT

READINGS = ROOT / "examples" / "replication" / "results"


def section(page: str, title: str) -> str:
    """The text under a heading of the second level, with minus signs as numbers have them."""
    folder = "examples/replication" if page in ("readings.md", "dynamics.md", "comparison.md") else "docs"
    text = (ROOT / folder / page).read_text(encoding="utf-8")
    return text.split(f"## {title}\n")[1].split("\n## ")[0].replace("−", "-")


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, headings and rules too."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def named_rows(text: str) -> dict[str, list[str]]:
    """The rows whose first cell is a name in code type, by that name."""
    return {cells[0].strip("`"): cells[1:] for cells in rows(text) if cells[0].startswith("`")}


def numbers(cell: str) -> list[float]:
    """Every number in a cell, in order; commas part thousands."""
    return [float(x) for x in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", cell))]
