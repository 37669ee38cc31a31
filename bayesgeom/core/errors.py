"""Errors, the values and names in their messages, and the checks of arguments.

Each message states what was requested, what is available, and how to fix it. Arguments of public functions are compared
with their annotations before anything is computed. The annotation is the only definition of the allowed types. Each
function checks ranges, which annotations cannot state, itself. Array shapes are not checked here.
"""

import contextlib
import functools
import inspect
import math
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, SupportsIndex, TypeVar

import numpy as np
from jaxtyping import AbstractArray

_LONGEST = 60  # characters of a value in a message
# Control characters, which a terminal obeys, ends of lines, changes of the direction of writing, halves of surrogates.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def quoted(value: object) -> str:
    """Return a value for a message: short, on one line; for objects of other libraries only their class."""
    if not isinstance(value, (str, int, float, complex, bytes, list, tuple, dict, set, Path, type(None))):
        return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(ascii(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def on_one_line(text: str) -> str:
    """Return text with escapes for characters that end a line, move the cursor or cannot be encoded.

    Example:
        >>> on_one_line("bell" + chr(7)).endswith("07")
        True
    """
    return _UNSEEN.sub(_escaped, text)


def on_lines(text: str) -> str:
    """Return text as `on_one_line` does, with its ends of lines and its tabs."""
    return _UNSEEN.sub(lambda found: found[0] if found[0] in "\n\t" else _escaped(found), text)


def _escaped(found: "re.Match[str]") -> str:
    return found[0].encode("unicode_escape").decode()


def is_whole_number(text: str) -> bool:
    """Return whether text is a whole number of at most 18 digits: int() refuses thousands of digits.

    Example:
        >>> is_whole_number("12"), is_whole_number("-1"), is_whole_number("9" * 5000)
        (True, False, False)
    """
    return text.isdecimal() and len(text) <= 18


def is_encodable(text: str) -> bool:
    """Return whether the system can encode this text: it has no NUL and no half of a surrogate pair."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


class BayesGeomError(Exception):
    """Base class of all bayesgeom errors; the command line prints them as one line.

    Example:
        >>> import bayesgeom
        >>> try:
        ...     bayesgeom.load("no-such-checkpoint")
        ... except bayesgeom.BayesGeomError as error:
        ...     print(type(error).__name__)
        UnknownName
    """

    def __init__(self, message: str = "") -> None:
        """Keep the message on one line: a name in it, of a file or of a damaged report, can hold any character."""
        super().__init__(on_one_line(message))


class InvalidArgument(BayesGeomError, ValueError):
    """An argument with an invalid value, such as n ≤ 0 or an odd `d_head` with rotary positions."""


class UnknownName(BayesGeomError, KeyError):
    """An unknown name of a task, probe, checkpoint, recipe or architecture; the message lists the known names."""

    __str__ = Exception.__str__  # KeyError's own would put the message in quotes


class CheckpointFault(BayesGeomError):
    """An unusable checkpoint: truncated, wrong tensors or shapes, NaN weights, or a newer schema."""


class TaskMismatch(BayesGeomError, ValueError):
    """Tokens that do not fit the model: a different vocabulary, a context that is too long, or ids out of range."""


class MissingSite(BayesGeomError, LookupError):
    """A site that the model does not provide, or whose identity check failed when the model was attached.

    `site` is the site that a run was asked for and did not record; None elsewhere.
    """

    def __init__(self, message: str, site: object = None) -> None:
        super().__init__(message)
        self.site: Any = site


class NoCopy(InvalidArgument):
    """A model whose architecture cannot be instantiated again, so that no untrained baseline is available."""


class HookFault(BayesGeomError, RuntimeError):
    """A hook that did not fire exactly once per pass or saw an unexpected shape, or an edit without effect."""


class NonFinite(BayesGeomError, ArithmeticError):
    """NaN or infinite logits or losses, with which the computation cannot continue."""


class OutputFault(BayesGeomError, OSError):
    """A path that cannot be written, or cannot be read back as a report."""


class ExecutorFault(BayesGeomError, RuntimeError):
    """An engine that cannot be reached, a job whose worker died, a worker with other versions."""


class ServerFault(BayesGeomError, ConnectionError):
    """An inference server that cannot be reached, or replies without the numbers that are measured.

    Attributes:
        status: The HTTP status of the last reply; None without a reply, and for a reply of status 200.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@contextlib.contextmanager
def optional_package(name: str, what: str) -> Iterator[None]:
    """Around the import of optional packages: if one is missing, say how to install it.

    Args:
        name: The extra of bayesgeom that installs them.
        what: What needs them, in words.

    Raises:
        InvalidArgument: One of them is not installed.

    Example:
        >>> with optional_package("xarray", "to_xarray()"):
        ...     import no_such_package
        Traceback (most recent call last):
        bayesgeom.core.errors.InvalidArgument: to_xarray() needs no_such_package: pip install '.[xarray]' in the clone.
    """
    try:
        yield
    except ImportError as error:
        raise InvalidArgument(f"{what} needs {error.name or error}: pip install '.[{name}]' in the clone.") from error


def unknown_name(kind: str, requested: str, known: Collection[str]) -> UnknownName:
    """Return the error for a name that does not exist. It lists the known names and suggests a similar one."""
    return UnknownName(
        f"there is no {kind} named {requested!r}. There are: {_all(known)}.{suggestion(requested, known)}"
    )


def check_known(of: str, given: Iterable[str], known: Collection[str]) -> None:
    """Check that every given parameter name is a parameter of `of`.

    Raises:
        InvalidArgument: A name is unknown. The message lists the known names and suggests a similar one.
    """
    for name in given:
        if name not in known:
            raise InvalidArgument(f"{of} has no parameter {name!r}. It has: {_all(known)}.{suggestion(name, known)}")


def suggestion(requested: str, known: Collection[str]) -> str:
    """Return a sentence with the known name that is most similar to an unknown one, after a space; "" if none is.

    Example:
        >>> suggestion("calibraton", ["calibration", "key_overlap"])
        " Perhaps you meant 'calibration'."
    """
    names = {name.lower(): name for name in known}
    return "".join(f" Perhaps you meant {names[name]!r}." for name in get_close_matches(requested.lower(), names, n=1))


def _all(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "(none)"


P = ParamSpec("P")
R = TypeVar("R")
_NAME_BYTES = 255  # of a file name on the systems in use


def checked(*besides: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that compares the arguments of every call with the function's annotations.

    Args:
        *besides: Parameters that the function checks itself, with a more specific message.

    Returns:
        The decorator. The function then raises `InvalidArgument` for a value of another type than annotated, and
        receives Python's numbers in place of those of NumPy and torch.

    Example:
        >>> @checked()
        ... def doubled(n: int) -> int:
        ...     return 2 * n
        >>> doubled("x")
        Traceback (most recent call last):
        bayesgeom.core.errors.InvalidArgument: n must be int, got 'x'.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            hints = _hints(function)
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # which says what does not bind
            for name, value in bound.arguments.items():
                if name not in hints or name in besides:
                    continue
                if kinds[name] is inspect.Parameter.VAR_KEYWORD:
                    bound.arguments[name] = _checked_options(value, hints[name])
                    continue
                values = value if kinds[name] is inspect.Parameter.VAR_POSITIONAL else (value,)
                for item in values:
                    check_argument(name, item, hints[name])
                plain = tuple(_plain(item, hints[name]) for item in values)
                bound.arguments[name] = plain if values is value else plain[0]
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate


def check_argument(name: str, value: object, hint: Any) -> None:
    """Check that a value is one that an annotation allows.

    Raises:
        InvalidArgument: It is not. Integers above 63 bits, NaN and text that cannot be encoded are never allowed.
    """
    if fits(value, hint):
        return
    raise InvalidArgument(f"{name} must be {allowed_values(hint)}, got {quoted(value)}.")


def _checked_options(given: Mapping[str, Any], hint: Any) -> dict[str, Any]:
    """Return the options that a function takes as a `TypedDict`, checked, with Python's numbers.

    None is an option that is not given. The function itself says which ones are unknown.
    """
    hints = {name: kind for inside in typing.get_args(hint) for name, kind in _hints(inside).items()}
    known = {name: value for name, value in given.items() if name in hints and value is not None}
    for name, value in known.items():
        check_argument(name, value, hints[name])
    return {**given, **{name: _plain(value, hints[name]) for name, value in known.items()}}


def integer_of(value: object) -> int | None:
    """Return an integer of Python, of NumPy, or in an array or tensor without axes, as Python's; None for others.

    Truth values, whole floating-point numbers and text are no integers.

    Example:
        >>> integer_of(np.uint32(4)), integer_of(np.array(4)), integer_of(True), integer_of(4.0)
        (4, 4, None, None)
    """
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, int):
        return value  # also a `DerivedSeed`, which is more than its number
    if not isinstance(value, SupportsIndex) or np.ndim(value):  # type: ignore[arg-type]  # of any array or tensor
        return None
    match value:
        case object(dtype=kind) if "bool" in str(kind):
            return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # of floating-point numbers, or on a device without numbers
        return None


def with_plain_integers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with Python's integers in place of those of NumPy and torch."""
    return {name: value if (plain := integer_of(value)) is None else plain for name, value in values.items()}


def check_types(instance: Any, *, of: str = "") -> None:
    """Check every field of a dataclass against its annotation, and turn integers of NumPy and torch into Python's.

    Args:
        instance: The dataclass.
        of: What the fields belong to, as in `check_fields`.

    Raises:
        InvalidArgument: As in `check_argument`.
    """
    check_fields(type(instance), vars(instance), of=of)
    make_plain(instance)


def make_plain(instance: Any) -> None:
    """Turn the numbers of NumPy and torch in a dataclass, whose fields are checked, into Python's."""
    for name, hint in _field_hints(type(instance)).items():
        if name in vars(instance) and (plain := _plain(value := vars(instance)[name], hint)) is not value:
            object.__setattr__(instance, name, plain)


def check_fields(kind: type, values: Mapping[str, Any], *, of: str = "") -> None:
    """Check values for fields of a dataclass against their annotations.

    Args:
        kind: The dataclass.
        values: Values by the name of their field; other names are not checked.
        of: What the fields belong to, at the start of the message: "task 'hmm': ".

    Raises:
        InvalidArgument: As in `check_argument`.
    """
    hints = _field_hints(kind)
    for field in fields(kind):
        if field.name in values and field.name in hints:
            check_argument(f"{of}{field.name}", values[field.name], hints[field.name])


def _field_hints(kind: type) -> Mapping[str, Any]:
    try:
        return _hints(kind)
    except NameError:  # annotations as text, with names that only a type checker imports
        return {field.name: field.type for field in fields(kind) if not isinstance(field.type, str)}


def _plain(value: Any, hint: Any) -> Any:
    """Return a value that fits an annotation with Python's numbers in place of NumPy's and torch's, and else itself."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _plain(value, inside[0])
    if origin in (typing.Union, types.UnionType):
        return next((_plain(value, one) for one in inside if fits(value, one)), value)
    if hint is int:
        return integer_of(value)
    if (hint is float and isinstance(value, np.number)) or (hint is bool and isinstance(value, np.bool_)):
        return value.item()
    if isinstance(origin, type) and issubclass(origin, Sequence) and isinstance(value, Sequence | np.ndarray):
        items = value.tolist() if isinstance(value, np.ndarray | memoryview) else value
        of_each = inside if len(inside) == len(items) and inside[-1] is not ... else inside[:1] * len(items)
        plain = [_plain(item, kind) for item, kind in zip(items, of_each, strict=True)] if inside else list(items)
        if not isinstance(value, list | tuple) or not all(map(operator.is_, items, plain)):
            return tuple(plain) if isinstance(value, tuple) else plain
    return value


def fits(value: Any, hint: Any, *, with_nan: bool = False) -> bool:
    """Return whether an annotation allows a value; True is not a number, and text not a sequence of texts.

    Args:
        value: The value.
        hint: The annotation. Of an array, only the class is compared.
        with_nan: Whether NaN is a number: it is in reports, and not among arguments.
    """
    inner = functools.partial(fits, with_nan=with_nan)
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Any, object) or isinstance(hint, TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        names_path = isinstance(value, str) and any(_is_path_class(typing.get_origin(one) or one) for one in inside)
        return _is_path(value) if names_path else any(inner(value, one) for one in inside)
    if origin is Annotated:
        return inner(value, inside[0])
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inside)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return _fits_collection(value, origin, inside, inner)
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return isinstance(value, hint.array_type)
    if hint is float and with_nan and isinstance(value, float):
        return True
    return _fits_class(value, origin or hint)


def allowed_values(hint: Any) -> str:
    """Return an annotation as Python writes it, without the names of modules.

    Example:
        >>> allowed_values(Path | None)
        'Path | None'
    """
    hint = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    text = re.sub(r"(?<![\w'\"])(?:\w+\.)+(?=[A-Za-z])", "", text)
    return re.sub(r"Literal\[(.+?)\]", lambda found: found[1].replace(", ", " or "), text)


def _fits_collection(value: Any, origin: type, inside: tuple[Any, ...], fits: Callable[[Any, Any], bool]) -> bool:
    if isinstance(value, str | bytes):
        return False
    if issubclass(origin, Mapping):
        items = inside or (Any, Any)
        return isinstance(value, Mapping) and all(fits(k, items[0]) and fits(v, items[1]) for k, v in value.items())
    if isinstance(value, np.ndarray | memoryview):
        value = value.tolist() if value.ndim == 1 else None
    if issubclass(origin, tuple) and inside and inside[-1] is not ...:
        return isinstance(value, tuple | list) and len(value) == len(inside) and all(map(fits, value, inside))
    if not isinstance(value, Sequence if issubclass(origin, tuple) else origin):
        return False
    item = inside[0] if inside else Any
    if not isinstance(value, Collection):
        return True  # no iterator is used up
    try:
        return all(fits(one, item) for one in value)
    except TypeError:  # a tensor without axes
        return False


def _fits_class(value: Any, kind: Any) -> bool:
    """Return whether a value has a class that is not a collection; protocols without a runtime test allow anything."""
    if kind is None:
        return value is None
    if kind is int:
        integer = integer_of(value)
        return integer is not None and abs(integer) < 2**63
    if kind is float:
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        return is_number and (fits(value, int) or (not isinstance(value, Integral) and not math.isnan(value)))
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind is str:
        return isinstance(value, str) and is_encodable(value)
    if _is_path_class(kind):
        return isinstance(value, os.PathLike) and _is_path(os.fspath(value))
    try:
        return isinstance(value, kind)
    except TypeError:
        return True


def _is_path_class(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, os.PathLike)


def _is_path(text: object) -> bool:
    """Return whether text can be a path: it is encodable and no part is longer than a file name may be."""
    if not isinstance(text, str) or not is_encodable(text):
        return False
    return all(len(os.fsencode(part)) <= _NAME_BYTES for part in Path(text).parts)


@functools.cache
def _hints(of: Hashable) -> Mapping[str, Any]:
    return typing.get_type_hints(of, include_extras=True)
