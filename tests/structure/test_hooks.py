"""Hooks are set in one place: `hooked` in core/torch_state.py; docs/architecture.md states the one exception."""

import ast
from collections.abc import Iterator

import pytest

from tests.structure.source import PACKAGE, Source, assert_none, findings, planted

ALLOWED = {f"{PACKAGE}.core.torch_state": "register_", f"{PACKAGE}.models.adapters.lens": "add_hook"}
SETTERS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "add_hook")


def setters(source: Source) -> Iterator[str]:
    """Calls that set a hook on a module, outside the places that may."""
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in SETTERS:
            allowed = ALLOWED.get(source.module)
            if allowed is None or not node.attr.startswith(allowed):
                yield f"{source.at(node)}: {node.attr}; use `hooked` of {PACKAGE}.core.torch_state"


def test_hooks_are_set_in_one_place() -> None:
    assert_none(findings(setters))


@pytest.mark.parametrize("name", SETTERS)
def test_another_place_is_found(name: str) -> None:
    assert len(list(setters(planted(f"handle = part.{name}(call)", f"{PACKAGE}.measurements.own")))) == 1
    assert len(list(setters(planted(f"part.{name}(call)", f"{PACKAGE}.models.adapters.lens")))) == (name != "add_hook")
