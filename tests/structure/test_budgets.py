"""Budgets on size: of functions and of classes. A file is as long as its one idea."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.source import ROOT, Rule, Source, assert_none, findings, is_public, planted

FUNCTION_LINES = 60
PARAMETERS = 7
NOT_COUNTED = {
    "self",
    "cls",
    "executor",
}  # an executor says where work runs: every batch takes one, and no result has it
PUBLIC_METHODS = 12
COMMANDS = "bayesgeom.cli"  # parameters of a command are its options


def long_functions(source: Source) -> Iterator[str]:
    """Functions over `FUNCTION_LINES`, docstring included, decorators not."""
    for node in source.functions():
        n = (node.end_lineno or node.lineno) - node.lineno + 1
        if n > FUNCTION_LINES:
            yield f"{source.at(node)}: {node.name} has {n} lines, the budget is {FUNCTION_LINES}"


def many_parameters(source: Source) -> Iterator[str]:
    """Functions over `PARAMETERS`; `self`, `cls` and `executor` do not count."""
    for node in source.functions():
        a = node.args
        names = [arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if arg]
        n = len([name for name in names if name not in NOT_COUNTED])
        if n > PARAMETERS and source.module != COMMANDS:
            yield f"{source.at(node)}: {node.name} takes {n} parameters, the budget is {PARAMETERS}"


def wide_classes(source: Source) -> Iterator[str]:
    """Classes over `PUBLIC_METHODS`, properties included; overloads of one method count once."""
    for node in source.classes():
        names = {f.name for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}
        n = sum(map(is_public, names))
        if n > PUBLIC_METHODS:
            yield f"{source.at(node)}: {node.name} has {n} public methods, the budget is {PUBLIC_METHODS}"


RULES = (long_functions, many_parameters, wide_classes)


@pytest.mark.parametrize("rule", RULES)
def test_budget_holds(rule: Rule) -> None:
    assert_none(findings(rule))


def sources_in(folder: Path) -> Iterator[Source]:
    """Every Python file in a folder of scripts."""
    for path in sorted(folder.rglob("*.py")):
        yield planted(path.read_text(encoding="utf-8"), f"{folder.name}.{path.stem}")


@pytest.mark.parametrize("rule", RULES)
def test_budget_holds_in_benchmarks(rule: Rule) -> None:
    sources = list(sources_in(ROOT / "benchmarks"))
    assert sources, "there are no benchmarks"
    assert_none(found for source in sources for found in rule(source))


def _function(n_lines: int, parameters: str = "") -> str:
    return f"def f({parameters}):\n" + "    x = 1\n" * (n_lines - 1)


def _class(n_methods: int) -> str:
    methods = "".join(f"    def f{i}(self): ...\n" for i in range(n_methods))
    return f"class A:\n    def __init__(self): ...\n    def _private(self): ...\n{methods}"


@pytest.mark.parametrize(
    ("rule", "at_budget", "over_budget"),
    [
        (long_functions, _function(FUNCTION_LINES), _function(FUNCTION_LINES + 1)),
        (
            many_parameters,
            _function(2, "self, a, b, /, c, *d, e, f, executor, **g"),
            _function(2, "a, b, /, c, *d, e, f, g, **h"),
        ),
        (wide_classes, _class(PUBLIC_METHODS), _class(PUBLIC_METHODS + 1)),
    ],
)
def test_going_over_is_found(rule: Rule, at_budget: str, over_budget: str) -> None:
    assert list(rule(planted(at_budget))) == []
    assert len(list(rule(planted(over_budget)))) == 1
