"""The HMM against a sum over every state path, its header token by token, its baselines and its laws."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import NO_LABEL
from bayesgeom.tasks.base import task_from_text
from bayesgeom.tasks.hmm import HMM, SLOW

SMALL = HMM(n_states=3, n_symbols=2, length=5)
SHAPES = [SMALL, HMM(n_states=2, n_symbols=5, length=3, floor=0.1, grid=0.05), HMM(n_states=5, n_symbols=3, floor=0.0)]


@dataclasses.dataclass(frozen=True)
class Decoded:
    """One sequence read back from its tokens, by the documented layout alone."""

    transition: np.ndarray
    emission: np.ndarray
    symbols: list[int]


def decoded(task: HMM, tokens: list[int]) -> Decoded:
    s, o = task.n_states, task.n_symbols
    steps, lowest = round(1 / task.grid), round(task.floor / task.grid)
    first_special = steps - lowest + 1
    t_marker, e_marker, separator, step_marker = range(first_special, first_special + 4)
    header, body = tokens[: 3 + s * s + s * o], tokens[3 + s * s + s * o :]
    assert (header[0], header[1 + s * s], header[-1]) == (t_marker, e_marker, separator)
    assert body[0::2] == [step_marker] * task.length
    t_entries, e_entries = header[1 : 1 + s * s], header[2 + s * s : -1]
    assert all(0 <= entry < first_special for entry in t_entries + e_entries)
    transition, emission = ((np.array(entries) + lowest) / steps for entries in (t_entries, e_entries))
    symbols = [token - first_special - 4 for token in body[1::2]]
    return Decoded(transition.reshape(s, s), emission.reshape(s, o), symbols)


def summed_over_paths(hmm: Decoded, length: int) -> np.ndarray:
    """P(s_t | o_0 … o_t) at t = length − 1: the joint of every state path, summed by its last state."""
    weight = np.zeros(len(hmm.transition))
    for path in itertools.product(range(len(weight)), repeat=length):
        joint = 1 / len(weight)
        for t, state in enumerate(path):
            joint *= hmm.emission[state, hmm.symbols[t]]
            joint *= hmm.transition[path[t - 1], state] if t > 0 else 1
        weight[path[-1]] += joint
    return weight / weight.sum()


@pytest.mark.parametrize("task", [dataclasses.replace(task, length=5) for task in SHAPES], ids=str)
def test_filter_is_the_sum_over_all_state_paths(task: HMM) -> None:
    trials = task.sample(3, seed=2)
    exact = trials.at_scored(trials.predictive)
    for row, tokens in enumerate(trials.tokens.tolist()):
        hmm = decoded(task, tokens)
        for t in range(5):
            np.testing.assert_allclose(exact[row, t].numpy(), summed_over_paths(hmm, t + 1), atol=1e-13)


def test_first_symbol_needs_no_transition() -> None:
    # State 0 always jumps to 1 and back; had a transition come before the first symbol, the answer would be state 1.
    task = HMM(n_states=2, n_symbols=3, length=5, floor=0.0)
    transition, emission = torch.tensor([[[0, 100], [100, 0]]]), torch.tensor([[[100, 0, 0], [0, 50, 50]]])
    trials = task.trials(transition, emission, torch.tensor([[0, 1, 0, 1, 0]]), torch.tensor([[0, 1, 0, 2, 0]]))
    assert trials.at_scored(trials.belief)[0].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]]


def test_first_state_is_uniform_and_emits_before_moving() -> None:
    task = HMM(n_states=3, n_symbols=2, length=2)
    trials = task.sample(12_000, seed=3)
    states = trials.at_scored(trials.labels) - trials.answers[0]
    assert (torch.bincount(states[:, 0], minlength=3) / 12_000 - 1 / 3).abs().max() < 0.02
    hmms = [decoded(task, tokens) for tokens in trials.tokens[:3_000].tolist()]
    rows = range(3_000)
    emitted = np.mean([hmms[i].emission[states[i, 0], 0] - (hmms[i].symbols[0] == 0) for i in rows])
    moved = np.mean([hmms[i].transition[states[i, 0], 0] - float(states[i, 1] == 0) for i in rows])
    assert abs(emitted) < 0.035 and abs(moved) < 0.035  # sd of a mean of Bernoulli surprises ≤ 0.009


def test_default_layout_is_that_of_the_paper_repository() -> None:
    task = HMM()
    trials = task.sample(7, seed=5)
    assert (task._header_length, task.n_pos, task.d_vocab) == (53, 93, 105 + 5)
    assert trials.tokens.shape == (7, 93)
    assert trials.scored_positions()[0].tolist() == [53 + 2 * t + 1 for t in range(20)]
    assert int(trials.tokens.max()) < 105, "answer ids are never shown"
    assert trials.answers.tolist() == [105, 106, 107, 108, 109]
    assert trials.token_sets["inputs"].tolist() == [100, 101, 102, 103, 104]
    for tokens in trials.tokens.tolist():
        decoded(task, tokens)


def test_header_is_row_major() -> None:
    task = HMM(n_states=2, n_symbols=3, length=1)
    transition, emission = torch.tensor([[[90, 10], [35, 65]]]), torch.tensor([[[5, 25, 70], [60, 30, 10]]])
    trials = task.trials(transition, emission, torch.tensor([[1]]), torch.tensor([[2]]))
    marker = [96, 97, 98, 99]
    header = [marker[0], 85, 5, 30, 60, marker[1], 0, 20, 65, 55, 25, 5, marker[2]]
    assert trials.tokens[0].tolist() == [*header, marker[3], 100 + 2]
    assert trials.labels[0].tolist() == [NO_LABEL] * 14 + [103 + 1]
    np.testing.assert_allclose(trials.predictive[0, -1].numpy(), [70 / 80, 10 / 80], rtol=1e-15)


@pytest.mark.parametrize("task", [HMM(), *SHAPES, HMM(n_states=2, n_symbols=3, floor=0.0, grid=0.5)], ids=str)
def test_rows_sum_to_one_and_keep_the_floor(task: HMM) -> None:
    steps = round(1 / task.grid)
    for tokens in task.sample(53, seed=6).tokens.tolist():
        hmm = decoded(task, tokens)
        for matrix in (hmm.transition, hmm.emission):
            in_steps = matrix * steps
            assert (in_steps.round().sum(1) == steps).all()
            assert (in_steps >= task.floor * steps - 1e-9).all()


def test_likelihood_only_is_bayes_on_the_current_symbol() -> None:
    task = HMM(n_states=3, n_symbols=5, length=7)
    trials = task.sample(5, seed=8)
    baseline = task.baseline_predictives(trials)["likelihood_only"]
    for row, tokens in enumerate(trials.tokens.tolist()):
        hmm = decoded(task, tokens)
        for t, symbol in enumerate(hmm.symbols):
            column = hmm.emission[:, symbol]
            np.testing.assert_allclose(baseline[row, t].numpy(), column / column.sum(), atol=1e-15)


def test_relations_match_a_loop_over_tokens() -> None:
    task = HMM(n_states=3, n_symbols=2, length=5)
    trials = task.sample(7, seed=9)
    for row, tokens in enumerate(trials.tokens.tolist()):
        symbols = decoded(task, tokens).symbols
        for t, (symbol, pos) in enumerate(zip(symbols, trials.scored_positions()[row].tolist(), strict=True)):
            twin = {
                "emission_of_symbol": {1 + 9 + 1 + 2 * state + symbol for state in range(3)},
                "transition_entries": set(range(1, 10)),
                "current_symbol": {pos},
                "earlier_symbol": {pos - 2 * back for back in range(1, t + 1)},
            }
            assert trials.relations.keys() == twin.keys()
            for name, places in twin.items():
                assert set(trials.relations[name][row, t].nonzero()[:, 0].tolist()) == places, (name, row, t)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_states": 1}, r"n_states ≥ 2, n_symbols ≥ 2 and length ≥ 1, got HMM\(n_states=1, n_symbols=5, length=20, "),
        ({"grid": 0.03}, r"grid must divide 1 into whole steps.*got 0\.03"),
        ({"floor": 0.055}, r"floor must be a whole number of grid steps \(0\.01\), got 0\.055"),
        ({"floor": float("nan")}, r"floor must be .* got nan"),
        ({"floor": 0.25}, r"a floor of 0\.25 on 5 entries exceeds a sum of 1; lower it"),
    ],
)
def test_impossible_parameters_are_refused(parameters: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        HMM(**parameters)


def test_a_sticky_chain_stays_as_often_as_it_says() -> None:
    trials = SLOW.sample(50, seed=0)
    cells = trials.tokens[:, 1 : 1 + SLOW.n_states**2].reshape(-1, SLOW.n_states, SLOW.n_states) + 1  # floor is 1 step
    assert bool((cells.diagonal(dim1=1, dim2=2) == 96).all())
    assert bool((cells.sum(-1) == 100).all())
    assert cells.min() >= 1
    assert float(SLOW.mixing_times(trials).median()) > 10


def test_an_unreachable_mixing_time_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"stay=0\.95 leaves 0\.05 for 4 .*too little.*at most 0\.8"):
        HMM(stay=0.95)
    with pytest.raises(InvalidArgument, match=r"stay=0\.5 leaves 0\.5 .*at most 0\.2 \(mixing time 0 steps\)"):
        HMM(floor=0.2, stay=0.5)
    with pytest.raises(InvalidArgument, match=r"not below floor=0\.05, the smallest .*; got 0\.02"):
        HMM(stay=0.02)  # an entry below the floor has no token
    for wrong in (0.0, 1.0, 0.955, float("inf")):
        with pytest.raises(InvalidArgument, match="stay must be None or a probability"):
            HMM(stay=wrong, floor=0.01)
    with pytest.raises(InvalidArgument, match=r"task 'hmm': stay must be float \| None, got 'often'"):
        task_from_text("hmm:stay=often,floor=0.01")
