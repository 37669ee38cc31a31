"""The package's class hierarchy as source tells it: bases by name, followed through its own classes."""

import ast
from collections.abc import Iterable, Mapping
from functools import cache

from tests.structure.source import Source, last_name, package_sources

Classes = Mapping[str, ast.ClassDef]


def classes_by_name(sources: Iterable[Source]) -> Classes:
    """Every class of these sources; where two share a name, the later."""
    return {node.name: node for source in sources for node in source.classes()}


@cache
def package_classes() -> Classes:
    """Every class of the package: walked once, not once for each of its files."""
    return classes_by_name(package_sources())


def ancestors(node: ast.ClassDef, known: Classes) -> set[str]:
    """The names of all bases, direct and through classes in `known`."""
    found: set[str] = set()
    waiting = [last_name(base) for base in node.bases]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [last_name(base) for base in known[name].bases] if name in known else []
    return found
