"""A class is abstract or final: nobody has to wonder which of two implementations runs."""

import ast
import builtins
from collections.abc import Iterator

from tests.structure.classes import Classes, ancestors, classes_by_name, package_classes
from tests.structure.source import Source, assert_none, decorators, findings, last_name, planted

ABSTRACT_BASES = {"ABC", "Protocol"}
# An enumeration with members cannot be subclassed; a TypedDict has no implementation.
CLOSED_BASES = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "TypedDict"}


def open_classes(source: Source, known: Classes | None = None) -> Iterator[str]:
    """Classes that are neither abstract, nor final, nor exceptions."""
    known = package_classes() if known is None else known
    for node in source.classes():
        if not (_is_final(node, known) or _is_abstract(node)):
            yield f"{source.at(node)}: {node.name} is neither abstract nor final: decorate it with typing.final"


def _is_final(node: ast.ClassDef, known: Classes) -> bool:
    above = ancestors(node, known)
    is_exception = any(_is_builtin_exception(name) for name in above)
    return "final" in decorators(node) or is_exception or bool(above & CLOSED_BASES)


def _is_abstract(node: ast.ClassDef) -> bool:
    methods = [member for member in node.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)]
    if any("abstractmethod" in decorators(method) for method in methods):
        return True
    is_abc = any(keyword.arg == "metaclass" and last_name(keyword.value) == "ABCMeta" for keyword in node.keywords)
    return is_abc or any(last_name(base) in ABSTRACT_BASES for base in node.bases)


def _is_builtin_exception(name: str) -> bool:
    kind = vars(builtins).get(name)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def test_every_class_is_abstract_or_final() -> None:
    assert_none(findings(open_classes))


def test_an_open_class_is_found_and_no_other() -> None:
    source = planted(
        "class A(nn.Module): ...\n@typing.final\nclass B(A): ...\nclass C(ABC): ...\nclass D(ValueError): ...\n"
        "class E(D): ...\nclass F(A):\n    @abc.abstractmethod\n    def f(self): ...\nclass G(enum.StrEnum): ..."
    )
    assert [text.split(": ")[1].split()[0] for text in open_classes(source, classes_by_name([source]))] == ["A"]
