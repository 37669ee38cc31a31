"""Imports point down, and a file in a plug-in folder stands on that folder's foundations alone.

A file may import a lower floor, or its own floor as long as no circle arises. In the folders whose files are meant to
be added and deleted one at a time, a file imports no sibling and nothing from the neighbouring folders but foundations.
Every import counts: at the top, inside functions, under TYPE_CHECKING, and by `import_module("…")`.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.structure.source import PACKAGE, ROOT, Source, assert_none, findings, last_name, package_sources, planted

# The floor table: the one place to enter a new file or folder. The package root stands above all of it.
FLOORS = (
    {
        "errors",
        "sites",
        "information",
        "geometry",
        "intervals",
        "statistics",
        "files",
        "allocator",
        "cells",
        "progress",
        "observers",
    },
    {"plugins", "trials", "memory", "activations", "behaviour", "edits", "report"},
    {"tasks", "models", "charts"},
    {"probes", "ablations", "interventions", "gradient_laws", "em", "monitoring"},
    {
        "training",
        "over_training",
        "dynamics",
        "replicate",
        "comparison",
        "compare",
        "generalisation",
        "length",
        "relabelling",
        "sweep",
        "diagnose",
        "diagnosis",
        "ablate",
        "intervene",
        "intervene_together",
        "intervention_controls",
        "erase_onwards",
        "conversion",
        "selftest",
        "gradients",
        "gradient_movement",
        "em_experiment",
        "monitor",
    },
    {"commands", "cli", "claims"},
)
# Folders of plug-ins, and in each the files that every plug-in may stand on.
FOUNDATIONS = {
    "tasks": {"base", "text", "windows", "markov"},
    "models": {
        "base", "config", "checkpoint", "recorder", "identities", "replayer", "plain_loop", "positions", "proof",
        "quiet", "stack", "taps",
    },
    "charts": {"base", "theme", "lines", "simplex"},
    "probes": {"base", "belief_report", "key_report"},
    "commands": {"base"},
}  # fmt: skip
# A folder's front knows every plug-in in it: something has to choose among them.
FRONTS = {"models.resolve"}
# An adapter knows the one architecture that it adapts, and its own parts.
ADAPTERS = {
    "models.capacity": {"models.resolve"},
    "models.export": {"models.transformer"},
    "models.hooked": {"models.transformer", "models.replay"},
    "models.mamba": {"models.causal_conv", "models.scan"},
    "models.causal_conv": {"models.compiled", "models.compiled.loops"},
    "models.scan": {"models.compiled", "models.compiled.loops"},
    "models.residual": {"models.lstm", "models.mamba", "models.mlp", "models.huggingface.replay"},
    "models.replay": {"models.transformer", "models.replay_layer", "models.replay_attention"},
    "models.replay_layer": {"models.transformer", "models.replay_attention"},
    "models.replay_attention": {"models.transformer"},
}
# A probe receives a finished run: it never touches a model, and what takes a second pass is no probe.
UNSEEN = {"probes": {"models", "ablations", "interventions"}}

_FLOOR_OF = {unit: floor for floor, units in enumerate(FLOORS) for unit in units}
_ROOF = len(FLOORS)


def imported(source: Source, modules: frozenset[str]) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Each import of the package's own, with the module that it names; `modules` are those that exist."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                yield from ((node, alias.name) for alias in names if _is_ours(alias.name))
            case ast.ImportFrom(module=module, names=names, level=level):
                home = module or ""
                if level:
                    yield node, PACKAGE
                elif _is_ours(home):
                    full = [f"{home}.{alias.name}" for alias in names]
                    yield from ((node, name) for name in sorted({n if n in modules else home for n in full}))
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                if last_name(function) == "import_module" and _is_ours(name):
                    yield node, name


def upward_imports(source: Source, modules: frozenset[str] | None = None) -> Iterator[str]:
    """Imports of the package root, of a higher floor, or of a plug-in that this file must do without."""
    if modules is None:
        modules = frozenset(other.module for other in package_sources())
    if _unit(source.module) not in {*_FLOOR_OF, "", "__main__"}:
        yield f"{source.module}: not in the floor table"
        return
    for node, target in imported(source, modules):
        if target == PACKAGE:
            yield f"{source.at(node)}: imports the package root"
        elif _floor(target) > _floor(source.module):
            yield f"{source.at(node)}: imports {target}, a floor above"
        elif _unit(target) in UNSEEN.get(_unit(source.module), set()):
            yield f"{source.at(node)}: imports {target}, which {_unit(source.module)} must not see"
        elif _floor(target) == _floor(source.module) and not _may_stand_on(source.module, target):
            yield f"{source.at(node)}: imports {target}, a plug-in beside it"


def circles(sources: tuple[Source, ...]) -> list[str]:
    """A circle of imports, if there is one, as the chain of its modules."""
    modules = frozenset(source.module for source in sources)
    graph = {source.module: {target for _, target in imported(source, modules)} for source in sources}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" ← ".join(error.args[1])]
    return []


def _is_ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _unit(module: str) -> str:
    """The file or folder directly under the package: "tasks" for "bayesgeom.tasks.hmm"."""
    return f"{module}.".split(".")[1]


def _floor(module: str) -> int:
    return _FLOOR_OF.get(_unit(module), _ROOF)


def _may_stand_on(module: str, target: str) -> bool:
    short, target_short = (name.removeprefix(f"{PACKAGE}.") for name in (module, target))
    folder, target_folder = _unit(module), _unit(target)
    if target_folder not in FOUNDATIONS or target_short in {f"{target_folder}.{f}" for f in FOUNDATIONS[target_folder]}:
        return True
    plugin = ".".join(short.split(".")[:2])
    if target_short == plugin or target_short.startswith(f"{plugin}."):
        return True  # a plug-in may be a package: its files are its own
    is_front = short == folder or short in FRONTS
    return (is_front and folder == target_folder) or target_short in ADAPTERS.get(short, set())


def test_imports_point_down() -> None:
    assert_none(findings(upward_imports))


def test_imports_form_no_circle() -> None:
    assert_none(circles(package_sources()))


def test_the_guide_lists_every_unit_on_its_floor() -> None:
    table = re.findall(r"^\| (\d) \| (.+?) \|", (ROOT / "AGENTS.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = [(int(floor), unit) for floor, units in table for unit in re.findall(r"`(\w+)/?`", units)]
    assert sorted(listed) == sorted((floor, unit) for floor, units in enumerate(FLOORS) for unit in units)


def test_each_unit_stands_on_one_floor() -> None:
    assert sum(len(units) for units in FLOORS) == len(_FLOOR_OF)


NAMES = (
    "cli",
    "errors",
    "trials",
    "tasks",
    "tasks.base",
    "tasks.hmm",
    "models.base",
    "models.lstm",
    "models.rnn.gates",
)
MODULES = frozenset({PACKAGE, *(f"{PACKAGE}.{name}" for name in NAMES)})


@pytest.mark.parametrize(
    ("module", "text", "finding"),
    [
        ("trials", "from bayesgeom.tasks.base import WindTunnel", "a floor above"),
        ("trials", "from bayesgeom import cli", "a floor above"),
        ("trials", "def f():\n    import bayesgeom.cli", "a floor above"),
        ("trials", "if TYPE_CHECKING:\n    from bayesgeom.cli import main", "a floor above"),
        ("trials", "importlib.import_module('bayesgeom.cli')", "a floor above"),
        ("trials", "from bayesgeom import diagnose_everything", "the package root"),
        ("trials", "import bayesgeom", "the package root"),
        ("trials", "from . import errors", "the package root"),
        ("tasks.recall", "from bayesgeom.tasks.hmm import HMM", "a plug-in beside it"),
        ("tasks.recall", "from bayesgeom.tasks import hmm", "a plug-in beside it"),
        ("models.mamba", "from bayesgeom.tasks.hmm import HMM", "a plug-in beside it"),
        ("models.resolve", "from bayesgeom.tasks.hmm import HMM", "a plug-in beside it"),
        ("models.mamba", "from bayesgeom.models.rnn.gates import Gate", "a plug-in beside it"),
        ("probes.key_overlap", "from bayesgeom.models.base import Model", "must not see"),
        ("novelty", "", "not in the floor table"),
    ],
)
def test_a_wrong_import_is_found(module: str, text: str, finding: str) -> None:
    found = list(upward_imports(planted(text, f"{PACKAGE}.{module}"), MODULES))
    assert len(found) == 1
    assert finding in found[0]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("tasks.recall", "from bayesgeom.tasks.base import WindTunnel\nfrom bayesgeom.trials import Trials"),
        ("tasks", "from bayesgeom.tasks.hmm import HMM"),
        ("trials", "from bayesgeom import errors\nimport torch"),
        ("models.resolve", "from bayesgeom.models.lstm import LSTM"),
        ("models.rnn.model", "from bayesgeom.models.rnn.gates import Gate"),
        ("cli", "from bayesgeom.tasks.hmm import HMM"),
        ("__main__", "from bayesgeom.cli import main"),
    ],
)
def test_a_right_import_is_not(module: str, text: str) -> None:
    assert list(upward_imports(planted(text, f"{PACKAGE}.{module}"), MODULES)) == []


def test_a_circle_is_found() -> None:
    a = planted("from bayesgeom.b import x", f"{PACKAGE}.a")
    b = planted("def f():\n    from bayesgeom.a import y", f"{PACKAGE}.b")
    assert circles((a,)) == []
    assert len(circles((a, b))) == 1
