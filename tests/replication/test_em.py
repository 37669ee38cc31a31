"""The sticky-chain experiment: the chain beside enumeration, the head beside autograd, speeds, a saved report."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.stats.information import NATS_PER_BIT
from bayesgeom.tasks.base import derived_seed
from examples.replication import measurements
from examples.replication.em import training
from examples.replication.em.chain import StickyChain
from examples.replication.em.report import CHAINS, HELD_OUT, SEEDS, TRAINED, EMReport, em_experiment, em_report
from examples.replication.em.training import (
    BASELINE,
    BY_MATRIX,
    CONDITIONS,
    EM_LIKE,
    MATRICES,
    Condition,
    Curves,
    initial_weights,
    learned,
    outcome,
    outcome_and_gradients,
    recorded_steps,
    steps_to,
)
from tests.pages import READINGS as STORED

TWICE, STATED = StickyChain(diagonal="counted twice"), StickyChain(diagonal="as stated")
NAMES = [condition.name for condition in CONDITIONS]


def test_floors_are_those_of_the_two_readings() -> None:
    assert TWICE.entropy_rate_nats() == pytest.approx(1.829, abs=5e-4)
    assert TWICE.entropy_rate_nats() / NATS_PER_BIT == pytest.approx(2.639, abs=5e-4)
    assert STATED.entropy_rate_nats() == pytest.approx(1.883, abs=5e-4)


def test_self_probabilities_are_the_authors_and_the_stated_one() -> None:
    assert float(TWICE.transition()[3, 3]) == pytest.approx(0.350, abs=5e-4)
    assert float(STATED.transition()[3, 3]) == pytest.approx(0.3, abs=1e-15)


@pytest.mark.parametrize("chain", [TWICE, STATED], ids=["twice", "stated"])
def test_other_symbols_fall_off_with_their_distance_on_the_ring(chain: StickyChain) -> None:
    p = chain.transition()
    torch.testing.assert_close(p.sum(1), torch.ones(8).double(), rtol=0, atol=1e-15)
    row = p[0] / p[0, 1]
    torch.testing.assert_close(
        row[[2, 3, 4, 7]], torch.tensor([1 / 2, 1 / 3, 1 / 4, 1], dtype=torch.float64), rtol=0, atol=1e-14
    )
    for i in range(8):
        torch.testing.assert_close(p[i], p[0].roll(i))


def test_the_filter_is_what_enumeration_says() -> None:
    """Sum over every path of symbols before, weighted by how well it explains the inputs."""
    chain = StickyChain(diagonal="counted twice", n_symbols=3, d_input=2, seed=5)
    inputs = chain.sequence(4, seed=1).inputs
    p, mu, text = chain.transition(), chain.embeddings(), chain.predictive(inputs)
    for t in range(1, 5):
        total = np.zeros(3)
        for path in itertools.product(range(3), repeat=t):
            weight = 1 / 3
            for now, after in itertools.pairwise(path):
                weight *= float(p[now, after])
            for x, symbol in zip(inputs[:t], path, strict=True):
                weight *= math.exp(-0.5 * float((x - mu[symbol]).square().sum()))
            total += weight * p[path[-1]].numpy()
        np.testing.assert_allclose(text[t - 1].numpy(), total / total.sum(), atol=1e-12)


def test_a_long_sequence_meets_the_floor_and_the_matrix() -> None:
    found = TWICE.sequence(6_000, seed=3)
    assert found.floor_nats == pytest.approx(TWICE.entropy_rate_nats(), abs=0.02)
    nearest = torch.cdist(found.inputs, TWICE.embeddings()).argmin(1)  # embeddings lie far apart
    counts = torch.zeros(8, 8).double()
    counts.index_put_((nearest, found.symbols), torch.ones(6_000).double(), accumulate=True)
    torch.testing.assert_close(counts / counts.sum(1, keepdim=True), TWICE.transition(), rtol=0, atol=0.06)


def test_the_input_is_of_the_symbol_before() -> None:
    found = TWICE.sequence(500, seed=3)
    nearest = torch.cdist(found.inputs, TWICE.embeddings()).argmin(1)
    assert float((nearest[1:] == found.symbols[:-1]).double().mean()) > 0.98


def test_sequences_follow_their_seed_and_embeddings_the_chains() -> None:
    one, again, other = (TWICE.sequence(9, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.inputs, again.inputs) and not torch.equal(one.inputs, other.inputs)
    assert torch.equal(TWICE.embeddings(), STATED.embeddings())


@pytest.mark.parametrize("changes", [{"n_symbols": 1}, {"self_probability": 1.0}, {"d_input": 0}])
def test_impossible_chains_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match="a chain needs at least 2 symbols"):
        StickyChain(diagonal="as stated", **changes)  # type: ignore[arg-type]


def plain_loss(weights: dict[str, Tensor], inputs: Tensor, symbols: Tensor) -> Tensor:
    """The definition: the whole attention at once, one run."""
    q, k, v = (inputs @ weights[name] for name in ("W_Q", "W_K", "W_V"))
    scores = q @ k.T / 10**0.5
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.nn.functional.cross_entropy(pattern @ v @ weights["W_O"], symbols)


@pytest.mark.parametrize("length", [7, 71])
def test_gradients_are_autograds(length: int) -> None:
    asked = TWICE.sequence(length, seed=2)
    one, two = (initial_weights(20, 8, seed=seed, dtype=torch.float64) for seed in (1, 2))
    weights = {
        name: 5 * torch.cat([one[name], two[name]]) for name in MATRICES
    }  # larger, so that attention is not flat
    found, gradients = outcome_and_gradients(weights, asked.inputs, asked.symbols)
    for run in range(2):
        own = {name: weights[name][run].clone().requires_grad_() for name in MATRICES}
        loss = plain_loss(own, asked.inputs, asked.symbols)
        loss.backward()
        assert abs(float(loss.detach() - found.loss_nats[run])) < 1e-12
        for name in MATRICES:
            torch.testing.assert_close(gradients[name][run], own[name].grad, rtol=0, atol=1e-12)


def test_rows_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, weights = TWICE.sequence(71, seed=2), initial_weights(20, 8, seed=1, dtype=torch.float64)
    before, gradients = outcome_and_gradients(weights, asked.inputs, asked.symbols)
    monkeypatch.setattr(training, "_ROWS", 11)
    after, others = outcome_and_gradients(weights, asked.inputs, asked.symbols)
    for name, value in vars(before).items():
        torch.testing.assert_close(vars(after)[name], value, rtol=0, atol=1e-13)
    for name in MATRICES:
        torch.testing.assert_close(others[name], gradients[name], rtol=0, atol=1e-13)


def test_a_head_that_knows_nothing_is_uniform() -> None:
    asked, weights = TWICE.sequence(31, seed=2), initial_weights(20, 8, seed=1)
    silent = weights | {"W_O": torch.zeros_like(weights["W_O"])}
    found = outcome(silent, asked.inputs.float(), asked.symbols)
    expected = torch.tensor([8.0]).log()
    torch.testing.assert_close(found.loss_nats, expected)
    torch.testing.assert_close(found.entropy_nats, expected)


@pytest.fixture(scope="module")
def report() -> EMReport:
    return em_experiment(seeds=3, steps=25, length=61, every=7)


def test_the_arms_are_those_of_the_comparison() -> None:
    rates = {condition.name: tuple(condition.rate(matrix) for matrix in MATRICES) for condition in CONDITIONS}
    assert rates == {
        "SGD 0.01": (0.01, 0.01, 0.01, 0.01),
        "EM-like: 0.1 on W_V": (0.01, 0.01, 0.1, 0.01),
        "SGD 0.1": (0.1, 0.1, 0.1, 0.1),
        "0.1 on W_O": (0.01, 0.01, 0.01, 0.1),
        "0.1 on W_Q and W_K": (0.1, 0.1, 0.01, 0.01),
    }
    assert SEEDS == (42, 2024, 1337, 7777, 9999)


def test_matrices_are_stepped_one_at_a_time() -> None:
    """The product of queries and keys once took a tenfold step in each of two matrices, against one for the values."""
    small, large, root = 0.01, 0.1, pytest.approx(0.1 / 10**0.5)
    assert {own.name: tuple(own.rate(matrix) for matrix in MATRICES) for own in BY_MATRIX} == {
        "SGD 0.01": (small, small, small, small),
        "EM-like: 0.1 on W_V": (small, small, large, small),
        "0.1 on W_Q": (large, small, small, small),
        "0.1 on W_K": (small, large, small, small),
        "0.0316 on W_Q and W_K": (root, root, small, small),
        "0.1 on W_V and W_O": (small, small, large, large),
    }
    assert BY_MATRIX[:2] == CONDITIONS[:2], "the ones that are compared"


@pytest.mark.parametrize(
    ("conditions", "condition"),
    [(own, condition) for own in (CONDITIONS, BY_MATRIX[2:]) for condition in own],
    ids=lambda own: own.name if isinstance(own, Condition) else "",
)
def test_an_arm_is_plain_descent_with_torchs_own_optimizer(
    conditions: tuple[Condition, ...], condition: Condition
) -> None:
    """The same start and data, a group per matrix, autograd; the loss before every step and after the last."""
    index = conditions.index(condition)
    seed, steps = 3, 6
    curves = learned(TWICE, seed=seed, steps=steps, length=50, every=2, tick=lambda: None, conditions=conditions)
    start = initial_weights(20, 8, seed=derived_seed(seed, 2))
    weights = {name: value[0].double().clone().requires_grad_() for name, value in start.items()}
    groups = [{"params": [weights[name]], "lr": condition.rate(name)} for name in MATRICES]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    data, unseen = (TWICE.sequence(49, seed=derived_seed(seed, branch)) for branch in (0, 1))
    losses, held_out = [], []
    for step in range(steps + 1):
        loss = plain_loss(weights, data.inputs, data.symbols)
        losses.append(float(loss.detach()))
        if step in recorded_steps(steps, 2):
            held_out.append(float(plain_loss(weights, unseen.inputs, unseen.symbols).detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(curves.loss[index], losses, atol=2e-6)
    np.testing.assert_allclose(curves.held_out[index], held_out, atol=2e-6)
    assert curves.floors == (data.floor_nats, unseen.floor_nats)


def test_steps_to_a_threshold() -> None:
    at = np.array([0.0, 10.0, 20.0, 30.0])
    losses = np.array([4.0, 3.0, 1.0, 0.5])
    assert steps_to(losses, at, 2.0) == 15.0
    assert steps_to(losses, at, 3.0) == 10.0
    assert np.isnan(steps_to(losses, at, 0.1))  # never
    assert np.isnan(steps_to(losses, at, 4.5))  # nothing to reach


def planted(rates: list[float], drops: list[float], *, generalizes: bool = False) -> list[Curves]:
    """Loss falls as 2 − rate·step/100 + a seed's own offset; held out it stays, unless the conditions generalize."""
    steps = np.arange(101.0)
    found = []
    for drop in drops:
        loss = np.stack([2 + drop - rate * steps / 100 for rate in rates])
        rest = {name: np.zeros(len(rates)) for name in ("entropy", "accuracy", "held_out_accuracy")}
        unseen = loss[:, ::10] if generalizes else np.full((len(rates), 11), 2.0)
        found.append(Curves(loss=loss, held_out=unseen, floors=(1.0, 1.5), **rest))
    return found


def test_planted_speeds_and_margins_are_found_with_paired_intervals() -> None:
    curves = planted([0.1, 0.2, 0.4, 0.05, 0.1], [0.0, 0.3, -0.2])
    found = em_report([TWICE], [1, 2, 3], [curves], recorded_steps(100, 10))
    speedup = found.speedup[TRAINED, 0]
    np.testing.assert_allclose(speedup.value[[0, 1, 2, 4]], [1, 2, 4, 1], rtol=1e-9)
    assert np.isnan(speedup.value[3]) and list(found.reached[TRAINED, 0]) == [3, 3, 3, 0, 3]
    np.testing.assert_allclose(speedup.ends[0][1], 2, rtol=1e-6)  # seeds differ in level alone: pairing removes it
    assert (speedup.resampled, speedup.n) == ("seeds", 3) and speedup.baseline(BASELINE).value[1] == 1.0
    ratio = found.em_speed_ratio[TRAINED, 0]
    np.testing.assert_allclose(ratio.value[[0, 1, 2, 4]], [2, 1, 0.5, 2], rtol=1e-9)
    np.testing.assert_allclose(ratio.ends[0][[0, 2]], ratio.ends[1][[0, 2]], rtol=1e-6)
    assert np.isnan(ratio.value[3]) and (ratio.baseline(EM_LIKE).value == 1).all()
    margin = np.array([0.1, 0.0, -0.2, 0.15, 0.1]) / NATS_PER_BIT
    np.testing.assert_allclose(found.em_margin_bits.value[TRAINED, 0], margin, atol=1e-9)
    np.testing.assert_allclose(found.em_margin_bits.ends[0][TRAINED, 0], margin, atol=1e-9)
    low, high = found.final_loss_bits[TRAINED, 0, 0].ends
    assert high - low > 0.5
    assert np.isnan(found.speedup.value[HELD_OUT]).all() and not found.reached[HELD_OUT].any()
    np.testing.assert_allclose(found.final_loss_bits.value, found.final_loss_nats / np.log(2))
    np.testing.assert_array_equal(found.filter_bits[:, 0], [1 / NATS_PER_BIT, 1.5 / NATS_PER_BIT])


def test_a_baseline_that_overfits_is_as_fast_as_itself() -> None:
    """It passes its final held-out loss at step 20 and again at the end; its own speed-up was 5."""
    at = np.arange(0.0, 101.0, 10.0)
    falls = np.array([0.01, 0.02, 0.01, 0.005, 0.01])[:, None] * at
    unseen = 2 - falls + np.where(at > 50, 0.016 * (at - 50), 0.0)
    curves = [replace(own, held_out=unseen + i) for i, own in enumerate(planted([0.1] * 5, [0.0, 0.3, -0.2]))]
    found = em_report([TWICE], [1, 2, 3], [curves], recorded_steps(100, 10))
    expected = [1, 2, 1, 0.5, 1]
    np.testing.assert_allclose(found.speedup.value[HELD_OUT, 0], expected, rtol=1e-9)
    np.testing.assert_allclose(expected[1] / found.em_speed_ratio.value[HELD_OUT, 0], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("rates", "generalizes", "verdict"),
    [
        ([0.1, 0.5, 0.2, 0.2, 0.2], True, "beats controls"),
        ([0.1, 0.5, 0.2, 0.2, 0.2], False, "undecided"),
        ([0.1, 0.2, 0.4, 0.1, 0.1], True, "does not beat controls"),
    ],
)
def test_the_verdict_is_on_the_controls_and_both_sequences(rates: list[float], generalizes: bool, verdict: str) -> None:
    curves = planted(rates, [0.0, 0.3, -0.2], generalizes=generalizes)
    found = em_report([TWICE], [1, 2, 3], [curves], recorded_steps(100, 10))
    first, *others = found.headlines()
    assert found.verdict() == first.verdict == verdict and found.headline() == first
    margins = found.em_margin_bits.value[TRAINED, 0, found._controls()]
    assert first.metric == "em_margin_bits" and first.value == margins.min(), "the control that decides"
    speeds = [line for line in others if line.metric == "speedup"]
    assert [EM_LIKE in line.label for line in speeds] == [True] + [False] * (len(speeds) - 1)
    assert not any(line.verdict for line in speeds[1:]), "controls are not under test"


def test_the_authors_speed_is_to_the_mean_final_loss() -> None:
    curves = planted([0.1, 0.2, 0.4, 0.05, 0.1], [0.0, 0.06, -0.06])
    found = em_report([TWICE], [1, 2, 3], [curves], recorded_steps(100, 10))
    took = np.array([50.0, 80.0, 20.0])  # to a loss of 1.9, falling 0.2 per hundred steps
    assert float(found.speedup_authors[0, 1]) == pytest.approx(np.exp(np.log(100 / took).mean()), rel=1e-6)


def test_the_report_says_both_units_and_both_sequences(report: EMReport) -> None:
    assert report.conditions == tuple(NAMES) and report.seeds == ("42", "2024", "1337")
    assert report.sequences == ("trained on", "held out") and report.loss_bits_by_step.shape == (2, 2, 5, 3, 5)
    np.testing.assert_allclose(report.final_loss_bits.value, report.loss_bits_by_step[..., -1].mean(axis=3))
    least = report.loss_bits_by_step[HELD_OUT].min(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(report.best_held_out_bits.value, least)
    np.testing.assert_allclose(report.floor_bits, [2.639, 2.717], atol=5e-4)
    assert float(report.em_margin_bits[TRAINED, 0, NAMES.index(EM_LIKE)]) == 0
    assert (report.speedup.value[TRAINED, :, NAMES.index(BASELINE)] == 1).all()
    text = report.table()
    assert "1.829 nats = 2.639 bits" in text and "self-probability 0.3498" in text and "0.3" in text


def test_the_figure_shows_curves_floor_and_no_difference(report: EMReport) -> None:
    traces = [trace for panel in report.panels() for trace in panel.figure.data]
    names = [trace.name for trace in traces]
    assert all(names.count(name) == 4 for name in NAMES)
    floors = [trace for trace in traces if trace.name == "entropy rate of the chain"]
    assert [float(trace.y[0]) for trace in floors] == [*([report.floor_bits[0]] * 2), *([report.floor_bits[1]] * 2)]
    curve = next(trace for trace in traces if trace.name == EM_LIKE)
    np.testing.assert_allclose(curve.y, report.loss_bits_by_step[TRAINED, 0, 1].mean(axis=0))
    assert any(shape.x0 == 1 for panel in report.panels() for shape in panel.figure.layout.shapes)


def test_the_controls_by_matrix_are_trained_on_the_authors_chain(report: EMReport) -> None:
    found = em_experiment(seeds=3, steps=25, length=61, every=7, by_matrix=True)
    assert found.conditions == tuple(own.name for own in BY_MATRIX) and found.chains == report.chains[:1]
    np.testing.assert_allclose(  # the same start and data: the first two are the same trainings
        found.loss_bits_by_step[:, 0, :2], report.loss_bits_by_step[:, 0, :2], rtol=1e-5
    )
    assert len(found.panels()) == 4 and found.table().count("floor") == 1


def test_seeds_decide_everything(report: EMReport) -> None:
    again = em_experiment(seeds=[42, 2024, 1337], steps=25, length=61, every=7)
    np.testing.assert_array_equal(again.loss_bits_by_step, report.loss_bits_by_step)


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "em"
    measurements.em(seeds=2, steps=4, length=30, out=out)
    assert "EM-like" in capsys.readouterr().out
    found = Diagnosis.load(out)["em_experiment"]
    assert isinstance(found, EMReport) and found.n == 2
    assert (out / "report.html").stat().st_size > 600_000
    rows = Diagnosis.load(out).to_pandas()
    speedups = rows[rows.metric == "speedup"]
    assert set(zip(speedups.sequence, speedups.chain, speedups.condition, strict=True)) == {
        (sequence, f"diagonal {chain.diagonal}", name)
        for sequence in ("trained on", "held out")
        for chain in CHAINS
        for name in NAMES
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 1}, "2 … 5"),
        ({"seeds": 6}, "2 … 5"),
        ({"seeds": [3]}, "two different seeds"),
        ({"seeds": [3, 3]}, "each given once"),
        ({"steps": 0}, "at least 1"),
        ({"length": 2}, "length at least 3; got .* and length=2"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        em_experiment(**{"seeds": 2, "steps": 1, "length": 5} | changes)  # type: ignore[arg-type]


def test_a_folder_of_other_things_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputFault):
        measurements.em(out=tmp_path)


def test_a_missing_speed_is_stated_in_words() -> None:
    curves = planted([0.1, 0.2, 0.4, 0.05, 0.1], [0.0, 0.3, -0.2])
    text = em_report([TWICE], [1, 2, 3], [curves], recorded_steps(100, 10)).table()
    assert "in no seed" in text and "0/3" in text and "nan" not in text


def test_the_stored_controls_by_matrix_are_of_the_papers_size() -> None:
    """The queries alone are not clearly slower than the values; the keys, and the product of both, are."""
    reading = Diagnosis.load(STORED / "em-by-matrix")
    found, arguments = reading["em_experiment"], reading.provenance["arguments"]
    assert isinstance(found, EMReport) and found.conditions == tuple(own.name for own in BY_MATRIX)
    assert (tuple(arguments["seeds"]), arguments["steps"], arguments["length"]) == (SEEDS, 1_000, 2_000)
    speeds = dict(zip(found.conditions, found.speedup.value[TRAINED, 0], strict=True))
    expected = {EM_LIKE: 2.96, "0.1 on W_Q": 2.46, "0.1 on W_K": 2.35, "0.0316 on W_Q and W_K": 1.76}
    for name, speed in {**expected, "0.1 on W_V and W_O": 5.49}.items():
        assert speeds[name] == pytest.approx(speed, rel=0.2), name  # of independent code
    low, high = (dict(zip(found.conditions, end[TRAINED, 0], strict=True)) for end in found.em_speed_ratio.ends)
    assert low["0.1 on W_Q"] < 1 < high["0.1 on W_Q"] and high["0.1 on W_V and W_O"] < 1
    assert min(low["0.1 on W_K"], low["0.0316 on W_Q and W_K"]) > 1
