"""docs/families.md says what is: every family's sites, and errors within the limit."""

import importlib.metadata
from pathlib import Path

import pytest

from bayesgeom.models.adapters.proof import TOLERANCE
from bayesgeom.models.huggingface.model import _OF_STATES
from tests.supported import FAMILIES, INSIDE_MLP, SITES, row, summary

PAGE = Path(__file__).parents[3] / "docs" / "families.md"


def documented() -> dict[str, tuple[str, ...]]:
    """The sites of every family, those inside its MLP, and how many sites of weights it has."""
    text = PAGE.read_text(encoding="utf-8").partition("| --- | --- | --- | --- |")[2].partition("## States")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {name: tuple(cells) for *cells, names in lines for name in names.split(", ")}


def test_the_page_lists_every_family_once() -> None:
    assert len(FAMILIES) >= 60 and documented().keys() == set(FAMILIES)


def documented_states() -> dict[str, list[str]]:
    """The layers, numbers and proof error of every family with a state."""
    text = PAGE.read_text(encoding="utf-8").partition("## States")[2].partition("## Refused")[0]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    return {name: cells for name, *cells in lines}


def test_the_page_has_a_state_of_each_recurrence_with_its_proof_error() -> None:
    states = documented_states()
    assert {"mamba", "mamba2", "qwen3_next", "recurrent_gemma", "falcon_h1", "nemotron_h"} <= states.keys()
    assert all(float(error) <= _OF_STATES for _, _, error in states.values())


@pytest.mark.families
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_sites_that_the_page_says(name: str) -> None:
    (found, state), text = row(name), documented()[name]
    errors = [float(cell.partition(" ")[0]) for cell in found[1 : 1 + len((*SITES, *INSIDE_MLP))] if cell != "–"]
    assert errors and max(errors) <= TOLERANCE
    if f"transformers {importlib.metadata.version('transformers')}," in PAGE.read_text(encoding="utf-8"):
        assert summary(found) == text
        assert state[:2] == documented_states().get(name, [])[:2]
    assert not state or float(state[2]) <= _OF_STATES
