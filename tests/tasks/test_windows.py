"""Window observers against a sum over every hidden path, their limits, and the levels that are known of two tasks."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.core.observers import STARTS
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.windows import window_name, window_predictives, window_scores
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.linear_gaussian import LinearGaussian
from bayesgeom.tasks.markov import DynamicTask, MarkovProcess, stationary, stationary_rows
from bayesgeom.tasks.process import Mess3, Process
from bayesgeom.tasks.sticky_markov import StickyMarkov

HMMS = [
    HMM(n_states=3, n_symbols=2, length=5),
    HMM(n_states=3, n_symbols=5, length=5, floor=0.0),
    HMM(n_states=2, n_symbols=3, length=5, floor=0.01, stay=0.9),
]
TENSORS = np.random.default_rng(0).dirichlet(np.ones(10), size=5).reshape(5, 2, 5).transpose(1, 0, 2)
PROCESSES: list[MarkovProcess] = [
    Process(TENSORS, initial=(0.7, 0.3, 0.0, 0.0, 0.0), length=5),
    Mess3(x=0.05, a=0.85, length=5),
    StickyMarkov(n_states=3, noise=0.4, length=5),
]
DYNAMIC: list[DynamicTask] = [*HMMS, *PROCESSES, LinearGaussian(length=5)]


def settled(transition: np.ndarray) -> np.ndarray:
    """The eigenvector of the eigenvalue 1."""
    values, vectors = np.linalg.eig(transition.T)
    found = np.real(vectors[:, np.abs(values - 1).argmin()])
    return np.asarray(found / found.sum())


def hmm_paths(transition: np.ndarray, emission: np.ndarray, symbols: list[int], prior: np.ndarray) -> np.ndarray:
    """P(symbols, last state), one path of hidden states after the other; the first state emits before moving."""
    weight = np.zeros(len(prior))
    for path in itertools.product(range(len(prior)), repeat=len(symbols)):
        joint = prior[path[0]] * emission[path[0], symbols[0]]
        for t in range(1, len(symbols)):
            joint *= transition[path[t - 1], path[t]] * emission[path[t], symbols[t]]
        weight[path[-1]] += joint
    return weight / weight.sum()


def process_paths(labeled: np.ndarray, symbols: list[int], prior: np.ndarray) -> np.ndarray:
    """P(next symbol | symbols) of a window that starts in a state of this distribution, path by path."""
    weight, n_states = np.zeros(len(labeled)), len(prior)
    for following in range(len(labeled)):
        seen = [*symbols, following]
        for path in itertools.product(range(n_states), repeat=len(seen) + 1):
            joint = prior[path[0]]
            for t, symbol in enumerate(seen):
                joint *= labeled[symbol, path[t], path[t + 1]]
            weight[following] += joint
    return weight / weight.sum()


@pytest.mark.parametrize("task", [HMMS[0], HMMS[2]], ids=str)
def test_windows_of_an_hmm_are_sums_over_all_paths(task: HMM) -> None:
    trials = task.sample(3, seed=2)
    cells = (trials.tokens.numpy() + round(task.floor / task.grid)) * task.grid
    s, first = task.n_states, 2 + task.n_states**2
    uniform = np.full(s, 1 / s)
    for start in STARTS:
        for w in range(6):
            found = task.window_predictives(trials, w, start).numpy()
            for row in range(3):
                transition = cells[row, 1 : first - 1].reshape(s, s)
                emission = cells[row, first : task._header_length - 1].reshape(s, -1)
                shown = [int(token) - task._first_symbol for token in trials.tokens[row, task._header_length + 1 :: 2]]
                prior = uniform if start == "uniform" else settled(transition)
                for t in range(5):
                    own = uniform if w > t else prior  # the window reaches the first symbol, whose state is uniform
                    seen = shown[max(0, t + 1 - w) : t + 1]
                    expected = hmm_paths(transition, emission, seen, own) if seen else prior
                    np.testing.assert_allclose(found[row, t], expected, atol=1e-12, err_msg=f"{start} {w} {row} {t}")


@pytest.mark.parametrize("task", [PROCESSES[0], PROCESSES[2]], ids=lambda task: type(task).__name__)
def test_windows_of_a_process_are_sums_over_all_paths(task: MarkovProcess) -> None:
    task = dataclasses.replace(task, length=3)  # type: ignore[type-var]
    trials, labeled = task.sample(2, seed=3), task.labeled().numpy()
    n_states = labeled.shape[1]
    priors = {"uniform": np.full(n_states, 1 / n_states), "stationary": settled(labeled.sum(0))}
    for start, w in itertools.product(STARTS, range(4)):
        found = task.window_predictives(trials, w, start).numpy()
        for row, symbols in enumerate(trials.tokens.tolist()):
            for t in range(3):
                prior = task.start().numpy() if w > t else priors[start]
                expected = process_paths(labeled, symbols[max(0, t + 1 - w) : t + 1], prior)
                np.testing.assert_allclose(found[row, t], expected, atol=1e-12, err_msg=f"{start} {w} {row} {t}")


@pytest.mark.parametrize("task", DYNAMIC, ids=str)
def test_the_window_of_the_whole_sequence_is_the_exact_filter(task: DynamicTask) -> None:
    trials = task.sample(7, seed=4)
    exact = trials.at_scored(trials.predictive)
    for start in STARTS:
        torch.testing.assert_close(task.window_predictives(trials, 5, start), exact, atol=1e-14, rtol=0)
        assert len([*window_predictives(trials, start)]) == 6
        assert float((task.window_predictives(trials, 1, start) - exact).abs().max()) > 1e-3


@pytest.mark.parametrize("task", DYNAMIC, ids=str)
def test_scores_are_the_mean_kl_of_the_predictives(task: DynamicTask) -> None:
    trials = task.sample(7, seed=5)
    exact, scores = trials.at_scored(trials.predictive), window_scores(trials)
    assert scores is not None and scores.kl_bits.shape == (2, 6, 7)
    for (row, start), w in itertools.product(enumerate(STARTS), range(6)):
        expected = kl_bits(exact, task.window_predictives(trials, w, start).log()).mean(dim=1)
        np.testing.assert_allclose(scores.kl_bits[row, w], expected.numpy(), atol=1e-12)


def test_renamed_states_have_renamed_observers() -> None:
    task = HMMS[0]
    trials = task.sample(5, seed=7)
    names = torch.tensor([[2, 0, 1], [0, 1, 2], [1, 2, 0], [2, 1, 0], [0, 2, 1]])
    renamed = task.relabeled(trials, names)
    for start, w in itertools.product(STARTS, (0, 1, 3)):
        own = task.window_predictives(trials, w, start)
        expected = torch.empty_like(own).scatter_(2, names[:, None].expand_as(own), own)
        torch.testing.assert_close(task.window_predictives(renamed, w, start), expected, atol=1e-12, rtol=0)


def test_the_baselines_are_named_after_width_and_start() -> None:
    task = HMMS[0]
    trials = task.sample(3, seed=8)
    found = task.baseline_predictives(trials)
    for w, start in itertools.product(range(1, 5), STARTS):
        torch.testing.assert_close(found[window_name(w, start)], task.window_predictives(trials, w, start))
    torch.testing.assert_close(found["stationary"], task.window_predictives(trials, 0))
    short = dataclasses.replace(task, length=2)
    assert {name for name in short.baseline_predictives(short.sample(3, seed=0)) if "window" in name} == {
        "window_1_uniform",
        "window_1_stationary",
    }


def test_impossible_windows_are_refused() -> None:
    task = HMMS[0]
    trials = task.sample(2, seed=0)
    for w in (-1, 6):
        with pytest.raises(InvalidArgument, match=rf"w must be between 0 and 5, the number of symbols, got {w}"):
            task.window_predictives(trials, w)
    with pytest.raises(UnknownName, match=r"start of a window.*'fresh'.*stationary"):
        task.window_predictives(trials, 1, "fresh")


def test_stationary_rows_are_the_eigenvectors(rng: np.random.Generator) -> None:
    chains = torch.from_numpy(rng.dirichlet(np.ones(5), size=(7, 5)))
    chains[0] = torch.eye(5, dtype=torch.float64)  # falls into five parts
    chains[1] = torch.eye(5, dtype=torch.float64).roll(1, 0)  # a cycle
    otherwise = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1], dtype=torch.float64)
    found = stationary_rows(chains, otherwise)
    torch.testing.assert_close(found[0], otherwise)
    torch.testing.assert_close(found[1], torch.full((5,), 0.2, dtype=torch.float64))
    for row in range(2, 7):
        np.testing.assert_allclose(found[row].numpy(), settled(chains[row].numpy()), atol=1e-12)
        torch.testing.assert_close(found[row], stationary(chains[row]), atol=1e-14, rtol=0)


def test_what_a_chain_shows_before_it_settles_stays_possible() -> None:
    """State 0 is left for good; a stationary prior that rules it out would call its symbol impossible."""
    leaves = np.array([[[0.9, 0.0], [0.0, 0.0]], [[0.0, 0.1], [0.0, 1.0]]])  # symbol 0 only from state 0
    task = Process(leaves, initial=(1.0, 0.0), length=7)
    trials = task.sample(11, seed=0)
    for w in range(8):
        text = task.window_predictives(trials, w)
        assert bool(text.isfinite().all())
        torch.testing.assert_close(text.sum(-1), torch.ones(11, 7, dtype=torch.float64))
    torch.testing.assert_close(
        task.window_predictives(trials, 2)[trials.tokens == 0][:1].sum(), torch.tensor(1.0).double()
    )
