"""The tally: sums against numpy, whatever the tiles; on disk and back; as much memory for any n."""

from pathlib import Path

import numpy as np
import pytest

from bayesgeom.ablations import _tally as module
from bayesgeom.ablations._tally import Tally
from bayesgeom.ablations.engine import BatchScores
from bayesgeom.core.errors import OutputFault
from bayesgeom.report.storage import PROGRESS

VARIANTS, METRICS, POSITIONS = 5, 3, 7
JOB = {"weights": "abc", "n": 23}


def scores(n: int, rng: np.random.Generator) -> BatchScores:
    return BatchScores(
        baseline=rng.random((METRICS, n, POSITIONS)),
        variants=rng.random((VARIANTS, METRICS, n, POSITIONS)),
        inert=rng.random(VARIANTS) < 0.7,
    )


def tallied(batches: list[BatchScores]) -> Tally:
    n = sum(batch.baseline.shape[1] for batch in batches)
    tally = Tally.empty(n, VARIANTS, POSITIONS)
    for batch in batches:
        tally = tally.plus(batch)
    return tally


def assert_equal(one: Tally, other: Tally) -> None:
    for name, value in vars(one).items():
        np.testing.assert_array_equal(vars(other)[name], value, err_msg=name, strict=True)


@pytest.mark.parametrize(("max_units", "per_unit"), [(100, 1), (23, 1), (22, 2), (8, 3), (1, 23)])
def test_sums_are_those_of_all_sequences_together(
    max_units: int, per_unit: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNITS", max_units)
    batches = [scores(n, rng) for n in (11, 2, 3, 7)]
    tally = tallied(batches)
    baseline = np.concatenate([batch.baseline for batch in batches], axis=1)
    variants = np.concatenate([batch.variants for batch in batches], axis=2)
    assert (tally.per_unit, tally.done, len(tally.counts)) == (per_unit, 23, -(-23 // per_unit))
    assert len(tally.counts) <= max_units and tally.sums.shape == (VARIANTS, METRICS, len(tally.counts))
    for unit in range(len(tally.counts)):
        members = [i for i in range(23) if i // per_unit == unit]
        assert tally.counts[unit] == len(members)
        np.testing.assert_allclose(tally.baseline[:, unit], sum(baseline[:, i].mean(axis=-1) for i in members))
        np.testing.assert_allclose(tally.sums[:, :, unit], sum(variants[:, :, i].mean(axis=-1) for i in members))
    np.testing.assert_allclose(tally.profile[0], baseline.sum(axis=1))
    np.testing.assert_allclose(tally.profile[1:], variants.sum(axis=2))
    np.testing.assert_array_equal(tally.inert, np.all([batch.inert for batch in batches], axis=0))


def test_adding_leaves_the_former_tally_as_it_was(rng: np.random.Generator) -> None:
    first = Tally.empty(11, VARIANTS, POSITIONS).plus(scores(3, rng))
    kept = {name: np.copy(value) for name, value in vars(first).items()}
    first.plus(scores(5, rng))
    for name, value in kept.items():
        np.testing.assert_array_equal(vars(first)[name], value)


def test_progress_comes_back_as_it_was_and_goes_on_to_the_same_sums(tmp_path: Path, rng: np.random.Generator) -> None:
    batches = [scores(n, rng) for n in (11, 5, 7)]
    halfway = Tally.empty(23, VARIANTS, POSITIONS).plus(batches[0])
    halfway.save(tmp_path / "new", JOB)
    resumed = Tally.load(tmp_path / "new", JOB)
    assert resumed is not None
    assert_equal(resumed, halfway)
    assert_equal(resumed.plus(batches[1]).plus(batches[2]), tallied(batches))
    assert [path.name for path in (tmp_path / "new").iterdir()] == [PROGRESS]


def test_a_broken_file_is_one_clear_error(tmp_path: Path, rng: np.random.Generator) -> None:
    Tally.empty(23, VARIANTS, POSITIONS).save(tmp_path, JOB)
    file = tmp_path / PROGRESS
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(OutputFault, match=r"cannot be read .*delete it"):
        Tally.load(tmp_path, JOB)


@pytest.mark.parametrize(("n_variants", "units"), [(1, 64), (10, 64), (20, 50), (50, 20), (100, 13), (10_000, 13)])
def test_sums_fit_their_bytes_however_many_variants(
    n_variants: int, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer units for more variants, never fewer than `MIN_UNITS`, and never more than `MAX_UNITS`."""
    monkeypatch.setattr(module, "MAX_UNITS", 64)
    monkeypatch.setattr(module, "MIN_UNITS", 13)
    monkeypatch.setattr(module, "MAX_BYTES", 8 * METRICS * 1_000)
    tally = Tally.empty(64 * 50 * 20 * 13, n_variants, POSITIONS)
    assert tally.sums.shape == (n_variants, METRICS, units)
    assert tally.sums.nbytes <= module.MAX_BYTES or units == 13
