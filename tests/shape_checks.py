"""The run-time checker behind jaxtyping's import hook: beartype, reading annotations as mypy does.

An int is accepted where a float is asked for. `Self` is not checked: jaxtyping hands over one function at a time, and
beartype cannot tell whose method it is.
"""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: Any})))
