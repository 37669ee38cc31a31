"""Every function with `executor=` gives the report that it gives without, to the last digit."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pytest

import bayesgeom
from bayesgeom.ablations._tally import Tally
from bayesgeom.ablations.batteries import every_mlp
from bayesgeom.ablations.engine import METRICS, BatchScores
from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.run import Run
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.dynamics.run import CACHE, training_dynamics
from bayesgeom.executors import Batch, check_same, name_of
from bayesgeom.generalization.length import length_generalization
from bayesgeom.generalization.sweeps import sweep
from bayesgeom.measurements.ablation import ablate
from bayesgeom.measurements.base import Needs, Probe
from bayesgeom.measurements.value_manifold import ValueManifold
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.report.report import Report
from bayesgeom.report.storage import parts_of
from bayesgeom.tasks.hmm import HMM
from tests.dynamics.trainings import SIZES, STEPS, a_recipe, a_run
from tests.executors.stand_ins import AtOnce, Backward
from tests.tiny import tiny_checkpoint

RECIPE = a_recipe(steps=5, batch_size=4, warmup=1, snapshots=0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_checkpoint(folder / "tiny", RECIPE)
    return folder / "tiny"


def assert_same(one: Report, other: Report, tolerance: float = 0.0) -> None:
    """Fields, estimates and provenance agree."""
    assert type(one) is type(other)
    (scalars, arrays), (others, other_arrays) = parts_of(one), parts_of(other)
    assert_near(scalars, others, tolerance)
    assert arrays.keys() == other_arrays.keys()
    for name, values in arrays.items():
        np.testing.assert_allclose(values, other_arrays[name], rtol=0, atol=tolerance, err_msg=name)
    assert one.provenance == other.provenance


def assert_near(one: Any, other: Any, tolerance: float) -> None:
    if isinstance(one, Mapping):
        assert one.keys() == other.keys()
        for key in one:
            assert_near(one[key], other[key], tolerance)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_near(a, b, tolerance)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=0, abs=tolerance, nan_ok=True)
    else:
        assert one == other


def test_sweep(checkpoint: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"task": "bijection:n_values=5,n_pairs=4", "vary": "n_pairs", "values": (2, 3, 4), "n": 32}
    batch = Batch(executor=Backward(3), folder=tmp_path / "jobs")
    assert_same(sweep(**asked, executor=batch), sweep(**asked))
    assert_same(sweep(**asked, model=checkpoint, executor=batch_of(tmp_path)), sweep(**asked, model=checkpoint))


@pytest.mark.slow
def test_diagnose(checkpoint: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"n": 32, "n_untrained": 2, "probes": ("key_overlap", "calibration", "belief_readout")}
    alone = diagnose(checkpoint, **asked)
    sent = diagnose(checkpoint, **asked, executor=Batch(executor=Backward(2), folder=tmp_path))
    assert list(sent) == list(alone) == ["calibration", "key_overlap", "belief_readout"]
    for name, report in alone.items():
        assert_same(sent[name], report)
    assert (sent.skipped, sent.inapplicable) == (alone.skipped, alone.inapplicable)
    more = AtOnce()
    diagnose(checkpoint, **asked | {"n_untrained": 3}, executor=Batch(executor=more, folder=tmp_path))
    assert more.n == 1


def test_probes_are_sent_by_name(checkpoint: Path, tmp_path: Path) -> None:
    batch = Batch(executor=AtOnce(), folder=tmp_path)
    named = diagnose(checkpoint, n=16, n_untrained=1, probes="value_manifold:standardized", executor=batch)
    given = diagnose(checkpoint, n=16, n_untrained=1, probes=ValueManifold(standardized=True), executor=batch)
    assert_same(given["value_manifold"], named["value_manifold"])

    @final
    @dataclass(frozen=True, kw_only=True)
    class Own(Probe[Any]):
        name: ClassVar[str] = "own"
        needs: ClassVar[Needs] = Needs(sites=())

        def measure(self, run: Run, untrained: Any) -> Any: ...

        def controls(self) -> Any: ...

    with pytest.raises(InvalidArgument, match=r"executor= takes probes by their names, .*Own\(\)"):
        diagnose(checkpoint, n=16, n_untrained=1, probes=Own(), executor=batch)


@pytest.mark.slow
def test_training_dynamics(tmp_path: Path) -> None:
    seeds = [a_run(tmp_path / name, a_recipe(seed=seed)) for name, seed in (("one", 0), ("two", 7))]
    asked: dict[str, Any] = {"n": 16}
    batch = Batch(executor=(first := AtOnce()), folder=tmp_path / "jobs")
    sent = training_dynamics(*seeds, **asked, executor=batch)
    assert first.n == 2 * len(STEPS)
    for folder in seeds:
        shutil.rmtree(folder / CACHE)
    alone = training_dynamics(*seeds, **asked)
    assert list(sent) == list(alone)
    for name, report in alone.items():
        assert_same(sent[name], report)
    shutil.rmtree(seeds[0] / CACHE)
    again = Batch(executor=(more := AtOnce()), folder=tmp_path / "jobs")
    training_dynamics(*seeds, **asked, executor=again)
    assert more.n == 0


@pytest.mark.parametrize("mode", ["mean", "resample"])
def test_ablate(checkpoint: Path, tmp_path: Path, mode: str) -> None:
    asked: dict[str, Any] = {"battery": "heads", "mode": mode, "n": 3 * 128 + 1}  # the last joins the third block
    sent = ablate(checkpoint, **asked, executor=Batch(executor=(taker := Backward(3)), folder=tmp_path))
    assert_same(sent, ablate(checkpoint, **asked), tolerance=1e-12)
    assert taker.n == 3
    with pytest.raises(InvalidArgument, match=r"executor= requires a battery's name, .*; got a list of \d+ ablations"):
        ablate(checkpoint, battery=every_mlp(bayesgeom.load(checkpoint)), n=8, executor=AtOnce())


def test_parts_merge_in_any_order(rng: np.random.Generator) -> None:
    n, n_variants, n_positions = 5_000, 3, 2  # more sequences than units: two of each unit, and parts that share one
    scores = rng.normal(size=(1 + n_variants, len(METRICS), n, n_positions)) ** 3
    inert = rng.random((7, n_variants)) > 0.2
    cuts = np.linspace(0, n, 8).astype(int)
    whole, parts = Tally.empty(n, n_variants, n_positions), []
    for index, (start, stop) in enumerate(pairwise(cuts)):
        own = scores[:, :, start:stop]
        batch = BatchScores(baseline=own[0], variants=own[1:], inert=inert[index])
        whole = whole.plus(batch)
        parts.append(replace(Tally.empty(n, n_variants, n_positions), done=int(start)).plus(batch).part())
    assert any(cut % whole.per_unit for cut in cuts[1:-1])
    for order in (range(7), range(6, -1, -1), rng.permutation(7)):
        found = reduce(lambda tally, index: tally.joined(*parts[index]), order, Tally.empty(n, n_variants, n_positions))
        assert found.done == whole.done and np.array_equal(found.counts, whole.counts)
        assert np.array_equal(found.inert, whole.inert)
        for name in ("baseline", "sums", "profile"):
            one, other = vars(found)[name], vars(whole)[name]
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12 * np.abs(other).max(), err_msg=name)


def test_length(tmp_path: Path) -> None:
    recipe = a_recipe(
        task=HMM(n_states=2, n_symbols=3, length=6), sizes={**SIZES, "d_model": 18, "positions": "rotary"}
    )
    for name, seed in (("one", 0), ("two", 1)):
        tiny = recipe.model_config().build(seed=seed)
        save_checkpoint(tmp_path / name, tiny, tiny.config, recipe=recipe.to_dict(), step=1, card="tiny")
    models, asked = [tmp_path / "one", tmp_path / "two"], {"n": 16, "lengths": (9, 13)}
    batch = Batch(executor=Backward(2), folder=tmp_path / "jobs")
    assert_same(length_generalization(models, **asked, executor=batch), length_generalization(models, **asked))


def test_models_are_sent_by_name(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bayesgeom.load(checkpoint)
    with pytest.raises(InvalidArgument, match=r"needs a model that workers can load, got a HookedModel"):
        sweep("bijection:n_values=5,n_pairs=4", "n_pairs", (3, 4), model, executor=AtOnce())
    monkeypatch.chdir(checkpoint.parent)
    assert name_of("tiny") == name_of(Path("tiny")) == str(checkpoint)
    assert name_of("bijection-v20") == "bijection-v20"
    with pytest.raises(CheckpointFault, match=r"has weights [0-9a-f]{16} on this worker, and 00 where the job"):
        check_same(model, "00")


def batch_of(folder: Path) -> Batch:
    return Batch(executor=AtOnce(), folder=folder / "more jobs")
