"""Seeds: trained where missing, loaded where there, and mean and spread that follow from the rows."""

from pathlib import Path

import numpy as np
import pytest

from bayesgeom.core.errors import CheckpointFault, InvalidArgument, UnknownName
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.training import publish
from examples.replication.comparison.replication import CONTEXT_FREE, ReplicationReport
from examples.replication.comparison.run import replicate
from examples.replication.training.trained_models import TrainedModels
from tests.dynamics.trainings import a_recipe
from tests.pages import READINGS

RECIPE = a_recipe(steps=5, batch_size=4, warmup=1, snapshots=0)


def three(runs: Path) -> ReplicationReport:
    return replicate(RECIPE, seeds=3, runs=runs, n=16)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReplicationReport]:
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "N_SCORED", 16)
        return runs, three(runs)


def test_every_seed_is_trained_once(trained: tuple[Path, ReplicationReport]) -> None:
    runs, report = trained
    assert report.replicas == ("small", "small-seed1", "small-seed2") and len(set(report.weights_hashes)) == 3
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    again = replicate(RECIPE, seeds=3, runs=runs, n=16, train_missing=False)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before
    assert np.array_equal(again.kl_bits.value, report.kl_bits.value) and again.missing == ()


def test_mean_and_spread_are_over_seeds(trained: tuple[Path, ReplicationReport]) -> None:
    _, report = trained
    kl, mean = report.kl_bits.value, report.mean_kl_bits
    assert float(mean) == pytest.approx(kl.mean()) and mean.resampled == "trainings" and mean.n == 3
    assert float(report.spread_kl_bits) == pytest.approx(kl.std(ddof=1))
    assert tuple(map(float, mean.ends)) == pytest.approx(tuple(map(float, seed_interval(kl))))
    assert float(mean.baseline(CONTEXT_FREE).value) == pytest.approx(report.kl_bits.baseline(CONTEXT_FREE).value.mean())
    low, high = report.kl_bits.ends
    assert (low <= kl).all() and (kl <= high).all()
    assert report.steps == ("5",) and np.isfinite(report.curve_kl_bits).all()
    one = replicate(RECIPE, seeds=1, runs=trained[0], n=16)
    assert np.isnan(float(one.spread_kl_bits)) and np.isnan(one.mean_kl_bits.ends).all()


def test_it_is_saved_drawn_and_printed(trained: tuple[Path, ReplicationReport], tmp_path: Path) -> None:
    _, report = trained
    report.save(tmp_path / "out")
    loaded = ReplicationReport.load(tmp_path / "out")
    assert loaded.table() == report.table()
    names = {trace.name for trace in report.plot().data}
    assert set(report.replicas) <= names and "mean over seeds" in report.plot().data[-2].y
    assert report.table().splitlines()[-1].startswith("spread")


def test_what_is_not_there_is_named(trained: tuple[Path, ReplicationReport], tmp_path: Path) -> None:
    runs, _ = trained
    five = replicate(RECIPE, seeds=5, runs=runs, n=16, train_missing=False)
    assert five.missing == ("small-seed3", "small-seed4") and len(five.replicas) == 3
    with pytest.raises(UnknownName, match=r"no checkpoint named 'small' or 'small-seed1'"):
        replicate(RECIPE, seeds=2, runs=tmp_path, n=16, train_missing=False)
    with pytest.raises(UnknownName, match=r"no recipe named 'chess'"):
        replicate("chess")
    with pytest.raises(InvalidArgument, match=r"seeds, the number of trainings, must be an integer of at least 1"):
        replicate(RECIPE, seeds=0)
    with pytest.raises(CheckpointFault, match=r"made by a different recipe than the current small"):
        replicate(a_recipe(steps=5, batch_size=4, warmup=1, lr=0.5), seeds=1, runs=runs, n=16)


def test_a_seed_that_another_recipe_made_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    other = a_recipe(steps=5, batch_size=4, warmup=1, snapshots=0, lr=0.5).reseeded(2)
    TrainedModels(runs=tmp_path, train_missing=True).model(other)
    with pytest.raises(CheckpointFault, match=r"made by a different recipe than the current small-seed2"):
        three(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["small-seed2"]


@pytest.mark.parametrize(("recipe", "name"), [("hmm-variant-learned", "seeds-hmm"), ("sticky-small", "seeds-sticky")])
def test_committed_reports_are_of_five_seeds(recipe: str, name: str) -> None:
    found = ReplicationReport.load(READINGS / name)
    assert found.recipe == recipe and len(found.replicas) == 5 and not found.missing
    kl = found.kl_bits.value
    assert float(found.mean_kl_bits) == pytest.approx(kl.mean())
    assert tuple(map(float, found.mean_kl_bits.ends)) == pytest.approx(tuple(map(float, seed_interval(kl))))
