"""What conftest promises holds: shape checks are on, and every test process computes on one thread."""

import pytest
import torch
from jaxtyping import TypeCheckError

from bayesgeom.stats.information import entropy_bits


def test_shapes_are_checked() -> None:
    with pytest.raises(TypeCheckError, match="Expected type"):
        entropy_bits(torch.ones(3, dtype=torch.int64))


def test_one_thread() -> None:
    assert torch.get_num_threads() == 1
