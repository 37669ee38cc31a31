"""What conftest promises holds: shape checks are on where requested, and a test process computes on one thread."""

import gc

import pytest
import torch
from jaxtyping import TypeCheckError

from bayesgeom.report.estimate import Unit
from bayesgeom.stats.information import entropy_bits
from bayesgeom.tasks.base import derived_seed
from tests.shape_checks import ARE_ON, EACH

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
    with pytest.raises(TypeCheckError, match="name"):
        Unit(3)


def test_garbage_is_collected_while_tests_run() -> None:
    assert gc.isenabled() and gc.get_freeze_count() > 0


def test_one_thread() -> None:
    assert torch.get_num_threads() == 1
