"""The reference case, Mess3: a small transformer holds the belief linearly, and an untrained one does not."""

from pathlib import Path

import numpy as np
import pytest

from bayesgeom.diagnosis.run import diagnose
from bayesgeom.models.resolve import as_model
from bayesgeom.probes.belief_readout import EMBEDDING, BeliefReadout, BeliefReadoutReport
from bayesgeom.report.estimate import UNTRAINED
from bayesgeom.tasks.process import Mess3
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


@pytest.mark.slow
def test_training_on_mess3_lays_out_the_simplex(tmp_path: Path) -> None:
    recipe = Recipe(
        name="mess3", task=TASK, sizes=SIZES, targets="exact", lr=2e-3, warmup=50, steps=300, batch_size=32, snapshots=0
    )
    module = train(recipe, tmp_path / "run", pace=Pace(quiet=True))
    report = diagnose(as_model(module), TASK, probes=[BeliefReadout()], n=192, n_untrained=3)["belief_readout"]
    assert isinstance(report, BeliefReadoutReport)
    r2, distance = report.r2[0, -1], report.total_variation[0, -1]
    assert r2.ends[0] > 0.95 and r2.baseline(UNTRAINED).value < 0.65
    assert distance.ends[1] < 0.05 < 0.15 < distance.baseline(UNTRAINED).value
    _, last, before = np.abs(report.drawn_readout - report.drawn_belief).mean(axis=(1, 2, 3))
    assert last < 0.03 and before > 0.1
    at_three = report.cluster_counts.index("3")
    assert report.rand_index.ends[0][0, -1, at_three] > 0.6, "best guesses can be told apart"
    assert report.silhouette.value[0, -1, at_three] < 0.4, "and yet the triangle is filled: no three clusters"
