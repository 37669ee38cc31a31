"""The mixed-state presentation against an enumeration of all sequences, and the known count of RRXOR."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.spatial import cKDTree

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.stats import mixed_states
from bayesgeom.stats.mixed_states import belief_states
from bayesgeom.tasks.markov import MarkovProcess
from bayesgeom.tasks.process import Mess3, Process
from tests.tasks.test_process import GOLDEN, random_tensors

RRXOR_TASK = Process("rrxor", length=12)


@pytest.mark.parametrize(
    ("task", "depth"),
    [(RRXOR_TASK, 7), (GOLDEN, 5), (Mess3(length=5), 4), (Process(random_tensors(3, 5), length=5), 4)],
)
def test_nodes_probabilities_and_transitions_are_those_of_all_sequences(task: MarkovProcess, depth: int) -> None:
    found, labeled = task.belief_states(depth), task.labeled().numpy()
    weights, at = {(): task.start().numpy()}, {(): 0}  # of every sequence: P(symbols, last state), and its node
    for n in range(1, depth + 1):
        mass = np.zeros(len(found))
        for symbols in itertools.product(range(task.d_vocab), repeat=n):
            before = weights[symbols[:-1]]
            weights[symbols] = weight = before @ labeled[symbols[-1]]
            if not weight.sum():
                continue
            (node,) = np.flatnonzero(np.abs(found.belief.numpy() - weight / weight.sum()).max(axis=1) < 1e-8)
            at[symbols], mass[node] = node, mass[node] + weight.sum()
            parent = at[symbols[:-1]]
            assert found.reached_after[node] <= n and found.successor[parent, symbols[-1]] == node
            assert found.symbol_probability[parent, symbols[-1]] == pytest.approx(weight.sum() / before.sum())
        np.testing.assert_allclose(found.probability[n], mass, atol=1e-12)
    assert {*at.values()} == {*range(len(found))}, "every node is reached"


def test_how_many_beliefs_there_are() -> None:
    assert len(found := RRXOR_TASK.belief_states(12)) == 36 and found.is_closed
    assert not RRXOR_TASK.belief_states(5).is_closed
    assert not Mess3().belief_states(5).is_closed and len(Mess3().belief_states(5)) == (3**6 - 1) // 2
    coin = Mess3(x=1 / 3)  # forgets in one step: one belief for each symbol
    assert len(coin.belief_states(3)) == 4 and coin.belief_states(3).is_closed


def test_a_chain_of_close_beliefs_is_one_node() -> None:
    """Each symbol moves the belief by less than the tolerance."""
    step = 4e-10
    ways = np.array([[[0.5, 0.0], [step, 0.5 - step]], [[0.5, 0.0], [0.0, 0.5]]])
    found = Process(ways.tolist(), initial=(0.5, 0.5), length=5).belief_states(5)
    assert len(found) == 1 and found.is_closed and found.probability[-1, 0] == pytest.approx(1)


def test_a_symbol_that_resets_the_state_costs_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At depth 9 it leads 512 beliefs to the same one: their pairs would be the square of that."""
    counts = list[int]()

    class Tree(cKDTree):
        def query_pairs(self, *args: Any, **kwargs: Any) -> np.ndarray:
            counts.append(len(pairs := super().query_pairs(*args, **kwargs)))
            return np.asarray(pairs)

    monkeypatch.setattr(mixed_states, "cKDTree", Tree)
    ways = np.zeros((3, 3, 3))
    ways[:2] = random_tensors(2, 3) * 0.7
    ways[2, :, 0] = 0.3
    found = Process(ways.tolist(), length=12).belief_states(9)
    assert len(found) > 1_000 and not found.is_closed and max(counts) < len(found)
    reset = found.successor[:, 2]
    assert reset[0] >= 0 and (reset[found.reached_after < 9] == reset[0]).all()


def test_a_limit_gives_whole_depths() -> None:
    task = Mess3()
    found = belief_states(task.labeled(), task.start(), 9, most=100)
    assert (found.depth, len(found), found.is_closed) == (3, 40, False)


@pytest.mark.parametrize(("depth", "told"), [(0, "at least 1, got 0"), (40, r"more than 50,000 beliefs.*depth ≤ 9")])
def test_refusals(depth: int, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Mess3().belief_states(depth)
