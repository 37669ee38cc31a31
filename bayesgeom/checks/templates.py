"""Chat templates: programs of somebody else that turn a message into a prompt, run within a time."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from bayesgeom.checks.text import shown
from bayesgeom.core.plugins import Contained

SECONDS = 5.0  # for one message; usual chat templates take milliseconds
_GROWTH = 20  # characters that a chat template may make of one of the message


def rendered(render: Callable[[], object], message: str) -> tuple[str, str]:
    """Return the text that a chat template makes of a message, and what is wrong with it; "" for nothing."""
    text: object = None
    with Contained() as rendering, _limited(SECONDS):
        text = render()
    fault = rendering.fault or _fault_of(text, message)
    return text if isinstance(text, str) else "", fault.rstrip(".")


def _fault_of(text: object, message: str) -> str:
    """What is wrong with the text that a chat template made of a message; "" for nothing."""
    if not isinstance(text, str):
        return f"it makes {shown(text)}, which is no text"
    if len(text) > _GROWTH * (len(message) + 1000):
        return f"it makes {len(text):,} characters of a message of {len(message):,}"
    if " ".join(message.split()) not in " ".join(text.split()):
        return "it leaves the user's message out"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "it makes characters that cannot be encoded"
    return ""


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` where the body's Python code takes longer: a template is a program of somebody else's.

    One operation of an interpreted program, such as a product, is not interrupted.
    """
    end, former = time.monotonic() + seconds, sys.gettrace()

    def watch(_frame: FrameType, _event: str, _argument: Any) -> Any:
        if time.monotonic() > end:
            raise TimeoutError(f"it takes more than {seconds:g} s")
        return watch

    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(former)
