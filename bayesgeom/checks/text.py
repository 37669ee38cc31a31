"""Values and names in messages. Imports nothing heavy, because the command line needs this at its start."""

import os
import re
from pathlib import Path

_LONGEST = 60  # characters of a value in a message
# Control characters, which a terminal obeys, ends of lines, changes of the direction of writing, halves of surrogates.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(value: object) -> str:
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
