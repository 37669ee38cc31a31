"""The reference case, Mess3: a small transformer holds the belief linearly, and an untrained one does not."""

from pathlib import Path

import numpy as np
import pytest

from bayesgeom.core.verdict import Verdict
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.measurements._beliefs import ANSWERS, EMBEDDING
from bayesgeom.measurements.belief_clusters import BeliefClusters, BeliefClustersReport
from bayesgeom.measurements.belief_readout import BeliefReadout, BeliefReadoutReport
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.models.resolve import as_model
from bayesgeom.report.estimate import UNTRAINED
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.process import Mess3, Process
from bayesgeom.training.loop import Pace, train
from bayesgeom.training.recipes import Recipe

# Long and slow to forget: in short sequences an average of what was read, which any network offers, is nearly enough.
TASK = Mess3(x=0.05, a=0.6, length=64)
SIZES = {"architecture": "transformer", "n_layers": 3, "n_heads": 4, "d_model": 64, "d_mlp": 256}


def readout(task: Mess3, *, seed: int) -> BeliefReadoutReport:
    """The read-out of an untrained network, with the seed of the baseline."""
    recipe = Recipe(name="untrained", task=task, sizes=SIZES)
    found = diagnose(
        as_model(recipe.model_config().build(seed=seed)), task, probes=[BeliefReadout()], n=192, n_untrained=0
    )
    report = found["belief_readout"]
    assert isinstance(report, BeliefReadoutReport)
    return report


def test_in_short_sequences_an_untrained_network_gives_the_belief_away() -> None:
    """A warning, as a number: at the literature's length and parameters R² alone says little."""
    short, long = readout(Mess3(length=10), seed=1), readout(TASK, seed=1)
    assert short.r2.value[0, -1] > 0.9 and short.r2.baseline(EMBEDDING).value[0, -1] > 0.7
    assert long.r2.ends[1][0, -1] < 0.7 and long.r2.baseline(EMBEDDING).value[0, -1] < 0.55


@pytest.mark.parametrize(
    ("task", "r2", "is_identified"),
    [(Process("rrxor", length=12), 0.241, True), (Mess3(x=0.05, a=0.85, length=12), 1.0, False)],
)
def test_the_exact_next_token_distribution_is_a_baseline(
    task: Process | Mess3, r2: float, *, is_identified: bool
) -> None:
    config = TransformerConfig(d_vocab=task.d_vocab, n_ctx=12, n_layers=1, n_heads=1, d_model=14, d_mlp=7)
    model = as_model(config.build(seed=0))
    report = diagnose(model, task, probes=[BeliefReadout()], n=192, n_untrained=0)["belief_readout"]
    assert isinstance(report, BeliefReadoutReport)
    own, level = report.next_token_r2, report.r2.baseline(ANSWERS)
    assert float(own) == pytest.approx(r2, abs=0.02) and report.identified == is_identified
    assert (level.value == float(own)).all() and level.low is not None
    assert ((level.low <= level.value) | np.isnan(level.low)).all(), "no range within float32 rounding of 1"
    # 36 beliefs are all of RRXOR; 12 symbols of Mess3 reach more than are drawn, those of its first six.
    assert (report.n_beliefs, len(report.reachable_belief)) == ((36, 36) if is_identified else (-1, 1_093))
    nearest = np.abs(report.drawn_belief[:, None] - report.reachable_belief).max(axis=2).min(axis=1)
    assert nearest.max() < 1e-6 or not is_identified
    assert ("36" in report.panels()[0].note) == is_identified
    verdicts = {line.metric: line.verdict for line in report.headlines()}
    assert (verdicts["r2"] == Verdict.NOT_IDENTIFIED) == (not is_identified)
    assert (verdicts["total_variation"] == Verdict.NOT_IDENTIFIED) == (not is_identified)
    # By hand, with the same split and without a penalty.
    trials = task.sample(4_096, seed=1)
    asked, belief = (trials.at_scored(part).flatten(0, 1).numpy() for part in (trials.predictive, trials.belief))
    half, design = len(belief) // 2, np.column_stack([asked, np.ones(len(asked))])
    weights = np.linalg.lstsq(design[:half], belief[:half], rcond=None)[0]
    error, spread = belief[half:] - design[half:] @ weights, belief[half:] - belief[:half].mean(axis=0)
    assert float(own) == pytest.approx(1 - (error**2).sum() / (spread**2).sum(), abs=0.02)


def test_where_the_answers_are_the_hypotheses_there_is_no_such_baseline() -> None:
    task = Bijection(n_values=5, n_pairs=4)
    config = TransformerConfig(d_vocab=task.d_vocab, n_ctx=task.n_pos, n_layers=1, n_heads=1, d_model=14, d_mlp=7)
    model = as_model(config.build(seed=0))
    report = diagnose(model, task, probes=[BeliefReadout()], n=32, n_untrained=0)["belief_readout"]
    assert isinstance(report, BeliefReadoutReport)
    assert np.isnan(float(report.next_token_r2)) and report.identified
    assert ANSWERS not in [level.name for level in report.r2.baselines]


@pytest.mark.slow
def test_training_on_mess3_lays_out_the_simplex(tmp_path: Path) -> None:
    recipe = Recipe(
        name="mess3", task=TASK, sizes=SIZES, targets="exact", lr=2e-3, warmup=50, steps=300, batch_size=32, snapshots=0
    )
    module = train(recipe, tmp_path / "run", pace=Pace(quiet=True))
    found = diagnose(as_model(module), TASK, probes=[BeliefReadout(), BeliefClusters()], n=192, n_untrained=3)
    report, clusters = found["belief_readout"], found["belief_clusters"]
    assert isinstance(report, BeliefReadoutReport) and isinstance(clusters, BeliefClustersReport)
    r2, distance = report.r2[0, -1], report.total_variation[0, -1]
    assert r2.ends[0] > 0.95 and r2.baseline(UNTRAINED).value < 0.65
    assert distance.ends[1] < 0.05 < 0.15 < distance.baseline(UNTRAINED).value
    _, last, before = np.abs(report.drawn_readout - report.drawn_belief).mean(axis=(1, 2, 3))
    assert last < 0.03 and before > 0.1
    at_three = clusters.cluster_counts.index("3")
    assert clusters.rand_index.ends[0][0, -1, at_three] > 0.6, "best guesses can be told apart"
    assert clusters.silhouette.value[0, -1, at_three] < 0.4, "and yet the triangle is filled: no three clusters"
