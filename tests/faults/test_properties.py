"""Laws of tasks, reports and files, on what Hypothesis draws: a few examples by default, many in `make test-all`."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import decoded, encoded
from bayesgeom.tasks.base import WindTunnel, task_from_config
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.modular_recurrence import ModularRecurrence
from bayesgeom.tasks.process import Mess3

SEEDS = st.integers(0, 2**63 - 1)
COMMON: dict[str, Any] = {"deadline": None, "derandomize": True, "database": None}
COMMON["suppress_health_check"] = [HealthCheck.too_slow, HealthCheck.filter_too_much]
FEW, MANY = settings(max_examples=10, **COMMON), settings(max_examples=300, **COMMON)
TEXT = st.text('ab01é🙂\0\\"{', max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats() | TEXT,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXT, inside, max_size=3),
    max_leaves=5,
)


@st.composite
def tasks(draw: st.DrawFn) -> tuple[type[WindTunnel], dict[str, Any]]:
    """A kind of task and small parameters. It is made in the test: the shape checks draw random numbers."""
    small = st.integers(1, 7)
    kinds = {
        Bijection: {"n_values": small, "n_pairs": small, "repeats": st.booleans()},
        HMM: {"n_states": small, "n_symbols": small, "length": small, "floor": st.floats(0.01, 0.3)},
        ModularRecurrence: {"modulus": st.sampled_from((2, 3, 5, 7)), "length": small, "rule_share": st.floats(0, 1)},
        Mess3: {"x": st.floats(0.01, 0.49), "a": st.floats(0.01, 0.99), "length": small},
    }
    kind = draw(st.sampled_from(list(kinds)))
    return kind, {name: draw(own) for name, own in kinds[kind].items()}


def laws_of_a_task(kind: type[WindTunnel], parameters: dict[str, Any], seed: int) -> None:
    """Posteriors sum to 1, a seed is its sequences, sequences do not depend on each other, and text is the task."""
    try:
        task = kind(**parameters)
    except InvalidArgument:  # more pairs than values, …
        reject()
    one, two = task.sample(5, seed=seed), task.sample(5, seed=seed)
    assert torch.equal(one.tokens, two.tokens)
    at = one.at_scored(one.predictive)
    assert bool((at >= 0).all())
    # Sums over at most some dozens of float64 numbers: 1e-9 is far above their rounding.
    torch.testing.assert_close(at.sum(-1), torch.ones_like(at.sum(-1)), rtol=0, atol=1e-9)
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = one.rows(order)
    torch.testing.assert_close(shuffled.at_scored(shuffled.predictive), at[order], rtol=0, atol=0)
    assert task_from_config(json.loads(json.dumps(task.config()))) == task


def round_trip(value: Any) -> None:
    """What a report holds is strict JSON, and comes back as it was: NaN and infinities too."""
    text = json.dumps(encoded(value), allow_nan=False)
    np.testing.assert_equal(decoded(json.loads(text)), value)


@FEW
@given(tasks(), SEEDS)
def test_laws_of_tasks(task: tuple[type[WindTunnel], dict[str, Any]], seed: int) -> None:
    laws_of_a_task(*task, seed)


@pytest.mark.exhaustive
@MANY
@given(tasks(), SEEDS)
def test_laws_of_many_tasks(task: tuple[type[WindTunnel], dict[str, Any]], seed: int) -> None:
    laws_of_a_task(*task, seed)


@settings(FEW, max_examples=20)
@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_values_come_back(value: Any) -> None:
    round_trip(value)


@pytest.mark.exhaustive
@settings(MANY, max_examples=2000)
@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_many_values_come_back(value: Any) -> None:
    round_trip(value)
