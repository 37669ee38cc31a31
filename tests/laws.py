"""Contract laws: tests that every extension of one kind passes, found by the decorator of their module."""

from collections.abc import Callable
from inspect import isfunction
from types import ModuleType

import pytest

Law = Callable[..., None]


def laws(module: ModuleType, *marks: pytest.MarkDecorator) -> dict[str, Law]:
    """Return the tests of a module that one of these decorators was put on, by name.

    Args:
        module: Module of tests.
        marks: Decorators such as `every_probe`, the objects themselves.
    """
    own = [mark.mark for mark in marks]
    return {
        name: test
        for name, test in vars(module).items()
        if isfunction(test) and any(mark is given for mark in vars(test).get("pytestmark", ()) for given in own)
    }
