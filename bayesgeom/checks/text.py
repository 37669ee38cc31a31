"""Values and names as messages show them, without a heavy import: the command line needs this before it begins."""

import os
from pathlib import Path

_LONGEST = 60  # characters of a value in a message


def shown(value: object) -> str:
    """A value as a message shows it: short, and on one line; of an object of another library its class alone."""
    if not isinstance(value, (str, int, float, complex, bytes, list, tuple, dict, set, Path, type(None))):
        return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = " ".join(ascii(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def is_encodable(text: str) -> bool:
    """Whether the system can take this text: no NUL, no half of a surrogate pair."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
