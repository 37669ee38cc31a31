"""Options that may be left out: `--n INT` in help instead of tyro's `--n {None}|INT … (default: None)`."""

import re
import types
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
    UnsupportedTypeAnnotationError,
)

_UNIONS = (Union, types.UnionType)
_STATED = re.compile(r"\s*\b((?:Default: |Required\b)(?:[^.]|\.(?! ))*)\.$")


@cache
def registry() -> ConstructorRegistry:
    """Return the rules for options; an option of type `X | None` is read as an X, and None is its absence."""
    rules = ConstructorRegistry()
    rules.primitive_rule(_optional)
    under_way = list[StructTypeInfo]()

    def described(info: StructTypeInfo) -> StructConstructorSpec | None:
        """Return tyro's own options with readable help; None within this call, so that tyro's rules are reached."""
        if any(info is other for other in under_way):
            return None
        under_way.append(info)
        try:
            own = ConstructorRegistry.get_struct_spec(info)
        finally:
            under_way.pop()
        if not isinstance(own, StructConstructorSpec):
            return None
        return replace(own, fields=tuple(map(_readable, own.fields)))

    rules.struct_rule(described)
    return rules


def _readable(field: StructFieldSpec) -> StructFieldSpec:
    """Join the lines of the docstring. A default that says nothing is replaced by the last sentence of the docstring.

    That sentence begins with "Default:" or "Required"; without one, help shows "(optional)".
    """
    given = field.helptext
    base, *more = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    is_repeatable = tyro.conf.UseAppendAction in more  # as its help says
    says_nothing = field.default is None or (field.default in ((), "") and not is_repeatable)

    def whole() -> str:
        return " ".join(((given() if callable(given) else given) or "").split())

    def hint(_: str) -> str:
        stated = _STATED.search(whole())
        return f"({stated[1][0].lower()}{stated[1][1:]})" if stated else "(optional)"

    def helptext() -> str | None:  # None: tyro shows the docstring of a group of options
        return (_STATED.sub("", whole()) if says_nothing else whole()) or None

    # The first of several `arg` is overridden by those of the field's own annotation.
    shown: Any = Annotated[(base, tyro.conf.arg(help_behavior_hint=hint), *more)] if says_nothing else field.type
    return replace(field, type=shown, helptext=helptext)


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
