"""A page per trap: each says symptom, why and guard, is linked, and names tests that exist."""

import re
from collections.abc import Iterator

import pytest

from tests.structure.source import ROOT, assert_none

PAGES = sorted((ROOT / "docs/traps").glob("*.md"))
PARTS = ("**Symptom.**", "**Why.**", "**Guard.**", "**Proof.**")
PROOF = re.compile(r"^- `(tests/[\w/]+\.py)`: `(test_\w+)`$", re.MULTILINE)


def faults(page: str) -> Iterator[str]:
    """What a page of a trap lacks."""
    yield from (f"has no {part}" for part in PARTS if part not in page)
    proofs = PROOF.findall(page)
    if not proofs:
        yield "names no test"
    for file, name in proofs:
        path = ROOT / file
        if not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
            yield f"names {file}::{name}, which does not exist"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_trap_is_explained_and_proven(path: object) -> None:
    page = next(each for each in PAGES if each == path)
    assert_none(f"{page.name} {fault}" for fault in faults(page.read_text(encoding="utf-8")))


def test_every_trap_is_linked() -> None:
    overview = (ROOT / "docs/pretrained.md").read_text(encoding="utf-8")
    assert len(PAGES) >= 11
    assert_none(
        f"docs/pretrained.md does not link {page.name}" for page in PAGES if f"(traps/{page.name})" not in overview
    )
