"""Probes and tasks of this package by name, read from their sources: importing them would load torch, as help must not.

Each file of `bayesgeom/probes` and `bayesgeom/tasks` states names and titles as literals. With plug-ins of other
packages installed, discovery imports them all.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import final

from bayesgeom.core.plugins import has_entry_points


@final
@dataclass(frozen=True, kw_only=True)
class _Declared:
    """A class as its source states it."""

    bases: frozenset[str]
    fields: frozenset[str]
    name: str = ""
    title: str = ""


def probe_titles() -> dict[str, str]:
    """Return the question that each probe answers, by name.

    Example:
        >>> probe_titles()["key_overlap"]
        'are the keys of different tokens orthogonal?'
    """
    if has_entry_points("bayesgeom.probes"):
        from bayesgeom.diagnosis.plan import all_probes
        from bayesgeom.results.diagnosis import report_kinds

        names, titles = set(all_probes()), {name: kind.title for name, kind in report_kinds().items()}
    else:
        found = list(_declared("bayesgeom.probes"))
        names = {own.name for own in found if "Probe" in own.bases}
        titles = {own.name: own.title for own in found if own.title}
    return {name: titles[name].partition(": ")[2] or titles[name] for name in sorted(names)}


def task_names() -> list[str]:
    """Return the names of all tasks; "bijection-in-context" is the task `bijection` in words.

    Example:
        >>> "bijection-in-context" in task_names()
        True
    """
    if has_entry_points("bayesgeom.tasks"):
        from bayesgeom.tasks.base import task_kinds

        return sorted(task_kinds())
    found = [own for own in _declared("bayesgeom.tasks") if own.name]
    texts = {own.name for own in found if "TextTask" in own.bases}
    wrappers = {own.name for own in found if own.name in texts and "task" in own.fields}
    tunnels = {own.name for own in found} - texts
    return sorted({*tunnels, *texts} - wrappers | {f"{name}-{wrapper}" for name in tunnels for wrapper in wrappers})


def _declared(package: str) -> Iterator[_Declared]:
    """The classes in the files of a package."""
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations, "a folder of this package"
    for file in sorted(Path(spec.submodule_search_locations[0]).glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                yield _read(node)


def _read(node: ast.ClassDef) -> _Declared:
    stated = [own for own in node.body if isinstance(own, ast.AnnAssign) and isinstance(own.target, ast.Name)]
    named = {own.target.id: own.value for own in stated if isinstance(own.target, ast.Name)}
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    texts = {name: value.value for name, value in named.items() if isinstance(value, ast.Constant)}
    return _Declared(
        bases=frozenset(base.id for base in bases if isinstance(base, ast.Name)),
        fields=frozenset(named),
        name=str(texts.get("name", "")),
        title=str(texts.get("title", "")),
    )
