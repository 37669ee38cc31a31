"""Values and names in messages. Imports nothing heavy, because the command line needs this at its start."""

import os
from pathlib import Path

_LONGEST = 60  # characters of a value in a message


def shown(value: object) -> str:
    """Return a value for a message: short, on one line; for objects of other libraries only their class."""
    if not isinstance(value, (str, int, float, complex, bytes, list, tuple, dict, set, Path, type(None))):
        return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(ascii(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def is_whole(text: str) -> bool:
    """Return whether text is a whole number of at most 18 digits: int() refuses thousands of digits.

    Example:
        >>> is_whole("12"), is_whole("-1"), is_whole("9" * 5000)
        (True, False, False)
    """
    return text.isdecimal() and len(text) <= 18


def is_encodable(text: str) -> bool:
    """Return whether the system can encode this text: it has no NUL and no half of a surrogate pair."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
