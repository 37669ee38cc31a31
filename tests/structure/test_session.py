"""What conftest promises holds: shape checks are on where requested, and a test process computes on one thread."""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from bayesgeom.core import plugins
from bayesgeom.stats.information import entropy_bits
from bayesgeom.tasks.base import derived_seed
from tests.shape_checks import ARE_ON, EACH, FIRST, _by_need, checked, needs_shapes

where_checked = pytest.mark.skipif(not ARE_ON, reason="`make test-avx2` sets CHECK_ANNOTATIONS=1")


@where_checked
def test_shapes_are_checked() -> None:
    with pytest.raises(TypeCheckError, match="Expected type"):
        for _ in range(EACH):  # one of these calls is checked, however often others called it
            entropy_bits(torch.ones(3, dtype=torch.int64))


@where_checked
def test_what_has_no_shapes_is_checked_too() -> None:
    with pytest.raises(TypeCheckError, match="derived_seed"):
        derived_seed("zero", 0)
    with pytest.raises(TypeCheckError, match="reason"):
        plugins.Broken("name", 3)


def test_only_what_has_no_shape_does_without_shape_checks() -> None:
    def plain(n: int, name: str | None, values: dict[str, list[float]]) -> type[int]: ...
    def deep(values: dict[str, list[tuple[Float[Tensor, "a b"], int]]]) -> None: ...
    def returns(n: int) -> Callable[[Float[Tensor, " a"]], int]: ...
    def quoted(values: "Float[Tensor, 'a b']") -> None: ...
    def yields(n: int) -> Iterator[int]:
        yield n

    assert not needs_shapes(plain)
    assert all(needs_shapes(fn) for fn in (deep, returns, quoted, yields))


def test_an_inner_function_is_checked_where_it_is_first_made() -> None:
    def made(factor: object, hint: type) -> Callable[..., int | str]:
        def inner(n: hint) -> int | str:
            return n * factor

        return _by_need(inner, typechecker=checked)

    twice, thrice, named = made(2, int), made(3, int), made(2, str)
    assert (twice(5), thrice(5), named("a")) == (10, 15, "aa")
    for own, wrong in ((twice, "a"), (thrice, "a"), (named, 5)):
        with pytest.raises(TypeCheckError, match="inner"):
            own(wrong)
    with pytest.raises(TypeCheckError, match="return"):
        made(0.5, int)(5)


def test_shapes_are_checked_in_the_first_calls_and_now_and_then_in_later_ones() -> None:
    checked_calls = []
    for number in range(1, FIRST + 2 * EACH + 1):
        try:
            _first(torch.ones(3, dtype=torch.int64))
        except TypeCheckError:
            checked_calls.append(number)
    assert checked_calls == [*range(1, FIRST + 1), FIRST + EACH, FIRST + 2 * EACH]


def _shaped(values: Float[Tensor, " a"]) -> object:
    return values[0]


_first = _by_need(_shaped, typechecker=checked)


def test_garbage_is_collected_while_tests_run() -> None:
    assert gc.isenabled() and gc.get_freeze_count() > 0


def test_one_thread() -> None:
    assert torch.get_num_threads() == 1
