"""What is public is listed, documented in Google style, and shown by an example that runs."""

import doctest
import importlib
import inspect
import pydoc
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import bayesgeom
from bayesgeom import ablations, monitor, subspaces, tasks
from tests.structure.source import ROOT, package_sources

NAMES = [name for name in dir(bayesgeom) if callable(getattr(bayesgeom, name))]
PACKAGES = (bayesgeom, tasks, ablations, subspaces, monitor)
MOST_LINES = 60  # of the description in `help(bayesgeom)`
PUBLIC = [
    pytest.param(own, id=f"{package.__name__}.{name}")
    for package in PACKAGES
    for name in dir(package)
    if callable(own := getattr(package, name))
]
OPTIONS = doctest.ELLIPSIS
WITH_EXAMPLES = sorted(own.module for own in package_sources() if ">>> " in own.text)


def sections(text: str) -> set[str]:
    return set(re.findall(r"^(Args|Returns|Yields|Raises|Example|References):$", text, re.MULTILINE))


def undescribed(own: Any, text: str) -> list[str]:
    """Parameters of a function or class that a text does not describe."""
    parameters = [name for name in inspect.signature(own).parameters if name not in ("self", "cls")]
    return [p for p in parameters if not re.search(rf"^    (?:\w+, )*\*{{0,2}}{p}(?:, \w+)*: \S", text, re.MULTILINE)]


def undescribed_in_methods(kind: type) -> Iterator[str]:
    """Parameters of public methods that neither the method nor a base describes; a constructor may leave it to `Args`.

    Methods of other libraries, such as those of a torch module, are left out.
    """
    for base in (own for own in kind.__mro__ if own.__module__.startswith("bayesgeom")):
        for key, held in vars(base).items():
            method = held.__func__ if isinstance(held, classmethod | staticmethod) else held
            if key.startswith("_") or not inspect.isfunction(method):
                continue
            texts = [inspect.getdoc(own.__dict__.get(key)) or "" for own in kind.__mro__]
            texts += [inspect.getdoc(kind) or ""] * isinstance(held, classmethod)
            yield from (f"{base.__name__}.{key}: Args lacks {p}" for p in undescribed(method, "\n".join(texts)))


def lacking(name: str, own: Any) -> Iterator[str]:
    """What the docstring of a public function or class lacks."""
    text = inspect.getdoc(own) or ""
    found = sections(text)
    if "Example" not in found:
        yield f"{name}: no Example"
    if inspect.isclass(own) and issubclass(own, Exception | Enum):  # an enumeration's signature is that of its base
        return
    yield from (f"{name}: Args lacks {parameter}" for parameter in undescribed(own, text))
    if inspect.isfunction(own):
        gives = "Yields" if inspect.isgeneratorfunction(inspect.unwrap(own)) else "Returns"
        yield from (f"{name}: no {part}" for part in (gives, "Raises") if part not in found)


@pytest.mark.parametrize("own", PUBLIC)
def test_public_names_have_complete_docstrings(own: Any) -> None:
    assert list(lacking(own.__name__, own)) == []


@pytest.mark.parametrize("own", [param for param in PUBLIC if inspect.isclass(param.values[0])])
def test_parameters_of_public_methods_are_described(own: type) -> None:
    assert sorted(set(undescribed_in_methods(own))) == []


def test_an_incomplete_docstring_is_found() -> None:
    def planted(n: int) -> int:
        """Return n."""
        return n

    assert list(lacking("planted", planted)) == [
        "planted: no Example",
        "planted: Args lacks n",
        "planted: no Returns",
        "planted: no Raises",
    ]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_run(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = importlib.import_module(module)
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    text: list[str] = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(own, module):
        runner.run(test, out=text.append)
    assert runner.tries > 0 and not runner.failures, "".join(text)


def for_type_checkers(module: ModuleType) -> set[str]:
    """The names that a package imports explicitly, which type checkers and editors complete."""
    own = Path(str(module.__file__))
    stub = own.with_suffix(".pyi")
    text = (stub if stub.is_file() else own).read_text(encoding="utf-8")
    return set(re.findall(r"^ *from [\w.]+ import \w+ as (\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("module", PACKAGES, ids=lambda own: own.__name__)
def test_dir_lists_what_is_public_and_nothing_else(module: ModuleType) -> None:
    assert dir(module) == sorted(for_type_checkers(module) | ({"__version__"} if module is bayesgeom else set()))
    assert all(getattr(module, name) is not None for name in dir(module))
    with pytest.raises(AttributeError, match="nowhere"):
        module.nowhere  # noqa: B018


@pytest.mark.parametrize("name", [name for name in dir(bayesgeom) if not callable(getattr(bayesgeom, name))])
def test_a_public_module_is_the_same_at_every_access(name: str) -> None:
    """Importing a module below a package rebinds the package's name, so a name must not stand for another module."""
    assert name.startswith("__") or importlib.import_module(f"bayesgeom.{name}") is getattr(bayesgeom, name)


def test_no_public_function_has_the_name_of_a_module() -> None:
    """Such a function would hide the module, or the module the function, depending on what is imported first."""
    at_the_root = {path.stem for path in (ROOT / "bayesgeom").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert not at_the_root & set(NAMES)
    functions = [own.values[0] for own in PUBLIC if inspect.isfunction(own.values[0])]
    assert len(functions) > 25
    homes = {package.__name__ for package in PACKAGES}
    modules = [(own.__module__.rpartition("."), own.__name__) for own in functions]
    assert not [name for (package, _, module), name in modules if package in homes and module == name]


@pytest.mark.parametrize("module", PACKAGES, ids=lambda own: own.__name__)
def test_a_star_import_gives_what_is_public_and_nothing_else(module: ModuleType) -> None:
    found: dict[str, object] = {}
    exec(f"from {module.__name__} import *", found)
    assert sorted(set(found) - {"__builtins__"}) == [name for name in dir(module) if name != "__version__"]


@pytest.mark.parametrize("module", PACKAGES, ids=lambda own: own.__name__)
def test_help_names_what_is_public_on_a_few_screens(module: ModuleType) -> None:
    """Below the description pydoc lists the files of the package, then everything in `__all__` in full."""
    text = pydoc.plain(pydoc.render_doc(module))
    described, *_ = re.split(r"^(?:PACKAGE CONTENTS|CLASSES|FUNCTIONS)$", text, flags=re.MULTILINE)
    assert [name for name in dir(module) if name != "__version__" and not re.search(rf"\b{name}\b", described)] == []
    assert len(described.splitlines()) <= MOST_LINES and "importlib" not in text and "TYPE_CHECKING" not in text


SIGNATURES = ROOT / "tests/public_signatures.txt"


def signatures() -> str:
    """Every public function and class with the names and defaults of its parameters, a line each."""
    lines = []
    for package in PACKAGES:
        for name in dir(package):
            own = getattr(package, name)
            if not callable(own) or (inspect.isclass(own) and issubclass(own, Exception | Enum)):
                continue
            parameters = inspect.signature(own).parameters.values()
            lines.append(f"{package.__name__}.{name}({', '.join(_shown(own) for own in parameters)})")
    return "\n".join(lines) + "\n"


def _shown(parameter: inspect.Parameter) -> str:
    """A parameter without its annotation; `*` marks what only a keyword passes."""
    mark = "*" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
    default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
    return mark + str(parameter.replace(annotation=parameter.empty, default=parameter.empty)) + default


def test_public_signatures_are_the_listed_ones() -> None:
    """A change here is a change for users: see CONTRIBUTING.md. `python -m tests.whole.test_public_names` writes it."""
    assert signatures() == SIGNATURES.read_text(encoding="utf-8")


if __name__ == "__main__":
    SIGNATURES.write_text(signatures(), encoding="utf-8")
