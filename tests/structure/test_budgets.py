"""Budgets on size: of functions. A file is as long as its one idea."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.source import ROOT, Rule, Source, assert_none, findings, planted

FUNCTION_LINES = 60
PARAMETERS = 7
NOT_COUNTED = {
    "self",
    "cls",
    "executor",
}  # an executor says where work runs: every batch takes one, and no result has it
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


RULES = (long_functions, many_parameters)


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


@pytest.mark.parametrize(
    ("rule", "at_budget", "over_budget"),
    [
        (long_functions, _function(FUNCTION_LINES), _function(FUNCTION_LINES + 1)),
        (
            many_parameters,
            _function(2, "self, a, b, /, c, *d, e, f, executor, **g"),
            _function(2, "a, b, /, c, *d, e, f, g, **h"),
        ),
    ],
)
def test_going_over_is_found(rule: Rule, at_budget: str, over_budget: str) -> None:
    assert list(rule(planted(at_budget))) == []
    assert len(list(rule(planted(over_budget)))) == 1
