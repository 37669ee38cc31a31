"""Belief read-out: planted beliefs are found, absent ones are not, and every number has its baselines."""

import math
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
import torch

from bayesgeom.charts.lines import brief
from bayesgeom.core.observers import window_beliefs
from bayesgeom.core.run import RESID_POST, RESID_PRE, STATE
from bayesgeom.core.verdict import Reason
from bayesgeom.measurements import _beliefs
from bayesgeom.measurements._beliefs import EMBEDDING, N_SUBSPACES, SHUFFLE, SUBSPACES
from bayesgeom.measurements.base import planted_chain, planted_run
from bayesgeom.measurements.belief_readout import STAGES, BeliefReadout, BeliefReadoutReport, window_levels
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.tables import records_of
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.modular_recurrence import ModularRecurrence
from tests.measurements.beliefs import (
    CHAIN,
    DISTINCT,
    GUESSES,
    LAYERS,
    NOISE,
    REPEATS,
    WRITTEN,
    D,
    N,
    planted,
    recurrent,
)

FIRST, LAST, BEFORE = range(len(STAGES))


@cache
def read(task: WindTunnel = REPEATS, seed: int = 0) -> BeliefReadoutReport:
    """The report on a planted run, measured once; reports are frozen."""
    return BeliefReadout().measure(planted(task, seed=seed))


def test_an_embedded_belief_is_read_whole_and_noise_holds_none() -> None:
    report = read()
    assert report.r2.value[0, WRITTEN] == pytest.approx(1, abs=1e-3) and report.r2.value[0, NOISE] < 0.1
    assert report.total_variation.value[0, WRITTEN] < 0.01 < 0.3 < report.total_variation.value[0, NOISE]
    own = report.balanced_accuracy
    surviving, shuffled = own.value[0] - 0.5, own.baseline(SHUFFLE).value - 0.5
    assert abs(surviving[NOISE]) < 0.1 < 0.3 < surviving[WRITTEN]
    assert (np.abs(shuffled) < 0.05).all() and (report.r2.baseline(SHUFFLE).value < 0.05).all()
    within = report.r2.baseline(SUBSPACES).value
    assert within[0, WRITTEN] > 0.9, "a random subspace of the belief's own rank misses little"


def test_nobody_dies_in_a_chain() -> None:
    report = read(CHAIN)
    own = report.balanced_accuracy
    assert np.isnan([own.value, *own.ends]).all() and own.baselines == ()
    line = report.headlines()[2]
    assert (line.metric, line.verdict, line.levels) == ("balanced_accuracy", "", ()) and math.isnan(line.value)
    assert not any("surviving" in panel.title for panel in report.panels())


def test_without_returning_keys_the_belief_is_still_read() -> None:
    assert np.isfinite(read(DISTINCT).r2.value).all()


def test_the_embedding_is_read_where_it_was_recorded() -> None:
    run = planted()
    before = run.recorded[RESID_PRE].clone()
    before[0] = run.at(RESID_POST)[WRITTEN]
    report = BeliefReadout().measure(replace(run, recorded={RESID_POST: run.at(RESID_POST), RESID_PRE: before}))
    for own in (report.r2, report.total_variation, report.balanced_accuracy):
        np.testing.assert_allclose(own.baseline(EMBEDDING).value[0], own.value[0, WRITTEN], rtol=1e-6)
    assert "baseline: embedding" in [trace.name for panel in report.panels() for trace in panel.figure.data]
    without = BeliefReadout().measure(replace(run, recorded={RESID_POST: run.at(RESID_POST)}))
    assert EMBEDDING not in [own.name for own in (*without.r2.baselines, *without.balanced_accuracy.baselines)]
    assert "embedding" not in [trace.name for trace in without.plot().data]


def test_a_code_for_position_reads_no_belief_of_its_own() -> None:
    run = planted()
    place = torch.eye(7, D).expand(LAYERS, N, -1, -1) + 0.01 * run.at(RESID_POST)[:1]
    report = BeliefReadout().measure(replace(run, recorded={RESID_POST: place}))
    assert report.r2.value[0, 0] < 0.1 and abs(report.r2.value[0, 0] - report.r2.baseline(SHUFFLE).value[0, 0]) < 0.1
    assert abs(report.balanced_accuracy.value[0, 0] - 0.5) < 0.1


def test_subspaces_have_the_rank_of_the_belief_and_never_more_than_there_is() -> None:
    assert N_SUBSPACES >= 20
    report = read(CHAIN)
    assert report.subspace_rank == 3
    level = report.r2.baseline(SUBSPACES)
    assert level.low is not None and level.high is not None and (level.low <= level.high).all()
    run = planted()
    narrow = BeliefReadout().measure(replace(run, recorded={RESID_POST: run.at(RESID_POST)[..., :2]}))
    assert narrow.subspace_rank == 2
    turned = narrow.r2.baseline(SUBSPACES).value  # the whole space
    np.testing.assert_allclose(turned, narrow.r2.value, atol=1e-5)


def test_sizes_of_halves_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    report = read()
    assert (report.n, report.n_held_out) == (N, N // 2)
    monkeypatch.setattr(_beliefs, "MAX_POINTS", 31 * 7 + 3)
    less = BeliefReadout().measure(planted())
    assert (less.n, less.n_held_out) == (31, 15)
    monkeypatch.setattr(_beliefs, "MAX_POINTS", 7)
    assert BeliefReadout().measure(planted()).n == 16, "the least that `diagnose` lets a probe use"


@pytest.mark.parametrize("n", [1, 2])
def test_few_sequences_give_fewer_answers_and_no_fault(n: int) -> None:
    report = BeliefReadout().measure(planted(n=n))
    assert np.isnan(report.r2.value).all() == (n == 1)
    assert report.plot().data and report.headlines() and records_of(report)


def test_a_recurrent_state_is_read_with_the_residual_stream() -> None:
    report = BeliefReadout().measure(recurrent())
    assert report.sites == ("resid_post", "state")
    stream, state = range(2)
    assert max(report.r2.value[stream]) < 0.1 < 0.99 < report.r2.value[state, WRITTEN]
    lines = {line.label: (line.metric, line.value) for line in report.headlines()}
    assert lines["R² of the belief, state"] == ("r2", report.r2.value[state, -1])
    titles = [panel.title for panel in report.panels()]
    assert any(title.startswith("Belief by a linear map, R² (state)") for title in titles)
    assert any(title.startswith("The belief read from state in the last layer") for title in titles)
    assert {record.places["site"] for record in records_of(report) if record.metric == "r2"} == {"resid_post", "state"}


def test_wide_states_are_read_along_leading_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_beliefs, "MAX_WIDTH", 11)
    run = recurrent()
    noise = 0.01 * np.random.default_rng(5).normal(size=(3, N, 7, 301))
    wide = torch.from_numpy(noise)
    wide[..., :17] += run.at(STATE)
    report = BeliefReadout().measure(replace(run, recorded={**run.recorded, STATE: wide}))
    assert report.r2.value[1, WRITTEN] > 0.95 > 0.1 > report.r2.value[1, NOISE]


def test_the_simplex_shows_held_out_beliefs_as_they_are_and_as_they_are_read() -> None:
    probe = BeliefReadout()
    alone, run = read(CHAIN), planted(CHAIN)
    copy = probe.measure(replace(run, recorded={RESID_POST: run.at(RESID_POST)[[NOISE] * 3]}))
    report = probe.measure(replace(run, recorded={RESID_POST: run.at(RESID_POST)[[NOISE, GUESSES, WRITTEN]]}), [copy])
    held_out = run.trials.rows(slice(-(N // 2), None))
    truth = held_out.at_scored(held_out.belief).flatten(0, 1).numpy()
    np.testing.assert_allclose(report.drawn_belief, truth, atol=1e-6)
    assert np.abs(report.drawn_readout[LAST, 0] - report.drawn_belief).max() < 0.02
    assert np.abs(report.drawn_readout[FIRST, 0] - report.drawn_belief).mean() > 0.1
    np.testing.assert_array_equal(report.drawn_readout[BEFORE], copy.drawn_readout[LAST])
    np.testing.assert_allclose(report.drawn_readout[FIRST].sum(-1), 1, atol=1e-4)
    assert report.stages == STAGES
    assert np.isnan(alone.drawn_readout[BEFORE]).all()
    figure = report.plot()
    first, others, *_ = report.panels()
    assert first.title == f"The belief read from resid_post in the last layer: R² {brief(report.r2.value[0, -1])}"
    names = [[t.text[0] for t in own.figure.data if t.mode == "text" and len(t.text) == 1] for own in (first, others)]
    assert names == [
        ["exact belief", "read"],
        ["untrained, last<br>layer", f"layer 0, R² {brief(report.r2.value[0, 0])}"],
    ]
    assert figure.layout.title.text == report.title
    captions = [t.text[0] for t in alone.panels()[1].figure.data if t.mode == "text" and len(t.text) == 1]
    assert captions == [f"layer 0, R² {brief(alone.r2.value[0, 0])}"], "what was not measured is left out"


def test_too_many_hypotheses_are_measured_and_not_drawn() -> None:
    report = BeliefReadout().measure(planted(ModularRecurrence(modulus=5, length=5), n=23))
    assert report.drawn_belief.shape == (0, 26)
    is_far = [report.r2.reason_at((0, layer)) == Reason.OUT_OF_RANGE for layer in range(3)]
    assert (np.isfinite(report.r2.value[0]) | is_far).all(), "an R² below −1 is not shown"
    assert "Not drawn: 26 hypotheses" in [t.text[0] for t in report.plot().data if t.mode == "text"]


def test_the_read_out_reports_window_observers() -> None:
    run, report = planted(CHAIN), read(CHAIN)
    assert report.windows == ("1", "2", "3", "4") and report.window_starts == ("uniform", "stationary")
    exact = run.trials.at_scored(run.trials.belief).numpy()
    mean, held_out = exact[:31].mean(axis=(0, 1)), exact[31:]
    for row, start in enumerate(report.window_starts):
        for column, width in enumerate(report.windows):
            seen = CHAIN.window_predictives(run.trials, int(width), start).numpy()[31:]  # the answer is the state
            r2 = 1 - ((held_out - seen) ** 2).sum() / ((held_out - mean) ** 2).sum()
            assert report.window_r2.value[row, column] == pytest.approx(r2, abs=1e-5)
    is_shown = np.isfinite(report.window_r2.ends[0])
    assert (report.window_r2.ends[0] <= report.window_r2.value)[is_shown].all() and is_shown.sum() >= 6
    assert (report.window_r2.value <= report.window_r2.ends[1])[is_shown].all()
    assert (np.diff(report.window_r2.value, axis=1) > 0).all() and report.window_map_r2.value[1, 3] > 0.98
    # Written whole, the belief is read better than any of these; their levels are baselines of the headline.
    assert report.r2.value[0, WRITTEN] > report.window_map_r2.value.max() > report.r2.value[0, NOISE]
    names = {level.name for level in report.headlines()[0].levels}
    assert {"belief after the last 4 symbols", "belief after the current symbol alone"} <= names
    assert read().windows == (), "what is hidden does not move"


def test_the_widest_observer_is_a_stored_baseline_with_its_interval() -> None:
    """A vector that represents the last ten symbols alone beats the observers of one and four symbols, not of ten."""
    trials = planted_chain(stay=0.95, seed=0)
    assert trials.observers is not None
    ten = next(islice(window_beliefs(trials.observers.filter, trials.at_scored(trials.belief), "stationary"), 10, None))
    vectors = ten @ torch.from_numpy(np.random.default_rng(0).normal(size=(ten.shape[2], D)))
    report = BeliefReadout().measure(planted_run(trials, {RESID_POST: vectors[None]}))
    names = ["belief after the current symbol alone", *(f"belief after the last {width} symbols" for width in (4, 10))]
    assert [own.name for own in report.r2.baselines if own.name.startswith("belief")] == names
    own, widest = report.r2[0, 0], report.r2.baseline(names[-1])[0, 0]
    assert widest.low is not None and widest.low < own.value < widest.bar("higher")
    narrow = replace(own, baselines=tuple(own.baseline(name) for name in names[:-1]))
    assert narrow.clears("higher") == "yes" and own.clears("higher") != "yes"
    (row,) = records_of(report, metric="r2")
    assert row.baseline_name == names[-1] and names[-1] in report.headlines()[0].baseline_name


@pytest.mark.parametrize(("widths", "shown"), [((1, 2, 3), (1, 3)), ((1, 2, 3, 4, 10), (1, 4, 10)), ((2,), (2,))])
def test_each_window_level_is_that_of_the_better_start(
    widths: tuple[int, ...], shown: tuple[int, ...], rng: np.random.Generator
) -> None:
    plain, mapped = (
        Estimate.of(value := rng.uniform(size=(2, len(widths))), (value - 0.1, value + 0.2)) for _ in range(2)
    )
    found = window_levels(plain, mapped, [str(width) for width in widths])
    best = {width: max(own.value[:, at].max() for own in (plain, mapped)) for at, width in enumerate(widths)}
    assert [float(level.value) for level in found] == [best[width] for width in shown]
    np.testing.assert_allclose([level.bar("higher") - level.value for level in found], 0.2)
    assert window_levels(*[Estimate.of(np.zeros((0, 0)), (0.0, 0.0))] * 2, []) == ()
