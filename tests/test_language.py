"""Identifiers are in American spelling: `optimizer`, `normalize`, `color`, `center`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPELLING = re.compile(
    r"\b(?:(?:optim|normal|general|real|organ|minim|maxim|util|standard|regular|random|special|visual|vector|token|"
    r"linear|local|penal|factor|stabil)is(?:e[sdr]?|ing|ations?)\b|initialis|summaris|parameteris|recognis|behaviour|"
    r"colour|favour|neighbour|cent(?:re[sd]?|ring)\b|label(?:ling|led)\b|modell(?:ed|ing|er)\b|travell|"
    r"cancell(?:ed|ing)\b|analys(?:e|ed|ing)\b|artefact|grey\b|towards\b)",
    re.IGNORECASE,
)


def as_words(names: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", names).replace("_", " ")


def misspelled(source: str) -> Iterator[str]:
    """Functions, classes, arguments, variables and attributes that a module defines in British spelling."""
    if not SPELLING.search(as_words(source)):  # most modules: parsing them takes twenty times as long
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found = name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found = name
            case _:
                continue
        if SPELLING.search(as_words(found)):
            yield f"{node.lineno}: {as_words(found)}"


@pytest.mark.parametrize("root", ["bayesgeom", "tests", "benchmarks", "examples"])
def test_identifiers_have_american_spelling(root: str) -> None:
    paths = sorted((ROOT / root).rglob("*.py"))
    assert paths and not [f"{path}:{own}" for path in paths for own in misspelled(path.read_text(encoding="utf-8"))]


def test_british_identifiers_are_found() -> None:
    source = "class ColourScale: ...\nself.centre = optimizer\ndef normalized(towards): ...\n"
    assert sorted(misspelled(source)) == ["1: Colour Scale", "2: centre", "3: towards"]
