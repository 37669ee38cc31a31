"""Words that text tasks use as symbols, in the order in which they are tried.

A task takes the first ones that are single tokens of the model's tokenizer (`bayesgeom.checks.tokenizer`).
"""

import tomllib
from importlib.resources import files


def candidates(kind: str) -> tuple[str, ...]:
    """Return the shipped candidates for `words`, `labels` or `masks`, in the order in which they are tried."""
    listed = tomllib.loads((files("bayesgeom.tasks") / "words.toml").read_text(encoding="utf-8"))
    return tuple(listed[kind])
