"""A module that exactly one other unit uses lives in that unit, and no two classes of the package share a name.

The lists hold the exceptions that are left. They only shrink.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tests.structure.source import PACKAGE, Source, assert_none, package_sources, planted
from tests.structure.test_layers import _unit, face, imported

# The command line is how users reach a function: what it alone imports is offered to them, and is not a part of it.
FACES = {"cli", "", "__main__"}
ELSEWHERE = {  # to be emptied: modules, and the one unit that uses each
    "charts.simplex": "measurements",
    "stats.bounds": "report",
    "stats.manifold": "measurements",
    "stats.readout": "measurements",
}
DISCOVERED = {"measurements"}  # a file there is used as soon as it is saved
OFFERED = ("", "ablations", "monitor", "subspaces", "tasks")  # users reach what these folders offer under their names
SHARED_NAMES = {"Context"}  # to be emptied, too


def users(sources: tuple[Source, ...]) -> Mapping[str, set[str]]:
    """The units whose files import each module; for a file of the package root, its own name."""
    modules = frozenset(source.module for source in sources)
    found = defaultdict[str, set[str]](set)
    for source in sources:
        for _, target in imported(source, modules):
            found[target].add(_unit(source.module))
    for unit in OFFERED:
        for target in face(f"{PACKAGE}.{unit}".rstrip(".")).values():
            found[target].add(unit)
    return found


def misplaced(sources: tuple[Source, ...]) -> Iterator[tuple[str, str]]:
    """Each module that only files of one other unit import, with that unit."""
    for module, units in users(sources).items():
        home = _unit(module)
        if len(units) == 1 and not units & {home, *FACES} and home not in {"", *DISCOVERED}:
            yield module.removeprefix(f"{PACKAGE}."), units.pop()


def repeated_names(sources: tuple[Source, ...]) -> Iterator[tuple[str, list[str]]]:
    """Each name of a class that several modules define at their top level, with these modules."""
    homes = defaultdict[str, list[str]](list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(source.module)
    yield from ((name, modules) for name, modules in homes.items() if len(modules) > 1)


def test_a_module_of_one_unit_lives_in_that_unit() -> None:
    found = dict(misplaced(package_sources()))
    assert_none(f"{module}: only {unit} uses it" for module, unit in found.items() if ELSEWHERE.get(module) != unit)


def test_no_two_classes_share_a_name() -> None:
    found = dict(repeated_names(package_sources()))
    assert_none(f"{name}: {', '.join(found[name])}" for name in found.keys() - SHARED_NAMES)


def test_a_module_away_from_its_home_is_found() -> None:
    rows, text = planted("x = 1", f"{PACKAGE}.stats.rows"), f"from {PACKAGE}.stats.rows import x"
    probe, other = (planted(text, f"{PACKAGE}.{unit}.a") for unit in ("measurements", "gradients"))
    assert dict(misplaced((rows, probe))) == {"stats.rows": "measurements"}
    assert not dict(misplaced((rows, probe, other)))
    assert not dict(misplaced((rows, planted(text, f"{PACKAGE}.cli"))))
    assert not dict(misplaced((rows, probe, planted(text, f"{PACKAGE}.stats.b"))))


def test_a_name_of_two_classes_is_found() -> None:
    one, other = (planted("class Run: ...\nclass _Own: ...", f"{PACKAGE}.{unit}.a") for unit in ("core", "tasks"))
    assert dict(repeated_names((one, other))) == {"Run": [one.module, other.module]}
    assert not dict(repeated_names((one,)))
