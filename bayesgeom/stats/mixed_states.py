"""The mixed-state presentation of a process: the beliefs over its hidden states that sequences can reach.

A belief after the symbols x_1 … x_t is η T^(x_1) … T^(x_t), normalized, where η is the start and T^(x) the labeled
matrices. It is a node; a symbol leads from a node to the next one. Some processes have finitely many nodes.

References:
    Crutchfield, Ellison & Mahoney 2009, arXiv:0905.3587 (mixed states).
    Shai et al. 2024, arXiv:2405.15943 (the 36 mixed states of RRXOR).
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.spatial import cKDTree
from torch import Tensor

MERGED = 1e-9  # beliefs whose entries differ by at most this are one node: far above rounding
_EQUAL = 1e-2 * MERGED  # the grid of entries that count as equal
IMPOSSIBLE = 1e-12  # where matrices have negative entries, a smaller probability is rounding error


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BeliefStates:
    """The beliefs that sequences of up to `depth` symbols reach, in the order of the fewest symbols that reach them.

    Attributes:
        belief: The belief over hidden states at each node; node 0 is the start.
        reached_after: The fewest symbols that lead to each node.
        probability: Probability of each node after 0, 1, … `depth` symbols; a row sums to 1.
        symbol_probability: Probability of each next symbol at each node.
        successor: The node to which each symbol leads; −1 if the symbol is impossible, or the next node deeper.
        is_closed: Whether these are all beliefs of the process: every possible symbol leads to one of them.
    """

    belief: Float64[Tensor, "node state"]
    reached_after: Int64[Tensor, " node"]
    probability: Float64[Tensor, "step node"]
    symbol_probability: Float64[Tensor, "node symbol"]
    successor: Int64[Tensor, "node symbol"]
    is_closed: bool

    def __len__(self) -> int:
        return len(self.belief)

    def __repr__(self) -> str:
        last = int(self.reached_after[-1])
        within = f"all, reached after {last}" if self.is_closed else f"not closed by {self.depth}"
        return f"BeliefStates({len(self):,} beliefs, {within} symbols)"

    @property
    def depth(self) -> int:
        """Number of symbols that were followed."""
        return len(self.probability) - 1


def belief_states(
    labeled: Float64[Tensor, "symbol state state"], start: Float64[Tensor, " state"], depth: int, *, most: int
) -> BeliefStates:
    """Return the beliefs that up to `depth` symbols reach; at most `most`, and then those of a smaller depth.

    Args:
        labeled: T^(x); entry (i, j) is the probability to go from state i to state j and emit x.
        start: Distribution of the state before the first symbol.
        depth: Number of symbols to follow.
        most: Limit for the number of beliefs.
    """
    ways, last = labeled.cpu().numpy(), start.cpu().numpy()[None]
    nodes, successors, sizes = last, list[np.ndarray](), [1]
    while len(last) and len(sizes) <= depth:
        after, new = _followed(ways, last, nodes)
        if len(nodes) + len(new) > most:
            break
        successors.append(after)
        sizes.append(len(new))
        nodes, last = np.concatenate([nodes, new]), new
    is_closed = not len(last)
    successor = np.concatenate([*successors, np.full((len(last), len(ways)), -1)])
    if not is_closed:  # of the last ones, those symbols are known that lead back
        after, _ = _followed(ways, last, nodes)
        successor[len(nodes) - len(last) :] = np.where(after < len(nodes), after, -1)
        is_closed = bool((after < len(nodes)).all())
    shown_next = np.einsum("ni,xij->nx", nodes, ways)
    if (ways < 0).any():
        shown_next[np.abs(shown_next) < IMPOSSIBLE] = 0.0
    n_steps = depth if is_closed else len(sizes) - 1
    return BeliefStates(
        belief=torch.from_numpy(nodes),
        reached_after=torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)),
        probability=torch.from_numpy(_probabilities(shown_next, successor, n_steps)),
        symbol_probability=torch.from_numpy(shown_next),
        successor=torch.from_numpy(successor),
        is_closed=is_closed,
    )


def _followed(
    ways: Float64[np.ndarray, "symbol state state"],
    last: Float64[np.ndarray, "new state"],
    nodes: Float64[np.ndarray, "node state"],
) -> tuple[np.ndarray, Float64[np.ndarray, "next state"]]:
    """Return the node after each symbol at each of the last nodes (−1 if it is impossible), and those that are new."""
    joint = np.einsum("ni,xij->nxj", last, ways).reshape(-1, nodes.shape[1])
    total = joint.sum(axis=1)
    possible = np.flatnonzero(total > (IMPOSSIBLE if (ways < 0).any() else 0))
    beliefs = joint[possible] / total[possible, None]
    # Equal beliefs are one before pairs are sought: a symbol that resets the state gives thousands of them.
    _, shown, same = np.unique(np.round(beliefs / _EQUAL), axis=0, return_index=True, return_inverse=True)
    order = shown.argsort()
    beliefs, same = beliefs[shown[order]], order.argsort()[same.reshape(-1)]
    # The first belief of a cluster stands for it, so that the order of nodes is that of sequences.
    every = np.concatenate([nodes, beliefs])
    first = np.arange(len(every))
    pairs = cKDTree(every).query_pairs(MERGED, p=np.inf, output_type="ndarray")
    np.minimum.at(first, pairs[:, 1], pairs[:, 0])
    while (first[first] != first).any():  # a chain of close beliefs
        first = first[first]
    is_new = first == np.arange(len(every))
    number = np.where(is_new, np.cumsum(is_new) - 1, -1)[first]
    after = np.full(len(joint), -1)
    after[possible] = number[len(nodes) :][same]
    return after.reshape(len(last), len(ways)), beliefs[is_new[len(nodes) :]]


def _probabilities(
    shown_next: Float64[np.ndarray, "node symbol"], successor: np.ndarray, n_steps: int
) -> Float64[np.ndarray, "step node"]:
    """Return the probability of each node after each number of symbols."""
    rows, symbols = np.nonzero(successor >= 0)
    probability = np.zeros((n_steps + 1, len(successor)))
    probability[0, 0] = 1.0
    for step in range(n_steps):
        moved = probability[step, rows] * shown_next[rows, symbols]
        probability[step + 1] = np.bincount(successor[rows, symbols], weights=moved, minlength=len(successor))
    return probability
