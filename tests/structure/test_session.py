"""What conftest promises holds: shape checks are on, and every test process computes on one thread."""

from collections.abc import Callable, Iterator

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from torch import Tensor

from bayesgeom.core import plugins
from bayesgeom.stats.information import entropy_bits
from bayesgeom.tasks.base import derived_seed
from tests.shape_checks import needs_shapes


def test_shapes_are_checked() -> None:
    with pytest.raises(TypeCheckError, match="Expected type"):
        entropy_bits(torch.ones(3, dtype=torch.int64))


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


def test_one_thread() -> None:
    assert torch.get_num_threads() == 1
