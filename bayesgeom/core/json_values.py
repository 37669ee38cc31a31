"""Python values as strict JSON, which has no NaN and no infinities."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bayesgeom.core.errors import InvalidArgument


def encoded(value: Any) -> Any:
    """Return a value as strict JSON, with NaN and infinities as {"float": "nan"}.

    Raises:
        InvalidArgument: JSON does not support the value.
    """
    match value:
        case float() if not math.isfinite(value):
            return {"float": str(value)}
        case np.floating() | np.integer() | np.bool_():
            return encoded(value.item())
        case Mapping():
            return {str(key): encoded(item) for key, item in value.items()}
        case str() | int() | float() | bool() | None:
            return value
        case Sequence():
            return [encoded(item) for item in value]
        case _:
            raise InvalidArgument(f"a report field cannot hold a {type(value).__name__}: use numbers, text, arrays.")


def decoded(value: Any) -> Any:
    """Return the inverse of `encoded`; lists become tuples, as in reports."""
    match value:
        case {"float": str(text)} if text in ("nan", "inf", "-inf"):
            return float(text)
        case dict():
            return {key: decoded(item) for key, item in value.items()}
        case list():
            return tuple(decoded(item) for item in value)
        case _:
            return value
