"""The package as parsed source: what every structural rule reads. Nothing is imported, so nothing has to work yet."""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import final

ROOT = Path(__file__).parents[2]
PACKAGE = "bayesgeom"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Rule = Callable[["Source"], Iterable[str]]


@final
@dataclass(frozen=True, kw_only=True)
class Source:
    """One parsed file. `module` is its dotted name; a folder's `__init__` carries the folder's."""

    module: str
    text: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree: about twenty rules go through them."""
        return tuple(ast.walk(self.tree))

    def functions(self) -> Iterator[FunctionNode]:
        """Every function and method, also nested ones."""
        return (node for node in self.nodes if isinstance(node, FunctionNode))

    def classes(self) -> Iterator[ast.ClassDef]:
        """Every class, also nested ones."""
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))

    def at(self, node: ast.stmt | ast.expr | ast.excepthandler) -> str:
        """Where a node stands, as findings begin."""
        return f"{self.module}:{node.lineno}"


def planted(text: str, module: str = f"{PACKAGE}.planted") -> Source:
    """A source that is not in the package, to prove that a rule can fail."""
    return Source(module=module, text=text, tree=ast.parse(text))


@cache
def package_sources() -> tuple[Source, ...]:
    """Every Python file of the package."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    assert paths, f"no sources under {ROOT / PACKAGE}"
    return tuple(planted(path.read_text(encoding="utf-8"), _module_name(path)) for path in paths)


def findings(rule: Rule) -> list[str]:
    """What a rule finds in the whole package; a rule that holds finds nothing."""
    return [found for source in package_sources() for found in rule(source)]


def assert_none(found: Iterable[str]) -> None:
    """Fail with the whole list of findings."""
    found = list(found)
    assert not found, "\n" + "\n".join(found)


def is_public(name: str) -> bool:
    """Whether a name is offered to others: no leading underscore."""
    return not name.startswith("_")


def last_name(node: ast.expr) -> str:
    """The name that an expression ends in: `final` for `typing.final`, `Probe` for `Probe[T]`, `f` for `f(x)`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return last_name(inner)
    return ""


def decorators(node: FunctionNode | ast.ClassDef) -> set[str]:
    """The names of a definition's decorators."""
    return {last_name(decorator) for decorator in node.decorator_list}


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
