"""Readings of the new worlds: planted read-outs, features by hand, a table that resumes, and its page."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import bayesgeom
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.models.resolve import scored_task_of
from bayesgeom.report.tables import Headline
from bayesgeom.tasks import CausalGraph, DirichletMarkov
from examples.replication import worlds as study
from examples.replication.claims.pages import END, START
from tests.structure.source import ROOT
from tests.tiny import tiny_checkpoints, tiny_folder

PAGE = (ROOT / "examples/replication/worlds.md").read_text("utf-8")
STALE = "run `python -m examples.replication table --write-pages`"
__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures


def test_r2_is_that_of_least_squares_on_the_second_half(rng: np.random.Generator) -> None:
    points = torch.from_numpy(rng.normal(size=(40, 5, 3)))
    target = points @ torch.from_numpy(rng.normal(size=(3, 2))) + torch.from_numpy(rng.normal(size=(40, 5, 2)))
    found = study.r2_of(points, target, "a map", seed=0)
    x, y = (np.asarray(own).reshape(2, 100, -1) for own in (points, target))
    fit = np.c_[x[0], np.ones(100)]
    predicted = np.c_[x[1], np.ones(100)] @ np.linalg.lstsq(fit, y[0], rcond=None)[0]
    expected = 1 - ((y[1] - predicted) ** 2).sum() / ((y[1] - y[0].mean(axis=0)) ** 2).sum()
    assert found.value == pytest.approx(expected, abs=1e-3) and found.low < expected < found.high
    unrelated = torch.from_numpy(rng.normal(size=(40, 5, 2)))
    assert study.r2_of(points, unrelated, "nothing", seed=0).value < 0.05


def test_dull_features_are_position_counts_shares_and_last_tokens() -> None:
    task = DirichletMarkov(n_symbols=3, length=7)
    trials = task.sample(2, seed=0)
    found, tokens = study.dull_features(trials), trials.tokens
    for row in range(2):
        for at in range(7):
            shown = np.bincount(tokens[row, : at + 1], minlength=3)
            last = [np.eye(3)[tokens[row, at - back]] if back <= at else np.zeros(3) for back in range(study.N_LAST)]
            expected = np.concatenate([np.eye(7)[at], shown, shown / shown.sum(), *last[::-1]])
            np.testing.assert_allclose(found[row, at], expected)


def test_the_row_of_the_mean_matrix_is_the_exact_prediction() -> None:
    task = DirichletMarkov(n_symbols=3, length=11, concentration=0.7)
    trials = task.sample(5, seed=0)
    matrix = study.statistics(task, trials)["transition matrix"].unflatten(2, (3, 3))
    row = matrix.gather(2, trials.tokens[:, :, None, None].expand(-1, -1, 1, 3))[:, :, 0]
    torch.testing.assert_close(row, trials.predictive)


def test_the_probability_of_an_edge_is_that_of_the_graphs_with_it() -> None:
    task = CausalGraph(n_variables=3, n_rows=2)
    trials = task.sample(3, seed=0)
    belief = trials.at_scored(trials.belief)
    found = study.statistics(task, trials)["probability of each edge"]
    assert found.shape == (3, 2, 6)
    with_edge = [
        sum(belief[0, 1, at] for at, parents in enumerate(task.graphs()) if parents[effect] >> cause & 1)
        for cause in range(3)
        for effect in range(3)
        if cause != effect
    ]
    torch.testing.assert_close(found[0, 1], torch.stack([torch.as_tensor(own) for own in with_edge]))


def test_a_network_is_read_once_for_each_of_its_weights(
    tiny_checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def planted(model: object, network: str, *, seed: int) -> Iterator[study.Row]:
        line = Headline(metric="r2", label="R²", value=0.25, low=0.125, high=float("nan"), verdict="no")
        yield study.Row.of(
            line, network=network, weights_hash=bayesgeom.load(network).spec.weights_hash, instrument="x"
        )

    monkeypatch.setattr(study, "reading", planted)
    table = tmp_path / "worlds.csv"
    for again in (False, False, True):
        study.worlds(("dice-lstm", "dice-transformer"), table=table, again=again)
    assert capsys.readouterr().out.count("1 numbers") == 4
    found = pd.read_csv(table)
    assert found.network.tolist() == ["dice-lstm", "dice-transformer"] and found.value.tolist() == [0.25, 0.25]
    assert study.overview(table).count("\n") == 3 + 2, "a row for each network, and a sentence"


def test_both_columns_of_r2_are_of_one_read_out_and_of_what_the_world_is_read_for(tmp_path: Path) -> None:
    """Rows of another instrument and of another quantity are larger, and do not count."""
    planted = {
        "R² of run length from state 0": 0.5,
        "R² of run length from resid_post 1": 0.625,
        "R² of run length from an untrained network": 0.75,
        "R² of run length from position, counts and last tokens": 0.25,
        "R² of run length from exact next-token distribution": 0.875,
        "R² of belief from state 0": 0.9375,
    }
    line = {"network": "change-point-lstm", "weights_hash": "", "baseline": "", "level": np.nan, "verdict": ""}
    rows = [{"instrument": "read-out", "quantity": name, "value": own} for name, own in planted.items()]
    rows.append({"instrument": "diagnose", "quantity": "R² of the belief, best layer of state: 0", "value": 0.96875})
    for row in rows:
        row |= line | {"low": row["value"] - 0.03125, "high": row["value"] + 0.03125}
    pd.DataFrame(rows).to_csv(table := tmp_path / "worlds.csv", index=False)
    head, _, cells = (own.split(" | ") for own in study.overview(table).splitlines()[:3])
    shown = dict(zip(head, cells, strict=True))
    interval, rest = shown["R² of the belief"].split("; ")
    assert interval.startswith("0.625 [0.59") and rest == "untrained network 0.75"
    assert shown["R² without inference"].startswith("0.25 [")


@pytest.mark.parametrize("world", study.WORLDS)
def test_a_statistic_is_shown_where_hypotheses_are_many(world: str) -> None:
    if (name := f"{world}-transformer") in checkpoints():
        task = scored_task_of(bayesgeom.load(name), None)
        one = task.sample(1, seed=0)
        known, is_many = study.statistics(task, one), one.belief.shape[-1] > study.MOST_READ
        assert (study.read_of(name) in known) == is_many == (world in study.READ)


@pytest.mark.timeout(300)
def test_every_instrument_reads_a_network(tiny_checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A belief over many hypotheses, so that its statistics are swapped."""
    for name in ("N", "N_SWAPPED", "N_AUDITED", "N_FIT"):
        monkeypatch.setattr(study, name, 32)
    rows = [*study.reading(bayesgeom.load("causal-graph-transformer"), "tiny")]
    assert {row.instrument for row in rows} == {"diagnose", "response", "read-out", "intervene", "audit"}
    assert len({(row.instrument, row.quantity) for row in rows}) == len(rows)
    assert any("probability of each edge" in row.quantity for row in rows if row.instrument == "intervene")
    reasons = {row.quantity: row.verdict for row in rows if np.isnan(row.value)}
    assert reasons["martingale gap"] == "not measured; order matters"


def test_the_table_is_of_the_shipped_weights_and_the_page_is_the_table() -> None:
    table = pd.read_csv(study.TABLE)
    for network, own in table.groupby("network"):
        assert network in study.NETWORKS and own.weights_hash.nunique() == 1
        if str(network) in checkpoints():
            assert own.weights_hash.iloc[0] in (checkpoints()[str(network)] / "card.md").read_text("utf-8")
    part = PAGE.partition(START.format("worlds"))[2].partition(END)[0]
    assert part.strip() == study.overview(), STALE


def test_the_numbers_of_a_paragraph_are_those_of_its_world() -> None:
    table, worlds = pd.read_csv(study.TABLE), set[str]()
    for paragraph in PAGE.partition("## What was found")[2].split("\n\n"):
        if title := re.match(r"\*\*(.+?)\.\*\*", paragraph):
            name = title[1].lower().replace("–", "-").replace(" ", "-")
            world = next(own for own in study.WORLDS if name.startswith(own))
            own = table[table.network.str.startswith(world)][["value", "low", "high", "level"]].abs().to_numpy()
            for number in re.findall(r"\d+\.\d+", paragraph):
                unit = 10.0 ** -len(number.partition(".")[2])
                assert np.isclose(own, float(number), atol=0.51 * unit, rtol=0).any(), (world, number)
            worlds.add(world)
    assert len(worlds) >= 4
