"""The run-time checks of every annotation in the package, with `CHECK_ANNOTATIONS=1`: beartype, as mypy reads them.

An int is accepted where a float is requested. `Self` is not checked: jaxtyping hands over one function at a time, and
beartype cannot tell whose method it is.

jaxtyping binds the arguments of every call and checks them twice, which took a third of the suite's time. Only a
function whose annotations name array shapes needs that. `install` gives every other function to beartype alone, which
makes the same checks at a twentieth of the cost.

A function inside another one is made, and checked, at every call of the outer one: hooks took a tenth of the suite's
time to be given their checks. They are made once for its code and annotations, and are then bound to each new function.

Shapes are checked in the first calls of a function in each process and in one of twenty after these, and inner
functions where they are first made: in all calls, the checks took two fifths of the suite's time.
"""

import dataclasses
import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, ForwardRef, Literal, Self, TypeVar, get_args, get_origin

import jaxtyping
import torch
from beartype import BeartypeConf, FrozenDict, beartype

ARE_ON = os.environ.get("CHECK_ANNOTATIONS") == "1"
T = TypeVar("T")
checked = beartype(
    conf=BeartypeConf(
        is_pep484_tower=True, hint_overrides=FrozenDict({Self: Any}), violation_type=jaxtyping.TypeCheckError
    )
)
_with_shapes = jaxtyping.jaxtyped
_checks: dict[CodeType, tuple[dict[str, Any], Any]] = {}
FIRST, EACH = 20, 20  # calls of a function whose shapes are checked: so many first ones, and each so-many-th other
_calls: Counter[CodeType] = Counter()


def install(package: str) -> None:
    """Check every function and dataclass of `package` that is imported from now on."""
    jaxtyping.install_import_hook(package, f"{__name__}.checked")
    jaxtyping.jaxtyped = _by_need  # the name that jaxtyping's hook writes into the modules


def _by_need(fn: T | None = None, *, typechecker: Callable[[T], T]) -> Any:
    """Stand in for `jaxtyping.jaxtyped`: with shapes where a shape is annotated, else without."""
    if fn is None:
        return functools.partial(_by_need, typechecker=typechecker)
    if inspect.isfunction(fn) and "<locals>" in fn.__qualname__ and not _is_due(fn):
        return fn
    if inspect.isclass(fn):
        made = vars(fn).get("__init__") if dataclasses.is_dataclass(fn) else None
        if inspect.isfunction(made) and not needs_shapes(made):
            fn.__init__ = typechecker(made)
            return fn
    elif inspect.isfunction(fn) and not needs_shapes(fn):
        return _again(fn, typechecker) if "<locals>" in fn.__qualname__ else typechecker(fn)
    elif inspect.isfunction(fn) and "<locals>" not in fn.__qualname__:
        return _at_times(fn, typechecker)
    return _with_shapes(fn, typechecker=typechecker)


def _is_due(fn: FunctionType) -> bool:
    """Count a call or the making of `fn`, and return whether it is to be checked."""
    _calls[fn.__code__] += 1
    return _calls[fn.__code__] <= FIRST or _calls[fn.__code__] % EACH == 0


def _at_times(fn: FunctionType, typechecker: Callable[[Any], Any]) -> Any:
    """Return a function that checks the shapes of its arguments and of its result where `_is_due`."""
    with_shapes: Any = _with_shapes(fn, typechecker=typechecker)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_traced = torch.compiler.is_compiling()  # by torch.compile, which cannot follow the checks
        return (fn if is_traced or not _is_due(fn) else with_shapes)(*args, **kwargs)

    return call


def _again(fn: FunctionType, typechecker: Callable[[T], T]) -> Any:
    """Return an inner function with its checks, which are made at its first sight alone."""
    known = _checks.get(fn.__code__)
    if known is None or known[0] != fn.__annotations__:
        made: Any = typechecker(fn)
        if "__beartype_func" in (getattr(made, "__kwdefaults__", None) or {}):
            _checks[fn.__code__] = (fn.__annotations__, made)
        return made
    made = known[1]
    own = FunctionType(made.__code__, made.__globals__, fn.__name__, made.__defaults__, made.__closure__)
    own.__kwdefaults__ = made.__kwdefaults__ | {"__beartype_func": fn}
    return functools.update_wrapper(own, fn)


def needs_shapes(fn: Callable[..., object]) -> bool:
    """Whether an annotation names a shape or may do so. Text is not read, and generators are left to jaxtyping."""
    return inspect.isgeneratorfunction(fn) or any(map(_may_hold_shape, fn.__annotations__.values()))


def _may_hold_shape(hint: object) -> bool:
    if isinstance(hint, str | ForwardRef):
        return True
    if get_origin(hint) is Literal:
        return False
    if inside := hint if isinstance(hint, list | tuple) else get_args(hint):  # a list: the arguments of a Callable
        return any(map(_may_hold_shape, inside))
    return isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)
