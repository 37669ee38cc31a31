"""Tiny models of every family, saved once for all the tests here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.families import saved


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a family's model, by the family's name."""
    home, made = tmp_path_factory.mktemp("families"), dict[str, Path]()

    def find(name: str) -> Path:
        if name not in made:
            made[name] = saved(name, home / name)
        return made[name]

    return find
