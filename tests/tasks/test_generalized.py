"""Processes whose matrices have negative entries: products of matrices, density matrices, and what is refused."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import concatenate
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.readout import belief_rows
from bayesgeom.subspaces.quantity import PosteriorQuantity
from bayesgeom.tasks.base import task_from_config, task_from_text
from bayesgeom.tasks.process import Mess3, Process

RNG = np.random.default_rng(0)


def instrument(n_symbols: int, n_operators: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Random Kraus operators: the blocks of a random isometry."""
    square = rng.normal(size=(2, n_symbols * n_operators * d, d))
    isometry = np.linalg.qr(square[0] + 1j * square[1])[0]
    return np.asarray(isometry.reshape(n_symbols, n_operators, d, d))


def in_another_basis(task: Process, rng: np.random.Generator, **given: Any) -> Process:
    """The same process in coordinates that are no probabilities: S T S⁻¹, where the rows of S sum to 1."""
    ways, n = task.labeled().numpy(), len(task.start())
    change = rng.normal(size=(n, n))
    change += (1 - change.sum(axis=1, keepdims=True)) / n
    return Process(change @ ways @ np.linalg.inv(change), generalized=True, **given)


QUTRIT = instrument(2, 2, 3, RNG)
EXCITED = np.diag([0.0, 0.0, 1.0])


@pytest.mark.parametrize("initial", [None, EXCITED])
def test_a_quantum_process_is_the_evolution_of_its_density_matrix(initial: np.ndarray | None) -> None:
    task = Process.from_kraus(QUTRIT, initial=initial, length=7)
    assert task.is_generalized and task == task_from_config(task.config())
    trials = task.sample(5, seed=1)
    density = initial
    if density is None:  # the stationary state, by evolution
        density = np.eye(3) / 3
        for _ in range(200):
            density = np.einsum("xkij,jl,xkml->im", QUTRIT, density, QUTRIT.conj())
    for tokens, predictive in zip(trials.tokens.tolist(), trials.predictive.numpy(), strict=True):
        rho = density
        for symbol, exact in zip(tokens, predictive, strict=True):
            rho = np.einsum("kij,jl,kml->im", QUTRIT[symbol], rho, QUTRIT[symbol].conj())
            rho = rho / np.trace(rho)
            after = np.einsum("xkij,jl,xkil->x", QUTRIT, rho, QUTRIT.conj()).real
            np.testing.assert_allclose(exact, after, atol=1e-12)


def test_a_changed_basis_changes_no_probability() -> None:
    task = Mess3(x=0.05, a=0.85, length=5)
    same = in_another_basis(Process(task.labeled().numpy(), length=5), RNG, length=5)
    symbols = torch.tensor([*itertools.product(range(3), repeat=6)])
    own, other = task.trials(symbols), same.trials(symbols)
    assert float(other.belief.min()) < 0 and other.is_signed and not own.is_signed
    torch.testing.assert_close(other.belief.sum(-1), torch.ones(729, 5, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(other.predictive, own.predictive, atol=1e-12, rtol=0)
    baselines = same.baseline_predictives(other)
    for name, exact in task.baseline_predictives(own).items():
        torch.testing.assert_close(baselines[name], exact, atol=1e-7, rtol=0, msg=name)
    assert same.mixing_time == pytest.approx(task.mixing_time)
    assert [len(one.belief_states(4)) for one in (task, same)] == [121, 121]


def test_the_bloch_walk_is_the_reference_s() -> None:
    """Its slice of the Bloch ball in coordinates (1, z, x), as the reference's matrices give it for α = 1, β = √51."""
    own, aside, across = 1 / 4, (1 - 51) / 208, 2 * 51**0.5 / 208
    z = np.array([[own, across, 0], [across, own, 0], [0, 0, aside]])
    x = np.array([[own, 0, across], [0, aside, 0], [across, 0, own]])
    flip_z, flip_x = np.diag([1, -1, 1]), np.diag([1, 1, -1])
    ways = [z, flip_z @ z @ flip_z, x, flip_x @ x @ flip_x]
    task = task_from_text("bloch-walk:length=9")
    assert isinstance(task, Process) and repr(task) == "Process(bloch-walk, length=9)"
    trials = task.sample(7, seed=0)
    for tokens, predictive in zip(trials.tokens.tolist(), trials.predictive.numpy(), strict=True):
        state = np.array([1.0, 0, 0])
        for symbol, exact in zip(tokens, predictive, strict=True):
            state = state @ ways[symbol] / (state @ ways[symbol])[0]
            np.testing.assert_allclose(exact, [(state @ way)[0] for way in ways], atol=1e-12)


def written_in_simplexity(name: str) -> np.ndarray:
    """The matrices of its file, for the parameters of its configurations."""
    if name == "tom-quantum":  # α = β = 1
        z, x = np.array([[1, 0, 1], [0, 0, 0], [1, 0, 1]]) / 4, np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0]]) / 4
        flip_z, flip_x = np.diag([1, 1, -1]), np.diag([1, -1, 1])
        return np.array([z, flip_z @ z @ flip_z, x, flip_x @ x @ flip_x])
    if name == "post-quantum":  # log α = 1, β = 0.5; the sum's largest eigenvalue is not yet 1
        return np.array(
            [
                [[1, -1, -1], [1, -1, -1], [0, 0, 0]],
                [[np.e, 0, 0], [0, 1, 0], [0, 1, 1]],
                [[0.5, 0, 0], [0, 1, 0], [0, np.log(0.5), 1]],
            ]
        )
    alpha, lamb = 2000.0, 0.49
    cos, sin = np.cos(alpha), np.sin(alpha)
    a = (1 - lamb * cos + lamb * sin) / (1 - 2 * lamb * cos + lamb**2)
    b = (1 - lamb * cos - lamb * sin) / (1 - 2 * lamb * cos + lamb**2)
    reset = [1 - (2 / (1 - lamb) - a - b) / 4, 1 / (2 * (1 - lamb)), -a / 4, -b / 4]
    after = [1, 1 - lamb, 1 + lamb * (sin - cos), 1 - lamb * (sin + cos)]
    turn = lamb * np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, cos, -sin], [0, 0, sin, cos]])
    return np.array([np.outer(after, reset), turn])


@pytest.mark.parametrize("name", ["fanizza", "post-quantum", "tom-quantum"])
def test_simplexity_s_generalized_processes_give_the_probabilities_of_its_matrices(name: str) -> None:
    """Every sequence of up to five symbols, between the left and right vectors of the largest eigenvalue."""
    task = task_from_text(f"{name}:length=12")
    assert isinstance(task, Process) and task.is_generalized and repr(task) == f"Process({name}, length=12)"
    assert task == task_from_config(task.config())
    written = written_in_simplexity(name)
    values, right = np.linalg.eig(written.sum(axis=0))
    left = np.linalg.inv(right)
    top = int(values.real.argmax())
    assert abs(values[top].imag) < 1e-12
    settled, after = left[top].real, right[:, top].real
    ways, start = task.labeled().numpy(), task.start().numpy()
    for n in range(1, 6):
        total = 0.0
        for word in itertools.product(range(len(written)), repeat=n):
            own, given = start, settled
            for symbol in word:
                own, given = own @ ways[symbol], given @ written[symbol] / values[top].real
            assert own.sum() == pytest.approx(float(given @ after), abs=1e-12) and own.sum() > -1e-12
            total += own.sum()
        assert total == pytest.approx(1)
    trials = task.sample(7, seed=0)
    assert float(trials.predictive.min()) >= 0
    torch.testing.assert_close(trials.predictive.sum(-1), torch.ones(7, 12, dtype=torch.float64))


def test_what_is_drawn_is_drawn_as_predicted() -> None:
    task = Process.from_kraus(QUTRIT, length=4)
    trials = task.sample(20_000, seed=2)
    exact, came = trials.predictive, torch.nn.functional.one_hot(trials.labels, 2).double()
    assert float((exact - came).mean(dim=0).abs().max()) < 5 * 0.5 / 20_000**0.5
    for name, baseline in task.baseline_predictives(trials).items():
        assert 0 < float(kl_bits(exact, baseline.log()).mean()) < 1, name
    several = concatenate([trials.rows(slice(0, 3)), trials.rows(slice(3, 5))])
    assert several.is_signed and torch.equal(several.belief, trials.belief[:5])


def test_nothing_reads_a_negative_belief_as_a_distribution() -> None:
    trials = Process.from_kraus(QUTRIT, length=4).sample(7, seed=0)
    values, alive, label = belief_rows(trials.belief, is_signed=True).unbind(dim=2)
    assert torch.equal(values, trials.belief) and alive.all() and not label.any()
    with pytest.raises(InvalidArgument, match="may be negative and has no odds; use belief or entropy"):
        PosteriorQuantity.of("log_odds:1").check(trials)
    PosteriorQuantity.of("belief").check(trials)


def test_a_probability_that_is_negative_late_is_refused_when_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesgeom.tasks.process._MOST_PREFIXES", 1)
    task = Process([[[1.5, -0.5], [0, 0.5]], [[-0.5, 0.5], [0.25, 0.25]]], generalized=True, length=5)
    with pytest.raises(InvalidArgument, match=r"last symbol of 0 (0 )*1 has the probability -0\.\d+"):
        task.sample(50, seed=0)


TURNED = in_another_basis(Process("golden-mean"), RNG).labeled().numpy()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Process(TURNED), r"finite and at least 0, got -.*with generalized=True"),
        (lambda: Process(-TURNED, generalized=True), r"must sum to 1 .* sums to -1"),
        (
            lambda: Process([[[1.5, -0.5], [0, 0.5]], [[-0.5, 0.5], [0.25, 0.25]]], generalized=True),
            r"last symbol of 0 1 has the probability -0\.25.*at least 0 for every sequence",
        ),
        (lambda: Process(np.stack([np.eye(2) * 1.5, -np.eye(2) / 2]), generalized=True), "is reducible.*pass initial"),
        (lambda: Process(TURNED, initial=[0.5, 0.6], generalized=True), "initial must hold 2 .* sum to 1"),
        (lambda: Process.from_kraus(QUTRIT[0, 0]), r"shape \(symbol, d, d\) or .*, got \(3, 3\)"),
        (lambda: Process.from_kraus(2 * QUTRIT), r"Σ K†K = 1 over all symbols; an entry here is off by 3"),
        (lambda: Process.from_kraus("abc"), "operators must be an array of finite, possibly complex numbers"),
        (lambda: Process.from_kraus(QUTRIT, initial=np.eye(3)), r"density matrix of shape \(3, 3\).*trace 1"),
        (lambda: Process.from_kraus(QUTRIT, initial=np.eye(2)), r"density matrix of shape \(3, 3\)"),
        (lambda: Process.from_kraus(QUTRIT, length=0), "at least 1, got 0"),
    ],
)
def test_refusals(made: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        made()
