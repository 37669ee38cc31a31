"""The study uses the package as its users do: public modules and public names."""

import ast
from collections.abc import Iterator

import pytest

from tests.structure.source import ROOT

STUDY = ROOT / "examples" / "replication"


def private_names(text: str) -> Iterator[str]:
    """The imports from the package whose module, or whose name, begins with an underscore; and reading such a name."""
    tree = ast.parse(text)
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bayesgeom":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            modules |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.partition(".")[0] == "bayesgeom"]
            modules |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names if alias.name in names}
        else:
            continue
        yield from (name for name in names if any(part.startswith("_") for part in name.split(".")))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            base = ast.unparse(node.value)
            if base.partition(".")[0] in modules:
                yield f"{base}.{node.attr}"


def test_the_study_imports_public_names_only() -> None:
    paths = sorted(STUDY.rglob("*.py"))
    assert len(paths) >= 8
    assert [
        f"{path.relative_to(ROOT)}: {name}" for path in paths for name in private_names(path.read_text("utf-8"))
    ] == []


@pytest.mark.parametrize(
    "planted",
    [
        "from bayesgeom.core._private import thing",
        "from bayesgeom.core.text import _digits",
        "import bayesgeom._hidden.module",
        "def late():\n    from bayesgeom._hidden import thing",
        "from bayesgeom.core import numbers\nnumbers._digits(1)",
        "import bayesgeom\nbayesgeom.core._digits",
    ],
)
def test_a_private_name_is_found(planted: str) -> None:
    assert len(list(private_names(planted))) == 1


def test_public_names_pass() -> None:
    text = "import bayesgeom\nfrom bayesgeom.core.text import number_text\nfrom other._own import thing\n"
    assert list(private_names(f"{text}bayesgeom.load.__name__\nself._own\n")) == []
