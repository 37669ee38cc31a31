"""Imports point down the layers of docs/architecture.md, and a module lives where it is used.

A file may import a lower layer, or its own layer as long as no circle arises. In the folders whose files are meant to
be added and deleted one at a time, a file imports no sibling and nothing from neighboring folders but shared modules.
Modules whose names begin with an underscore are shared.
Every import counts: at the top, inside functions, under TYPE_CHECKING, and by `import_module("…")`.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.structure.source import PACKAGE, ROOT, Source, assert_none, findings, last_name, package_sources, planted

EDGES = 164  # pairs of units of which one imports the other: half of the 328 before the units were merged
# Folders of plug-ins, and in each the modules that every plug-in may import.
SHARED = {
    "tasks": {"base", "cost", "in_context", "markov"},
    "charts": {"lines", "heat"},
    "measurements": {"base", "audit_parts", "calibration", "running", "evidence_response", "inside", "posterior_lens"},
}
# A probe receives a finished run: it never touches a model, as a measurement that runs it again does.
BELIEFS = ("belief_clusters", "belief_factors", "belief_readout", "belief_statistics")
PROBES = ("attention_entropy", *BELIEFS, "calibration", "domain_separation", "key_overlap", "posterior_lens")
UNSEEN = {
    **{
        f"measurements.{name}": ("models", "ablations", "interventions")
        for name in (*PROBES, "qk_alignment", "value_manifold")
    },
    # An architecture is plain PyTorch: it does not know how it is loaded, hooked or replayed.
    "models.native": ("models.adapters", "models.huggingface", "models.replay", "models.resolve"),
}


def _layers() -> dict[str, int]:
    """Layer of every unit, from the table in docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| ((?:`\w+` ?)+)\|", text, re.MULTILINE)
    return {unit: int(layer) for layer, units in rows for unit in re.findall(r"`(\w+)`", units)}


LAYER_OF = _layers()
_ROOF = max(LAYER_OF.values()) + 1


def imported(source: Source, modules: frozenset[str]) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Each import of the package's own, with the module that it names; `modules` are those that exist."""
    for node in source.nodes:
        match node:
            case ast.Import(names=names):
                yield from ((node, alias.name) for alias in names if _is_ours(alias.name))
            case ast.ImportFrom(module=module, names=names, level=level):
                home = module or ""
                if level:
                    yield node, PACKAGE
                elif _is_ours(home):
                    faces = face(home) if home != PACKAGE else {}
                    full = [faces.get(alias.name, f"{home}.{alias.name}") for alias in names]
                    yield from ((node, name) for name in sorted({n if n in modules else home for n in full}))
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if last_name(function) == "import_module" and _is_ours(name):
                    yield node, name


@cache
def face(package: str) -> Mapping[str, str]:
    """The module that defines each name that a folder offers in its stub; empty without one."""
    stub = ROOT / package.replace(".", "/") / "__init__.pyi"
    rows = re.findall(r"from \.([\w.]+) import (\w+) as", stub.read_text(encoding="utf-8")) if stub.is_file() else []
    return {name: f"{package}.{module}" for module, name in rows}


def upward_imports(source: Source, modules: frozenset[str] | None = None) -> Iterator[str]:
    """Imports of the package root, of a higher floor, or of a plug-in that this file must do without."""
    if modules is None:
        modules = frozenset(other.module for other in package_sources())
    if _unit(source.module) not in {*LAYER_OF, "", "__main__"}:
        yield f"{source.module}: not in the table of layers"
        return
    for node, target in imported(source, modules):
        if target == PACKAGE:
            if source.module != "bayesgeom.cli":  # commands are the public functions
                yield f"{source.at(node)}: imports the package root"
        elif _layer(target) > _layer(source.module):
            yield f"{source.at(node)}: imports {target}, a layer above"
        elif folder := _blind_to(_short(source.module), _short(target)):
            yield f"{source.at(node)}: imports {target}, which {folder} must not see"
        elif _layer(target) == _layer(source.module) and not _may_stand_on(source.module, target):
            yield f"{source.at(node)}: imports {target}, a plug-in of the same folder"


def circles(sources: tuple[Source, ...]) -> list[str]:
    """A circle of imports, if there is one, as the chain of its modules."""
    modules = frozenset(source.module for source in sources)
    graph = {source.module: {target for _, target in imported(source, modules)} for source in sources}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" ← ".join(error.args[1])]
    return []


def edges(sources: tuple[Source, ...]) -> set[tuple[str, str]]:
    """Pairs of different units of which the first imports the second, without the package root."""
    modules = frozenset(source.module for source in sources)
    found = {(_unit(own.module), _unit(target)) for own in sources for _, target in imported(own, modules)}
    return {(one, other) for one, other in found if one and other and one != other}


def _is_ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _unit(module: str) -> str:
    """The file or folder directly under the package: "tasks" for "bayesgeom.tasks.hmm"."""
    return f"{module}.".split(".")[1]


def _layer(module: str) -> int:
    return LAYER_OF.get(_unit(module), _ROOF)


def _short(module: str) -> str:
    return module.removeprefix(f"{PACKAGE}.")


def _is_in(module: str, folder: str) -> bool:
    return f"{module}.".startswith(f"{folder}.")


def _blind_to(short: str, target: str) -> str:
    """The folder that keeps this module from seeing the target; "" where none does."""
    kept = [own for own, unseen in UNSEEN.items() if _is_in(short, own) and any(_is_in(target, u) for u in unseen)]
    return kept[0] if kept else ""


def _may_stand_on(module: str, target: str) -> bool:
    short, target_short, folder = _short(module), _short(target), _unit(target)
    if folder not in SHARED or target_short in {folder, *(f"{folder}.{name}" for name in SHARED[folder])}:
        return True
    if target_short.startswith(f"{folder}._") and _unit(module) == folder:
        return True
    plugin = ".".join(short.split(".")[:2])
    if target_short == plugin or target_short.startswith(f"{plugin}."):
        return True  # a plug-in may be a package: its files are its own
    if _unit(module) == folder:
        return short == folder
    # Beyond their own folder, plug-ins of one layer are as foreign to one another.
    return _unit(module) not in SHARED


def test_imports_point_down() -> None:
    assert_none(findings(upward_imports))


def test_imports_form_no_circle() -> None:
    assert_none(circles(package_sources()))


def test_the_table_lists_every_unit_once() -> None:
    found = {_unit(source.module) for source in package_sources()} - {"", "__main__"}
    assert found == set(LAYER_OF)


def test_units_import_few_others() -> None:
    assert len(edges(package_sources())) <= EDGES


NAMES = (
    "cli",
    "core.errors",
    "core.run",
    "tasks",
    "tasks.base",
    "tasks.hmm",
    "models.base",
    "models.resolve",
    "models.native.lstm",
    "models.native.rnn.gates",
    "measurements.base",
    "diagnosis.run",
    "measurements.key_overlap",
)
MODULES = frozenset({PACKAGE, *(f"{PACKAGE}.{name}" for name in NAMES)})


@pytest.mark.parametrize(
    ("module", "text", "finding"),
    [
        ("core.run", "from bayesgeom.tasks.base import WindTunnel", "a layer above"),
        ("core.run", "if TYPE_CHECKING:\n    from bayesgeom.cli import main", "a layer above"),
        ("core.run", "importlib.import_module('bayesgeom.cli')", "a layer above"),
        ("core.run", "import bayesgeom", "the package root"),
        ("core.run", "from bayesgeom import load", "the package root"),
        ("tasks.recall", "from bayesgeom.tasks.hmm import HMM", "a plug-in of the same folder"),
        (
            "measurements.belief",
            "from bayesgeom.measurements.key_overlap import KeyOverlap",
            "a plug-in of the same folder",
        ),
        ("measurements.key_overlap", "from bayesgeom.models.base import Model", "must not see"),
        ("models.native.mamba", "from bayesgeom.models.resolve import load", "must not see"),
        ("novelty", "", "not in the table of layers"),
    ],
)
def test_a_wrong_import_is_found(module: str, text: str, finding: str) -> None:
    found = list(upward_imports(planted(text, f"{PACKAGE}.{module}"), MODULES))
    assert len(found) == 1
    assert finding in found[0]


def test_a_circle_is_found() -> None:
    a = planted("from bayesgeom.b import x", f"{PACKAGE}.a")
    b = planted("def f():\n    from bayesgeom.a import y", f"{PACKAGE}.b")
    assert circles((a,)) == []
    assert len(circles((a, b))) == 1
