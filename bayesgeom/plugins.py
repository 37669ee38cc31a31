"""Discovery: the final subclasses found in a folder of the package, and those that other packages offer.

Saving a file with a class in it is all it takes to add a task, a probe or a model. Another installed package adds
its own through an entry point in the group `bayesgeom.<folder>`. Two classes with one name are an error.
"""

import importlib
import inspect
import pkgutil
from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from typing import TypeVar

from bayesgeom.errors import InvalidArgument, unknown_name

T = TypeVar("T")


def discover(package: str, base: type[T]) -> dict[str, type[T]]:
    """Every concrete subclass of `base` in `package`'s modules and in its entry points, by its `name`.

    **Raises** `InvalidArgument` when two classes carry the same name.
    """
    found: dict[str, type[T]] = {}
    for plugin in (*_from_folder(package, base), *_from_entry_points(package, base)):
        if "name" not in vars(plugin):
            raise InvalidArgument(
                f"{plugin.__module__}.{plugin.__qualname__} states no name of its own: add `name = …`."
            )
        name: str = vars(plugin)["name"]
        if name in found and found[name] is not plugin:
            raise InvalidArgument(
                f"two {base.__name__}s are named {name!r}: {found[name].__module__} and {plugin.__module__}. "
                f"Rename one."
            )
        found[name] = plugin
    return dict(sorted(found.items()))


def find(package: str, base: type[T], name: str) -> type[T]:
    """The subclass of `base` with this name. **Raises** `UnknownName`, listing those that exist."""
    known = discover(package, base)
    if name not in known:
        raise unknown_name(base.__name__, name, known)
    return known[name]


def field_names(plugin: type) -> set[str]:
    """The parameters of a plug-in that is a dataclass."""
    assert is_dataclass(plugin), "what is built from parameters is a dataclass"
    return {field.name for field in fields(plugin)}


def _from_folder(package: str, base: type[T]) -> list[type[T]]:
    folder = importlib.import_module(package)
    modules = [importlib.import_module(f"{package}.{info.name}") for info in pkgutil.iter_modules(folder.__path__)]
    return [
        member
        for module in modules
        for member in vars(module).values()
        if _is_plugin(member, base) and member.__module__ == module.__name__
    ]


def _from_entry_points(package: str, base: type[T]) -> list[type[T]]:
    members = [entry.load() for entry in entry_points(group=package)]
    return [member for member in members if _is_plugin(member, base)]


def _is_plugin(member: object, base: type) -> bool:
    return (
        inspect.isclass(member) and issubclass(member, base) and not inspect.isabstract(member) and member is not base
    )
