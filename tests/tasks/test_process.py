"""Processes against a sum over every path of states; Mess3 against its written-out matrices; what is refused."""

import itertools

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.stats.information import entropy_bits
from bayesgeom.tasks.base import task_from_config, task_from_text
from bayesgeom.tasks.markov import MarkovProcess
from bayesgeom.tasks.process import Mess3, Process
from bayesgeom.tasks.product import Product
from bayesgeom.tasks.sticky_markov import StickyMarkov
from tests.shape_checks import ARE_ON


def random_tensors(n_symbols: int, n_states: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).dirichlet(np.ones(n_symbols * n_states), size=n_states)
    return rows.reshape(n_states, n_symbols, n_states).transpose(1, 0, 2)


GOLDEN = Process("golden-mean", length=5)  # some symbols are impossible, and belief collapses
SMALL: list[MarkovProcess] = [
    Process(random_tensors(5, 3), length=5),
    Process(random_tensors(2, 3, seed=1), initial=(0.7, 0.3, 0.0), length=5),
    GOLDEN,
    Mess3(x=0.05, a=0.85, length=5),
    StickyMarkov(n_states=5, noise=0.4, length=3),
    Product("golden-mean", Process(random_tensors(3, 2)), length=3),
    Product("golden-mean", Process(random_tensors(3, 2)), length=3, dependence=0.2),
]


def path_weights(task: MarkovProcess, symbols: list[int], start: np.ndarray) -> np.ndarray:
    """P(symbols, last state), summed over every path of hidden states from this start."""
    labeled = task.labeled().numpy()
    weight = np.zeros(labeled.shape[1])
    for path in itertools.product(range(len(weight)), repeat=len(symbols) + 1):
        joint = start[path[0]]
        for t, symbol in enumerate(symbols):
            joint *= labeled[symbol, path[t], path[t + 1]]
        weight[path[-1]] += joint
    return weight


@pytest.mark.parametrize("task", SMALL, ids=lambda task: type(task).__name__)
def test_belief_and_predictive_are_sums_over_all_paths(task: MarkovProcess) -> None:
    trials, start = task.sample(3, seed=2), task.start().numpy()
    for row, symbols in enumerate(trials.tokens.tolist()):
        for t in range(task.n_pos):
            weight = path_weights(task, symbols[: t + 1], start)
            np.testing.assert_allclose(trials.belief[row, t].numpy(), weight / weight.sum(), atol=1e-13)
            longer = [path_weights(task, [*symbols[: t + 1], x], start).sum() for x in range(task.d_vocab)]
            np.testing.assert_allclose(trials.predictive[row, t].numpy(), longer / weight.sum(), atol=1e-13)


@pytest.mark.parametrize("task", SMALL, ids=lambda task: type(task).__name__)
def test_baselines_are_what_is_left_when_earlier_symbols_are_summed_out(task: MarkovProcess) -> None:
    trials, start = task.sample(2, seed=3), task.start().numpy()
    baselines, step = task.baseline_predictives(trials), task.labeled().sum(0).numpy()
    for row, symbols in enumerate(trials.tokens.tolist()):
        for t in range(task.n_pos):
            for name, kept in (("prior", 0), ("last_symbol", 1), ("last_two", 2)):
                n_kept = min(kept, t + 1)
                before = start @ np.linalg.matrix_power(step, t + 1 - n_kept)
                seen = symbols[t + 1 - n_kept : t + 1]
                joint = [path_weights(task, [*seen, x], before).sum() for x in range(task.d_vocab)]
                np.testing.assert_allclose(
                    baselines[name][row, t].numpy(), joint / np.sum(joint), atol=1e-13, err_msg=name
                )


@pytest.mark.parametrize("task", SMALL, ids=lambda task: type(task).__name__)
def test_layout_every_symbol_asks_for_the_next(task: MarkovProcess) -> None:
    trials = task.sample(7, seed=4)
    assert trials.tokens.shape == (7, task.n_pos) and trials.scored.all()
    assert torch.equal(trials.labels[:, :-1], trials.tokens[:, 1:])
    assert trials.answers.tolist() == list(range(task.d_vocab))
    given = trials.predictive.gather(2, trials.labels[:, :, None])
    assert given.min() > 0, "what comes next is possible"
    back = trials.scored_positions()[0][:, None] - torch.arange(task.n_pos)
    for name, twin in (("current_symbol", back == 0), ("previous_symbol", back == 1), ("earlier_symbol", back > 1)):
        assert all(torch.equal(found, twin) for found in trials.relations[name])


@pytest.mark.parametrize("task", SMALL[1:3], ids=["start", "golden"])
def test_symbols_come_as_often_as_the_predictive_says(task: MarkovProcess) -> None:
    trials = task.sample(8_000, seed=5)
    text = trials.predictive.flatten(0, 1)
    came = torch.nn.functional.one_hot(trials.labels.flatten(), task.d_vocab).double()
    for low in (0.0, 0.1, 0.2, 0.4, 0.6, 0.8):
        chosen = (text >= low) & (text < low + 0.2)
        if int(chosen.sum()) > 2_000:
            assert float(text[chosen].mean()) == pytest.approx(float(came[chosen].mean()), abs=0.015)
    # A martingale: the expected belief is where the chain is expected to be.
    ahead = task.start() @ torch.linalg.matrix_power(task.labeled().sum(0), task.n_pos)
    torch.testing.assert_close(trials.belief[:, -1].mean(0), ahead, atol=0.02, rtol=0)


def test_a_process_starts_from_its_stationary_distribution_by_default() -> None:
    process = Process(random_tensors(5, 3))
    torch.testing.assert_close(process.start() @ process.labeled().sum(0), process.start())
    assert process.start().sum() == pytest.approx(1)
    assert SMALL[1].start().tolist() == [0.7, 0.3, 0.0]


def test_mess3_is_the_literature_s() -> None:
    """The matrix of the first symbol as the reference writes it for x = 0.05, a = 0.85, and the code's defaults."""
    written = [[0.765, 0.00375, 0.00375], [0.0425, 0.0675, 0.00375], [0.0425, 0.00375, 0.0675]]
    np.testing.assert_allclose(Mess3(x=0.05, a=0.85).labeled()[0].numpy(), written)
    assert (Mess3().x, Mess3().a) == (0.05, 0.85)
    same = Process(Mess3().labeled().numpy(), length=32)
    torch.testing.assert_close(same.start(), Mess3().start())
    one, other = (task.sample(5, seed=1) for task in (same, Mess3()))
    assert torch.equal(one.tokens, other.tokens)
    torch.testing.assert_close(one.belief, other.belief)


@pytest.mark.parametrize(
    ("name", "start", "n_beliefs", "rate"),
    [
        ("rrxor", [1 / 3, 1 / 6, 1 / 6, 1 / 6, 1 / 6], 36, 2 / 3),  # two of three bits are random
        ("golden-mean", [2 / 3, 1 / 3], 3, 2 / 3),  # a random bit in the first state
        ("z1r", [1 / 3, 1 / 3, 1 / 3], 7, 1 / 3),
    ],
)
def test_processes_of_the_literature(name: str, start: list[float], n_beliefs: int, rate: float) -> None:
    """Stationary distributions as the reference's code states them, beliefs, and entropy rates in bits per symbol."""
    task = Process(name, length=5)
    np.testing.assert_allclose(task.start().numpy(), start, atol=1e-15)
    found = task.belief_states(60)
    assert len(found) == n_beliefs and found.is_closed
    assert float(found.probability[-1] @ entropy_bits(found.symbol_probability)) == pytest.approx(rate, abs=1e-3)
    assert task_from_text(f"{name}:length=5") == task == task_from_config(task.config())
    assert repr(task) == f"Process({name}, length=5)"


def chain(after: list[list[float]]) -> list[list[list[float]]]:
    """The matrices of a chain that shows its state."""
    return [[[p if j == x else 0.0 for j, p in enumerate(row)] for row in after] for x in range(len(after))]


RRXOR_BY_HAND = [
    [[0, 0.5, 0, 0, 0], [0, 0, 0, 0, 0.5], [0, 0, 0, 0.5, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]],
    [[0, 0, 0.5, 0, 0], [0, 0, 0, 0.5, 0], [0, 0, 0, 0, 0.5], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]],
]


@pytest.mark.parametrize(
    ("name", "written", "start"),
    [
        ("coin", [[[0.5]], [[0.5]]], [1]),
        ("even", [[[0.5, 0], [0, 0]], [[0, 0.5], [1, 0]]], [2 / 3, 1 / 3]),
        ("no-consecutive-ones", [[[0.5, 0], [1, 0]], [[0, 0.5], [0, 0]]], [2 / 3, 1 / 3]),
        ("sns", [[[0.5, 0.5], [0, 0.5]], [[0, 0], [0.5, 0]]], [1 / 2, 1 / 2]),
        (
            "zero-one-random",
            [[[0, 1, 0], [0, 0, 0], [0.5, 0, 0]], [[0, 0, 0], [0, 0, 1], [0.5, 0, 0]]],
            [1 / 3, 1 / 3, 1 / 3],
        ),
        ("rrxor", RRXOR_BY_HAND, [1 / 3, 1 / 6, 1 / 6, 1 / 6, 1 / 6]),
        ("leaky-rrxor", 0.9 * np.array(RRXOR_BY_HAND) + 0.01, None),
        (
            "matching-parens",
            [
                [[0, 1, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0.5], [0, 0, 0, 0]],
                [[0, 0, 0, 0], [0.5, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 1, 0]],
            ],
            [1 / 6, 1 / 3, 1 / 3, 1 / 6],
        ),
        (
            "mr-name",
            chain([[0, 0, 0, 1], [0.25, 0.35, 0.4, 0], [0.25, 0.4, 0.35, 0], [0, 0.5, 0.5, 0]]),
            [1 / 6, 1 / 3, 1 / 3, 1 / 6],
        ),
    ],
)
def test_simplexity_s_processes_are_as_its_file_and_tests_have_them(
    name: str, written: list[list[list[float]]], start: list[float] | None
) -> None:
    task = task_from_text(f"{name}:length=4")
    assert isinstance(task, Process) and not task.is_generalized
    np.testing.assert_allclose(task.labeled().numpy(), written, atol=1e-15)
    np.testing.assert_allclose(task.labeled().sum(dim=(0, 2)).numpy(), 1, atol=1e-15)
    if start is not None:
        np.testing.assert_allclose(task.start().numpy(), start, atol=1e-15)
    assert task == task_from_config(task.config())


def test_days_of_the_week_by_hand() -> None:
    """On Saturday (5): 1/15 each for a day's name, 5/15 for Sunday, 1/15 for tomorrow, yesterday, weekend, weekday."""
    ways = Process("days-of-week", length=4).labeled()
    assert ways.shape == (11, 7, 7) and ways.sum(dim=(0, 2)).tolist() == pytest.approx([1] * 7)
    shown = {(day, day): 1 / 15 for day in range(6)} | {(6, 6): 5 / 15, (7, 6): 1 / 15, (8, 4): 1 / 15}
    shown |= {(9, 5): 1 / 30, (9, 6): 1 / 30} | {(10, day): 1 / 75 for day in range(5)}
    by_hand = torch.zeros(11, 7, dtype=torch.float64)
    for (symbol, after), share in shown.items():
        by_hand[symbol, after] = share
    torch.testing.assert_close(ways[:, 5], by_hand, atol=1e-15, rtol=0)
    for day in range(7):  # the other days are as Saturday, but for the names that stay
        assert float(ways[day, :, day].sum()) == pytest.approx(11 / 15) and ways[(day + 1) % 7, day].max() == 5 / 15
        assert float(ways[7, day, (day + 1) % 7]) == float(ways[8, day, (day - 1) % 7]) == 1 / 15


def test_the_paper_s_ring_has_its_entropy_floor() -> None:
    """2.639 bits at the effective self-probability 0.350 of the paper's nominal 0.3; 0.3 at its word gives 2.717."""
    for nominal, bits in ((0.3 + 0.7 * 0.3 / (0.3 + 47 / 12), 2.639), (0.3, 1.883 / np.log(2))):
        trials = StickyMarkov(self_probability=nominal, noise=0.0).sample(1, seed=0)
        assert float(entropy_bits(trials.predictive[0, -1])) == pytest.approx(bits, abs=0.001)
    ring = StickyMarkov(n_states=6, self_probability=0.4).chain()
    weights = np.array([0, 1, 1 / 2, 1 / 3, 1 / 2, 1])
    np.testing.assert_allclose(ring[0].numpy(), 0.4 * np.eye(6)[0] + 0.6 * weights / weights.sum())
    np.testing.assert_allclose(ring[2].numpy(), np.roll(ring[0].numpy(), 2))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ((), r"nested 3 deep in rows of one length.*got another tuple"),
        ((((1.0, 0.0),),), r"one square matrix per symbol, got 1 of 1×2"),
        ((((0.5, 0.2), (0.0, 1.0)),), r"must sum to 1 .*state 0 sums to 0\.7"),
        ((((1.5, -0.5), (0.0, 1.0)),), r"must be finite and at least 0, got -0\.5"),
        ((((1.0, 0.0), (0.0, 1.0)),), r"is reducible.*pass initial"),
    ],
)
def test_impossible_tensors_are_refused(tensors: tuple[tuple[tuple[float, ...], ...], ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Process(transition_tensors=tensors)


def test_matrices_of_any_form_are_stored_as_tuples() -> None:
    array = Mess3().labeled().numpy()
    forms = [array, torch.from_numpy(array), array.tolist()]
    made = [Process(form, initial=start) for form in forms for start in ([0.5, 0.5, 0], np.array([0.5, 0.5, 0]))]
    assert len({hash(process) for process in made}) == 1 and all(process == made[0] for process in made)
    assert made[0] == Process(transition_tensors=array, initial=(0.5, 0.5, 0.0))
    assert made[0].config()["transition_tensors"] == tuple(tuple(map(tuple, matrix)) for matrix in array.tolist())


@pytest.mark.skipif(ARE_ON, reason="checks of annotations would refuse first")
def test_what_is_no_stack_of_matrices_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"transition_tensors must be numbers nested 3 deep"):
        Process(Mess3().labeled()[0])


def test_another_name_is_refused() -> None:
    with pytest.raises(
        UnknownName, match=r"no process named 'rrxr'.*even, fanizza, golden-mean, .*rrxor, sns, tom-quantum, z1r"
    ):
        Process("rrxr")


@pytest.mark.parametrize("initial", [(0.5, 0.5), (1.5, -0.5, 0.0), (float("nan"), 0.5, 0.5)])
def test_impossible_starts_are_refused(initial: tuple[float, ...]) -> None:
    with pytest.raises(InvalidArgument, match=r"initial must (hold 3 probabilities that sum to 1|be Sequence)"):
        Process(random_tensors(5, 3), initial=initial)


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        (Mess3, {"x": 0.6}, r"0 ≤ x ≤ ½ and 0 ≤ a ≤ 1, got x=0\.6"),
        (Mess3, {"a": float("nan")}, r"a must be float, got nan"),
        (Mess3, {"length": 0}, r"at least 1, got 0"),
        (StickyMarkov, {"n_states": 1}, r"n_states ≥ 2, got 1"),
        (StickyMarkov, {"self_probability": 1.1}, r"probabilities, got 1\.1 and 0\.3"),
        (StickyMarkov, {"noise": -0.1}, r"probabilities, got 0\.8 and -0\.1"),
    ],
)
def test_impossible_parameters_are_refused(
    kind: type[MarkovProcess], parameters: dict[str, float], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        kind(**parameters)
