"""Arguments compared with annotations, compared with the answer of beartype."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from beartype.door import is_bearable

from bayesgeom.core.errors import InvalidArgument, check_argument, checked, fits

VALUES: list[Any] = [None, 3, -1, 2.5, "x", b"x", [], [1], ["x"], (1, 2), {}, {"x": 1}, object(), int, 1j]
VALUES += [Path("x"), torch.zeros(2), np.int64(3), range(3), {1}, iter(())]
HINTS: list[Any] = [int, str, None, int | None, Literal["x", 3], Sequence[int], Sequence[int | str], dict[str, int]]
HINTS += [Mapping[str, Any], Path, torch.Tensor, torch.Tensor | None, Sequence[int] | None, Any, object, Iterable[Any]]


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_what_fits_is_what_beartype_says(hint: Any) -> None:
    """But for what is stated below: text is no sequence, and a NumPy number is a number.

    beartype looks at one item of a collection, so these have one kind of item each.
    """
    assert [fits(own, hint) for own in VALUES if not isinstance(own, np.generic | str | bytes)] == [
        is_bearable(own, hint) for own in VALUES if not isinstance(own, np.generic | str | bytes)
    ]


@pytest.mark.parametrize(
    ("value", "hint", "is_allowed"),
    [
        (True, int, False),
        (1, bool, False),
        (np.int64(3), int, True),
        (2**63, int, False),
        (3, float, True),
        (float("nan"), float, False),
        ("abc", Sequence[str], False),
        ([1, 2], tuple[int, ...], True),
        ([1, "x"], Sequence[int], False),
        (np.array([1, 2]), Sequence[int], True),
        (torch.tensor(1), Sequence[int], False),
        ("a\0b", str, False),
        ("\ud800", str | Path, False),
        ("x" * 300, str | Path, False),
        (Path("x" * 300), Path, False),
        ("1", Literal[1], False),
        (True, Literal[1], False),
    ],
)
def test_stated_differences(value: object, hint: Any, is_allowed: bool) -> None:
    assert fits(value, hint) is is_allowed


def test_an_iterator_is_not_used_up() -> None:
    numbers = iter([1, 2])
    assert fits(numbers, Iterable[int]) and list(numbers) == [1, 2]


def test_every_refusal_is_one_line_that_names_the_parameter() -> None:
    for value, hint in itertools.product(VALUES, HINTS):
        if not fits(value, hint):
            with pytest.raises(InvalidArgument, match=r"^own must be .*, got .*\.$") as found:
                check_argument("own", value, hint)
            assert "\n" not in str(found.value) and len(str(found.value)) < 200
    with pytest.raises(InvalidArgument, match=r"got a Tensor\.$"):
        check_argument("own", torch.zeros(7, 5), int)


def test_a_function_checks_all_but_the_named_parameters() -> None:
    @checked("free")
    def function(n: int, free: int, *others: int, flag: bool = False) -> int:
        return n + sum(others)

    assert function(1, "x", 2, 3) == 6  # type: ignore[arg-type]
    for positional, named in ((("x", 1), {}), ((1, 1, "x"), {}), ((1, 1), {"flag": 1})):
        with pytest.raises(InvalidArgument):
            function(*positional, **named)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing"):
        function()  # type: ignore[call-arg]
