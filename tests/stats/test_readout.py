"""Reading beliefs off clouds: against scikit-learn fitted and scored on the points themselves."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import balanced_accuracy_score
from sklearn.neighbors import NearestCentroid

from bayesgeom.measurements._beliefs import MEAN_BELIEF, SHUFFLE, linear_scores
from bayesgeom.measurements._beliefs import SUBSPACES as WITHIN
from bayesgeom.measurements.belief_clusters import guess_scores
from bayesgeom.stats.bootstrap import bootstrap_weights, shuffled_within_position
from bayesgeom.stats.readout import (
    ALIVE,
    BELIEF,
    LABEL,
    BeliefTargets,
    balanced_accuracy,
    belief_rows,
    belief_targets,
    centroid_hits,
    commonest,
    held_out_scores,
    in_bands,
    read_out,
    renormalized,
)
from bayesgeom.stats.regression import RIDGE
from bayesgeom.stats.subspace import random_subspaces

SEQUENCES, FIT, POSITIONS, H, D, DRAWS, SUBSPACES = 43, 23, 5, 3, 7, 2, 11
SPLIT = FIT * POSITIONS
HELD = SEQUENCES - FIT
EVEN = np.full((1, HELD), 1 / HELD)


@pytest.fixture
def belief(rng: np.random.Generator) -> torch.Tensor:
    weights = rng.dirichlet(np.ones(H), size=(SEQUENCES, POSITIONS))
    weights[rng.random(weights.shape) < 0.3] = 0
    weights[weights.sum(axis=-1) == 0] = 1
    return torch.from_numpy(weights / weights.sum(axis=-1, keepdims=True))


@pytest.fixture
def targets(belief: torch.Tensor) -> BeliefTargets:
    rows = belief_rows(belief)
    shuffled = torch.from_numpy(shuffled_within_position(rows.numpy(), np.random.default_rng(3)))
    return belief_targets(torch.stack([rows, shuffled]), FIT)


@pytest.fixture
def points(belief: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    signal = belief.numpy() @ rng.normal(size=(H, D))
    return torch.from_numpy(signal + 0.3 * rng.normal(size=signal.shape) + 9).flatten(0, 1)


BASES = random_subspaces(D, H, draws=SUBSPACES, seed=1)


def fitted(x: np.ndarray, y: np.ndarray) -> Ridge:
    """Ridge on the first half, with the strength that the package states."""
    centered = x[:SPLIT] - x[:SPLIT].mean(axis=0)
    return Ridge(alpha=RIDGE * (centered**2).sum() / x.shape[1]).fit(x[:SPLIT], y[:SPLIT])


def maps_of(points: torch.Tensor, targets: BeliefTargets) -> list[tuple[np.ndarray, int]]:
    """What each map sees, and which draw it is fitted to."""
    whole = [(points.numpy(), draw) for draw in range(DRAWS)]
    return whole + [((points @ basis).numpy(), 0) for basis in BASES]


def test_r2_is_that_of_scikit_learn(points: torch.Tensor, targets: BeliefTargets) -> None:
    found = read_out(points, targets, BASES)
    assert found.r2.shape == found.balanced_accuracy.shape == (DRAWS + SUBSPACES,)
    for index, (x, draw) in enumerate(maps_of(points, targets)):
        y = targets.values[:, draw, BELIEF].double().numpy()
        predicted = fitted(x, y).predict(x[SPLIT:])
        twin = 1 - ((y[SPLIT:] - predicted) ** 2).sum() / ((y[SPLIT:] - y[:SPLIT].mean(axis=0)) ** 2).sum()
        assert found.r2[index] == pytest.approx(twin, abs=1e-5), index
        if index == 0:
            np.testing.assert_allclose(found.predicted_belief.reshape(-1, H), predicted, atol=1e-5)


def cells_twin(decided: np.ndarray, truth: np.ndarray) -> float:
    """Mean of scikit-learn's balanced accuracy over the cells that hold both classes."""
    scores = [
        balanced_accuracy_score(truth[:, p, h], decided[:, p, h])
        for p, h in np.ndindex(*truth.shape[1:])
        if 0 < truth[:, p, h].mean() < 1
    ]
    return float(np.mean(scores))


def test_surviving_hypotheses_are_decided_at_the_midpoint(points: torch.Tensor, targets: BeliefTargets) -> None:
    found = read_out(points, targets, BASES)
    for index, (x, draw) in enumerate(maps_of(points, targets)):
        alive = targets.values[:, draw, ALIVE].double().numpy()
        score = fitted(x, alive).predict(x)
        ends = [[score[:SPLIT][alive[:SPLIT, h] == side, h].mean() for h in range(H)] for side in (0, 1)]
        decided = (score[SPLIT:] > np.mean(ends, axis=0)).reshape(HELD, POSITIONS, H)
        truth = alive[SPLIT:].reshape(HELD, POSITIONS, H) > 0
        assert found.balanced_accuracy[index] == pytest.approx(cells_twin(decided, truth), abs=1e-9), index
        if index == 0:
            assert (found.decided_alive == decided).all()


def test_centroids_are_scikit_learns(points: torch.Tensor, targets: BeliefTargets) -> None:
    hits = centroid_hits(points, targets)
    x = points.numpy()
    for draw in range(DRAWS):
        one_hot = targets.values[:, draw, LABEL].numpy()
        is_clear, label = one_hot.any(axis=1), one_hot.argmax(axis=1)
        use = np.flatnonzero(is_clear[:SPLIT])
        nearest = NearestCentroid().fit(x[use], label[use]).predict(x[SPLIT:])
        twin = (nearest == label[SPLIT:]) & is_clear[SPLIT:]
        assert (hits[:, :, draw].ravel() == twin).all()


def test_rows_say_who_lives_and_who_leads() -> None:
    belief = torch.tensor([[[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]]], dtype=torch.float64)
    rows = belief_rows(belief)[0]
    assert rows[:, ALIVE].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert rows[:, LABEL].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert torch.equal(rows[:, BELIEF], belief[0])
    assert belief_rows(torch.ones(1, 1, 1, dtype=torch.float64))[0, 0, LABEL].tolist() == [1]


def test_predictions_become_distributions() -> None:
    text = renormalized(np.array([[0.5, -0.25, 1.5], [-1.0, -2.0, 0.0], [0.2, 0.3, 0.5]]))
    np.testing.assert_allclose(text, [[0.25, 0, 0.75], [1 / 3, 1 / 3, 1 / 3], [0.2, 0.3, 0.5]])


def test_balanced_accuracy_is_scikit_learns_in_each_cell(rng: np.random.Generator) -> None:
    truth, decided = (rng.random((13, 5, 2, 3)) < share for share in (0.8, 0.4))
    truth[:, 1, 0, 2] = True  # a cell of one class counts for nothing
    found = balanced_accuracy(decided, truth, np.full((1, 13), 1 / 13))
    assert found.shape == (1, 2)
    for column in range(2):
        assert found[0, column] == pytest.approx(cells_twin(decided[:, :, column], truth[:, :, column]))


def test_balanced_accuracy_weighs_sequences(rng: np.random.Generator) -> None:
    truth, decided = (rng.random((13, 2, 3)) < 0.5 for _ in range(2))
    weights = bootstrap_weights(13, seed=1, draws=7)
    found = balanced_accuracy(decided, truth, weights)
    for draw in range(7):
        rows = np.repeat(np.arange(13), np.rint(weights[draw] * 13).astype(int))
        assert found[draw] == pytest.approx(cells_twin(decided[rows], truth[rows]))


def test_scores_under_even_weights_are_those_of_the_readout(points: torch.Tensor, targets: BeliefTargets) -> None:
    found = read_out(points, targets, BASES)
    scores = held_out_scores(found, targets, EVEN)
    assert scores["r2"][0] == pytest.approx(found.r2[0], abs=1e-5)
    assert scores["balanced_accuracy"][0] == pytest.approx(found.balanced_accuracy[0])
    truth = targets.held_out[:, :, 0, BELIEF].double().numpy()
    twin = np.abs(renormalized(found.predicted_belief) - truth).sum(axis=-1).mean() / 2
    assert scores["total_variation"][0] == pytest.approx(twin)


def test_a_belief_that_may_be_negative_is_read_as_signed_where_no_entry_is(
    points: torch.Tensor, belief: torch.Tensor
) -> None:
    rows = belief_rows(belief, is_signed=True)
    assert rows[:, :, ALIVE].all() and not rows[:, :, LABEL].any()
    signed = belief_targets(rows[None], FIT, is_signed=True)
    assert np.isnan(held_out_scores(read_out(points, signed, BASES), signed, EVEN)["total_variation"]).all()


def test_linear_scores_have_their_levels_beside_them(points: torch.Tensor, targets: BeliefTargets) -> None:
    found = [read_out(cloud, targets, BASES) for cloud in (points, points**2)]
    table = linear_scores([found], targets, n=SEQUENCES)
    assert table["r2"].baseline(SHUFFLE).value[0, 1] == pytest.approx(found[1].r2[1:DRAWS].mean())
    truth = targets.held_out[:, :, 0, BELIEF].double().numpy()
    mean = targets.values[:SPLIT, 0, BELIEF].double().mean(dim=0).numpy()
    distance = np.abs(truth - mean).sum(axis=-1).mean() / 2
    assert table["total_variation"].baseline(MEAN_BELIEF).value == pytest.approx(np.full((1, 2), distance), abs=1e-6)
    within = table["r2"].baseline(WITHIN)
    assert within.low is not None and within.high is not None
    assert within.value[0, 1] == pytest.approx(found[1].r2[DRAWS:].mean())
    assert (within.low < within.value).all() and (within.value < within.high).all()
    for own in table.values():
        low, high = own.ends
        assert own.value.shape == (1, 2) and ((low < own.value) & (own.value < high)).all()


def test_bands_and_the_commonest_answer(points: torch.Tensor, targets: BeliefTargets) -> None:
    hits, bands = centroid_hits(points, targets), [(0.0, 2.0), (0.0, 0.6), (0.6, 2.0), (3.0, 4.0)]
    inside = in_bands(targets, bands)
    held_out = targets.held_out.numpy()
    for band, (low, high) in enumerate(bands):
        right, counts = [], np.zeros(H)
        for s, p in np.ndindex(HELD, POSITIONS):
            label = held_out[s, p, 0, LABEL]
            if label.any() and low <= held_out[s, p, 0, BELIEF].max() < high:
                right.append(hits[s, p, 0])
                counts += label
        accuracy, constant = (
            guess_scores([points[None]], targets, bands, n=SEQUENCES).value[0, 0, band],
            commonest(targets, inside)[band],
        )
        if right:
            assert accuracy == pytest.approx(np.mean(right)) and constant == pytest.approx(counts.max() / len(right))
        else:
            assert np.isnan(accuracy) and np.isnan(constant)


def test_nothing_held_out_is_no_answer(points: torch.Tensor, belief: torch.Tensor) -> None:
    targets = belief_targets(belief_rows(belief[:1])[None].expand(2, -1, -1, -1, -1), 1)
    found = read_out(points[:POSITIONS], targets, BASES)
    for own in linear_scores([[found]], targets, n=1).values():
        assert np.isnan([own.value, *own.ends]).all() and not own.baselines
