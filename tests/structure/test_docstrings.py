"""Everything public says what it is. A method that fills in a documented one of a base need not repeat it."""

import ast
from collections.abc import Iterator

from tests.structure.classes import Classes, ancestors, classes_by_name, package_classes
from tests.structure.source import (
    FunctionNode,
    Source,
    assert_none,
    decorators,
    findings,
    is_public,
    planted,
)

FOREIGN = {"forward"}  # methods that a library's base class documents: torch.nn.Module


def undocumented(source: Source, known: Classes | None = None) -> Iterator[str]:
    """Public modules, functions, classes and methods without a docstring, their own or a base's."""
    known = package_classes() if known is None else known
    if not ast.get_docstring(source.tree):
        yield f"{source.module}: the module has no docstring"
    for node in source.tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if _lacks_docstring(node):
                yield f"{source.at(node)}: {node.name} has no docstring"
            case ast.ClassDef() if is_public(node.name):
                if not ast.get_docstring(node):
                    yield f"{source.at(node)}: {node.name} has no docstring"
                for method in _undocumented_methods(node, known):
                    yield f"{source.at(method)}: {node.name}.{method.name} has no docstring"


def _undocumented_methods(node: ast.ClassDef, known: Classes) -> Iterator[FunctionNode]:
    bases = [known[name] for name in ancestors(node, known) if name in known]
    inherited = {method.name for base in bases for method in _methods(base) if ast.get_docstring(method)}
    for method in _methods(node):
        is_repeated = bool(decorators(method) & {"overload", "setter"})
        if _lacks_docstring(method) and not is_repeated and method.name not in inherited | FOREIGN:
            yield method


def _methods(node: ast.ClassDef) -> list[FunctionNode]:
    return [member for member in node.body if isinstance(member, FunctionNode)]


def _lacks_docstring(node: FunctionNode) -> bool:
    return is_public(node.name) and "overload" not in decorators(node) and not ast.get_docstring(node)


def test_everything_public_is_documented() -> None:
    assert_none(findings(undocumented))


def test_a_missing_docstring_is_found_and_no_other() -> None:
    source = planted(
        "class _A:\n    def g(self): '''Doc.'''\nclass B(_A[T]):\n    '''Doc.'''\n    def f(self): ...\n"
        "    def g(self): ...\n    def __len__(self): ...\n    def forward(self): ...\nasync def h(): ...\nclass D: ..."
    )
    found = [text.split(": ")[1].split()[0] for text in undocumented(source, classes_by_name([source]))]
    assert found == ["the", "B.f", "h", "D"]
