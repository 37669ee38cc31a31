"""Options that may be left out: `--n INT` in help instead of tyro's `--n {None}|INT`."""

import types
from dataclasses import replace
from functools import cache
from typing import Any, Union, get_args, get_origin

from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

_UNIONS = (Union, types.UnionType)


@cache
def registry() -> ConstructorRegistry:
    """Return the rules for options; an option of type `X | None` is read as an X, and None is its absence."""
    rules = ConstructorRegistry()
    rules.primitive_rule(_optional)
    return rules


def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Return how to read an X where the type is `X | None`; None for every other type, which tyro's rules read."""
    if get_origin(info.type) not in _UNIONS or type(None) not in get_args(info.type):
        return None
    inner = [part for part in get_args(info.type) if part is not type(None)]
    if len(inner) != 1:
        return None
    own = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(inner[0], info.markers))
    if isinstance(own, UnsupportedTypeAnnotationError):
        return None
    return replace(
        own,
        is_instance=lambda value: value is None or own.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else own.str_from_instance(value),
    )
