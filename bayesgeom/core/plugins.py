"""Discovery of plug-ins: the concrete subclasses in a folder of the package and in other packages' entry points.

To add a task, a probe or a model, save a file with a class in it, whose name does not begin with _. Another installed
package adds its own classes through an entry point in the group `bayesgeom.<folder>`. Two classes with the same name
are an error. An unusable entry point is skipped with a warning: a broken third-party package must not end a diagnosis.
"""

import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, final

from bayesgeom.core.errors import InvalidArgument, unknown_name

T = TypeVar("T")


@final
class Contained:
    """Context manager that catches exceptions of third-party code and describes them in `fault`; `error` is the last.

    This is the only place that catches all exceptions, because those of third-party code are not known here. Only
    KeyboardInterrupt propagates, because the user may have caused it. With `is_foreign` false, for code of this
    package, all exceptions propagate.
    """

    def __init__(self, *, is_foreign: bool = True) -> None:
        self.fault = ""
        self.error: BaseException | None = None
        self._is_foreign = is_foreign

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not self._is_foreign or error is None or isinstance(error, KeyboardInterrupt):
            return False
        self.error = error
        name, message = type(error).__name__, " ".join(str(error).split())
        self.fault = f"{name}: {message}" if message else name
        return True


def discover(package: str, base: type[T], *, group: str | None = None) -> dict[str, type[T]]:
    """Return the concrete subclasses of `base` in the modules and entry points of a package, by their `name`.

    An unusable entry point is skipped with a warning.

    Args:
        package: Name of the package whose modules are searched.
        base: Base class of the plug-ins.
        group: Group of the entry points. None: the name of the package.

    Raises:
        InvalidArgument: Two classes in the folder have the same name.
    """
    kinds, broken = plugins_and_faults(package, base, group=group)
    for reason in broken.values():
        warnings.warn(reason, stacklevel=2)
    return kinds


def plugins_and_faults(
    package: str, base: type[T], *, group: str | None = None
) -> tuple[dict[str, type[T]], dict[str, str]]:
    """Return the result of `discover`, and why entry points cannot be used, by their name, without warnings.

    Raises:
        InvalidArgument: Two classes in the folder have the same name.
    """
    kinds: dict[str, type[T]] = {}
    for plugin in _from_folder(package, base):  # type: ignore[arg-type]  # mypy: an abstract class is no Hashable
        _check_name(plugin, kinds, base)
        kinds[vars(plugin)["name"]] = plugin
    broken: dict[str, str] = {}
    for entry in _entry_points(group or package, tuple(sys.path)):
        members, fault = _loaded(entry, package, base)
        try:
            for kind in members:
                _check_name(kind, kinds, base)
                kinds[vars(kind)["name"]] = kind
        except InvalidArgument as error:
            fault = str(error)
        if fault:
            broken[entry.name] = _reason(entry, fault)
    return dict(sorted(kinds.items())), broken


def plugin_values(group: str, kind: type[T], *, taken: Collection[str]) -> dict[str, T]:
    """Return the objects of a class that other packages provide as entry points; skip unusable ones with a warning.

    Args:
        group: Group of the entry points, such as "bayesgeom.recipes".
        kind: Class of the objects. Each has an attribute `name` equal to the name of its entry point.
        taken: Names that are already in use.

    Returns:
        The objects by name.
    """
    members = dict[str, T]()
    for entry in _entry_points(group, tuple(sys.path)):
        fault = f"a {kind.__name__} of this name exists" if entry.name in {*taken, *members} else ""
        with Contained() as loading:
            member = entry.load()
            if not isinstance(member, kind):
                fault = f"it must be a {kind.__name__}, got a {type(member).__name__}"
            elif vars(member).get("name", entry.name) != entry.name:  # a function has no other name
                fault = f"its {kind.__name__} is named {vars(member)['name']!r}"
            elif not fault:
                members[entry.name] = member
        if fault := fault or loading.fault:
            warnings.warn(_reason(entry, fault), stacklevel=3)
    return members


def declared(folder: str) -> list[str]:
    """Return the names that the classes in a folder of the package declare, read from its files: nothing is imported.

    Args:
        folder: Name of the folder, such as "tasks".
    """
    texts = (path.read_text(encoding="utf-8") for path in (Path(__file__).parents[1] / folder).glob("[!_]*.py"))
    name = re.compile(r'^    name: ClassVar\[str\] = "(.+)"', re.MULTILINE)
    return sorted({each for text in texts for each in name.findall(text)})


def find_plugin(package: str, base: type[T], name: str, *, group: str | None = None) -> type[T]:
    """Return the subclass of `base` with this name.

    Raises:
        UnknownName: There is none. The message lists the known names.
    """
    known = discover(package, base, group=group)
    if name not in known:
        raise unknown_name(base.__name__, name, known)
    return known[name]


def is_foreign(kind: type) -> bool:
    """Return whether a class is defined in another package."""
    return kind.__module__.partition(".")[0] != __name__.partition(".")[0]


def field_names(plugin: type) -> set[str]:
    """Return the parameter names of a plug-in that is a dataclass."""
    assert is_dataclass(plugin), "what is built from parameters is a dataclass"
    return {field.name for field in fields(plugin)}


@cache
def _from_folder(package: str, base: type[T]) -> list[type[T]]:
    """The plug-ins in the modules of a package. Modules are imported once, so that these never change."""
    folder = importlib.import_module(package)
    modules = [importlib.import_module(f"{package}.{info.name}") for info in pkgutil.iter_modules(folder.__path__)]
    kinds = [kind for module in modules for kind in vars(module).values() if _is_defined_in(kind, module.__name__)]
    return [kind for kind in kinds if _is_plugin(kind, base)]


def _is_defined_in(member: object, module: str) -> bool:
    return isinstance(member, type) and member.__module__ == module


@lru_cache(maxsize=64)
def _entry_points(group: str, _path: tuple[str, ...]) -> EntryPoints:
    """The entry points of a group, cached: reading them opens a file of every installed package."""
    return entry_points(group=group)


def _reason(entry: Any, fault: str) -> str:
    return f"plug-in {entry.name!r} ({entry.value}) cannot be used: {fault.rstrip('.')}."


def _loaded(entry: Any, package: str, base: type[T]) -> tuple[list[type[T]], str]:
    """Return the classes of this kind that an entry point provides, and the reason if it cannot be used.

    One group serves several kinds, such as probes and their reports. An entry point that names a class of another kind
    provides the classes of this kind that are defined in the same module: a probe brings its report.
    """
    with Contained() as loading:
        member = entry.load()
        if _is_plugin(member, base):
            kind: type[T] = member
            return [kind], ""
        ours = package.partition(".")[0]
        if not inspect.isclass(member) or not any(kind.__module__.partition(".")[0] == ours for kind in member.__mro__):
            return [], f"it offers no {base.__name__}"
        if issubclass(member, base) and member is not base:
            missing = ", ".join(sorted(vars(member).get("__abstractmethods__", ())))
            return [], f"{member.__name__} leaves {missing} undefined"
        neighbors = vars(sys.modules[member.__module__]).values()
        return [kind for kind in neighbors if _is_defined_in(kind, member.__module__) and _is_plugin(kind, base)], ""
    return [], loading.fault


def _check_name(plugin: type, found: Mapping[str, type], base: type) -> None:
    """Raise `InvalidArgument` if a class cannot be registered under its name."""
    name = vars(plugin).get("name")
    if type(name) is not str or not name:
        raise InvalidArgument(
            f"{plugin.__module__}.{plugin.__qualname__} has no attribute `name` of its own: add `name = …`."
        )
    if name in found and found[name] is not plugin:
        raise InvalidArgument(
            f"two {base.__name__}s are named {name!r}: {found[name].__module__} and {plugin.__module__}. Rename one."
        )


def _is_plugin(member: object, base: type) -> bool:
    return (
        inspect.isclass(member)
        and issubclass(member, base)
        and not inspect.isabstract(member)
        and member is not base
        and not member.__name__.startswith("_")
    )
