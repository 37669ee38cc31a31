"""Published claims: what is measured tells planted predictors apart, and an interrupted command continues."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from bayesgeom.interventions.design import Design
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks import Dice, Product
from examples.replication import published
from examples.replication.claims import published_page
from examples.replication.published import FACTOR, added, compared, forcing, mixed, observers, order, recipes

FACTORS = Product(FACTOR, FACTOR, length=7, dependence=0.2)
TRIALS = FACTORS.sample(48, seed=0)
JOINT, FACTORED = observers(FACTORS, TRIALS)


def test_the_widest_observers_are_the_exact_one_and_the_factored_baseline() -> None:
    torch.testing.assert_close(JOINT[-1], TRIALS.at_scored(TRIALS.predictive))
    torch.testing.assert_close(FACTORED[-1], FACTORS.baseline_predictives(TRIALS)["factored"])
    torch.testing.assert_close(JOINT[0], FACTORED[0])


@pytest.mark.parametrize("width", [1, 3, -1])
def test_joint_and_factored_observers_of_any_width_are_told_apart(width: int) -> None:
    joint, factored = (compared(family[width], JOINT, FACTORED) for family in (JOINT, FACTORED))
    assert joint["upper"] < 0 < factored["lower"] and joint["share"] < 0.5 < factored["share"]
    assert joint["left_joint"] < 0.001 and factored["left_factored"] < 0.001


def test_flat_predictions_favor_no_family() -> None:
    assert compared(0.7 * JOINT[-1] + 0.3 * JOINT[0], JOINT, FACTORED)["upper"] < 0


SUMS = (JOINT[0].log() + 0.3 * (JOINT[1].log() - JOINT[0].log()).cumsum(dim=1)).softmax(dim=-1)


def test_adding_up_pairs_with_flat_weights_looks_factored() -> None:
    found = compared(SUMS, JOINT, FACTORED)
    assert found["lower"] > 0 and found["left_added"] < 1e-6 < found["left_factored"]
    assert found["margin_lower"] < found["margin"] < found["margin_upper"] < 0
    torch.testing.assert_close(added(SUMS, JOINT), SUMS, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("planted", "verdict"),
    [(FACTORED[2], "holds"), (FACTORED[-1], "holds"), (SUMS, "not identified"), (JOINT[2], "does not hold")],
)
def test_a_factored_network_holds_and_a_sum_over_pairs_is_not_identified(planted: Tensor, verdict: str) -> None:
    early = {"kl": 0.4, "gap": 1.0, "step": 1, **compared(planted, JOINT, FACTORED)}
    assert published_page.factors_early(pd.DataFrame([early, {**early, "step": 2}])) == verdict


def test_the_nearest_mixture_has_the_weights_of_a_planted_one() -> None:
    weights, near = mixed(0.25 * JOINT[1] + 0.75 * JOINT[-1], [JOINT[1], FACTORED[-1], JOINT[-1]])
    torch.testing.assert_close(weights, torch.tensor([0.25, 0.0, 0.75]).double(), rtol=0, atol=0.02)
    assert kl_bits(0.25 * JOINT[1] + 0.75 * JOINT[-1], near.log()).mean() < 1e-4


class Coin(nn.Module):
    """The exact observer of a coin; with `last` above 1, the latest flip counts so many times."""

    def __init__(self, last: float) -> None:
        super().__init__()
        self.last = last

    def forward(self, tokens: Tensor) -> Tensor:
        shown = nn.functional.one_hot(tokens, 2).double()
        return (shown.cumsum(dim=1) + (self.last - 1) * shown + 1).log()


def test_order_costs_bits_only_where_predictions_depend_on_it() -> None:
    recipe = next(own for own in recipes("order", 0))
    found = pd.DataFrame([*order(recipe, {0: Coin(1.0), 1: Coin(3.0)})])
    assert [*found.flips] == [8, 8, 16, 16, 32, 32]
    exact, sensitive = (found[found.step == step] for step in (0, 1))
    assert (exact.kl.abs() < 1e-9).all() and (exact.gain.abs() < 1e-9).all()
    assert (sensitive.lower > 0.0005).all() and (sensitive.gain < sensitive.kl).all()
    assert sensitive.gain.is_monotonic_decreasing


def test_an_interrupted_command_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [
        replace(own, steps=2, snapshots=1, batch_size=2, task=Dice(length=8), sizes={**own.sizes, "d_model": 8})
        for own in recipes("order", 3)
        if own.name.startswith(("coin-none", "coin-lstm"))
    ]
    monkeypatch.setattr(published, "recipes", lambda claim, seed: small[: 1 + seed])
    table = tmp_path / "order.csv"
    published.published("order", seeds=(0,), runs=tmp_path / "runs", table=table)
    first = table.read_text("utf-8")
    published.published("order", seeds=(0, 1), runs=tmp_path / "runs", table=table)
    found = pd.read_csv(table)
    assert table.read_text("utf-8").startswith(first) and [*found.positions.unique()] == ["none", "lstm"]
    assert {*found.step} == {0, 2} and {*found.flips} == {8}


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_swap_is_scored_at_every_layer_and_lag(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = Design("swap", n_random=1, n_matched=1, n_control=4, n_untrained=2, n_fit=64)
    for name, value in {"SWAPS": few, "N_SWAPPED": 16, "LAGS": (0, 1)}.items():
        monkeypatch.setattr(published, name, value)
    recipe = next(own for own in recipes("forcing", 0) if own.name == f"mess3-{kind}-seed0")
    small = replace(recipe, sizes={**recipe.sizes, "d_model": 16}, task=replace(recipe.task, length=5))
    found = pd.DataFrame([*forcing(small, {0: small.model_config().build(seed=0)})])
    assert [*zip(found.layer, found.lag, strict=True)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert np.isfinite(found[["movement", "whole", "random", "untrained", "kl_before", "kl_after"]]).all(axis=None)
    chosen = published_page.swapped(found, 0)
    assert chosen.layer == 1 if kind == "transformer" else chosen.lag == 0
    assert published_page.forces(found) == "undecided"


def test_verdicts_follow_the_stated_rules() -> None:
    early = {"kl": 0.4, "gap": 1.0, "step": 1, "apart": 0.01, "margin": 0.1, "margin_lower": 0.05}
    last = {**early, "kl": 0.1, "step": 2, "lower": -0.3, "upper": -0.1}
    found = {"holds": (0.1, 0.2), "at the threshold": (-0.1, 0.1), "does not hold": (-0.2, -0.1)}
    for verdict, (lower, upper) in found.items():
        network = pd.DataFrame([{**early, "lower": lower, "upper": upper}, last])
        assert published_page.factors_early(network) == verdict
    dull = pd.DataFrame([{**early, "margin_lower": -0.05, "lower": 0.1, "upper": 0.2}, last])
    assert published_page.factors_early(dull) == "not identified"
    assert published_page.order_costs(pd.Series({"gap": 1.0, "lower": 0.0011, "upper": 0.002})) == "holds"
    assert published_page.order_costs(pd.Series({"gap": 1.0, "lower": 0.0001, "upper": 0.0009})) == "does not hold"
    later = {"layer": [0, 1, 2], "lag": 1, "movement": [0.9, 0.5, 0.1]}  # layer 0 is by construction, 1 moves most
    swaps = {"sets a state": "holds", "writes the answer": "does not hold", "undecided": "undecided"}
    for own, verdict in swaps.items():
        for other in swaps:
            network = pd.DataFrame({**later, "verdict": ["by construction", own, other]})
            assert published_page.forces(network) == verdict


def judged(rows: pd.DataFrame) -> str:
    """Return the verdict on one layer from the stored levels, by the rule that `LagReport` states."""
    by_lag = rows.set_index("lag")
    bars = by_lag[["random_bar", "variance-matched_bar"]].assign(zero=0.0, tenth=0.1 * by_lag.whole)
    is_above, later = by_lag.lower > bars.max(axis=1), by_lag.loc[1]
    if is_above[1] and later.controls >= 20 and later.lower > later.untrained_bar:
        return "sets a state"
    return "writes the answer" if is_above[0] and later.upper < 0.1 else "undecided"


def test_the_verdicts_on_forcing_follow_from_the_stored_table() -> None:
    table = published_page.rows("forcing")
    assert table.network.nunique() == 18 and (table.controls <= 20).all()
    unmatched = table[table.controls == 0]
    assert unmatched["variance-matched"].isna().all() and unmatched["variance-matched_bar"].isna().all()
    codes = {"sets a state": "holds", "writes the answer": "does not hold", "undecided": "undecided"}
    for _, network in table[table.verdict != "by construction"].groupby("network"):
        layers = {layer: judged(rows) for layer, rows in network.groupby("layer")}
        assert layers == network.groupby("layer").verdict.first().to_dict()
        assert published_page.forces(network) == codes[layers[published_page.swapped(network, 1).layer]]


def test_a_verdict_that_changes_with_the_number_of_flips_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"holds": (2.0, 3.0), "does not hold": (0.1, 0.5), "at the threshold": (0.5, 2.0)}
    planted = {
        "a": {8: "holds", 16: "does not hold", 32: "holds"},
        "b": {8: "holds", 16: "does not hold", 32: "does not hold"},
        "shipped": {8: "holds", 16: "at the threshold"},
    }
    last = [
        {"network": name, "flips": flips, "step": 9, "gap": 1_000.0, "lower": ends[own][0], "upper": ends[own][1]}
        for name, verdicts in planted.items()
        for flips, own in verdicts.items()
    ]
    first = [{**at, "step": 0, "lower": 9.0, "upper": 9.0} for at in last]
    monkeypatch.setattr(published_page, "rows", lambda claim: pd.DataFrame([*first, *last]))
    assert published_page.order_verdicts() == ["depends on the number of flips", "does not hold"]
    assert published_page.costs_by_flips().loc["shipped"].isna().tolist() == [False, True]


def test_the_predictor_of_shares_is_the_best_one_over_all_sequences() -> None:
    task, rng = Dice(length=6), np.random.default_rng(0)
    sequences = torch.cartesian_prod(*[torch.arange(2)] * task.length)
    heads = sequences.cumsum(dim=1).numpy()
    exact = task.observed(sequences)[1][..., 1].numpy()
    before = np.concatenate([np.full((len(exact), 1), 0.5), exact[:, :-1]], axis=1)
    chance = np.where(sequences.numpy() == 1, before, 1 - before).prod(axis=1)
    shares = [[Fraction(int(k), n) for n, k in enumerate(own, start=1)] for own in heads]
    weighted: dict[Fraction, list[tuple[float, float]]] = {}
    for i, n in np.ndindex(exact.shape):
        weighted.setdefault(shares[i][n], []).append((chance[i], exact[i, n]))
    best = {share: sum(w * p for w, p in own) / sum(w for w, _ in own) for share, own in weighted.items()}

    def kl(predicted: dict[Fraction, float]) -> np.ndarray:
        q = np.array([[predicted[share] for share in own] for own in shares])
        return chance @ (exact * np.log2(exact / q) + (1 - exact) * np.log2((1 - exact) / (1 - q)))

    floors = published_page.share_floors(task.length)
    np.testing.assert_allclose(floors, kl(best), rtol=1e-9)
    for _ in range(20):
        assert kl({share: q + rng.normal(scale=0.01) for share, q in best.items()}).mean() > floors.mean()
