"""Dynamics: paired numbers of every snapshot, what is kept between runs, and what cannot be put together."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import CheckpointFault, InvalidArgument, UnknownName
from bayesgeom.core.run import LOGIT_LENS, PATTERN, RESID_PRE, K
from bayesgeom.core.verdict import Verdict
from bayesgeom.dynamics import run as analysis
from bayesgeom.dynamics.measure import Bench, frame_ratios, key_frame
from bayesgeom.dynamics.report import RANDOM_PLANE, DynamicsReport, ManifoldFilmReport
from bayesgeom.dynamics.run import snapshot_job, training_dynamics
from bayesgeom.dynamics.trainings import _place, runs_of
from bayesgeom.executors import Batch
from bayesgeom.interventions.run import intervene
from bayesgeom.measurements.belief_readout import BeliefReadout
from bayesgeom.measurements.calibration import Calibration
from bayesgeom.measurements.key_overlap import KeyOverlap
from bayesgeom.measurements.posterior_lens import PosteriorLens
from bayesgeom.models.resolve import load
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.report.findings import rounded
from bayesgeom.report.sentences import opening_of
from bayesgeom.report.storage import parts_of, quantities_of
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.information import jensen_shannon_bits
from bayesgeom.subspaces.jacobian import jacobian_grams
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.formation import pack, snapshot_paths
from tests.dynamics.trainings import SIZES, STEPS, TASK, a_recipe, a_run

N = 24


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_run(tmp_path_factory.mktemp("one") / "run")


@pytest.fixture(scope="module")
def whole(run: Path) -> Diagnosis:
    return training_dynamics(run, n=N)


@pytest.fixture(scope="module")
def report(whole: Diagnosis) -> DynamicsReport:
    return curves_of(whole)


def curves_of(found: Diagnosis) -> DynamicsReport:
    report = found["dynamics"]
    assert isinstance(report, DynamicsReport)
    return report


def test_numbers_are_those_of_the_probes(run: Path, report: DynamicsReport) -> None:
    model = load(run / "snapshots" / "step-0000030")
    blocks = TASK.stream(N, seed=derived_seed(0, 0))
    one = model.run(blocks, record=(K,), n_recorded=N)
    scores, keys = Calibration().measure(one), KeyOverlap().measure(one)
    assert float(report.kl_bits[0, 2]) == pytest.approx(float(scores.kl_bits), rel=1e-6)
    assert float(report.entropy_mae_bits[0, 2]) == pytest.approx(float(scores.entropy_mae_bits), rel=1e-6)
    at = keys.token_sets.index("hypotheses"), keys.variants.index("activation")
    assert report.key_overlap.value[0, 2] == pytest.approx(keys.overlap.value[at].mean(axis=1), rel=1e-4)
    low, high = mean_interval(
        one.behavior.kl_bits.mean(axis=1, dtype=np.float64), seed=derived_seed(0, Branch.RESAMPLING)
    )
    assert tuple(map(float, report.kl_bits[0, 2].ends)) == pytest.approx((float(low), float(high)), rel=1e-6)
    assert low < report.kl_bits.value[0, 2] < high


def test_the_belief_is_read_as_the_probe_reads_it(run: Path, report: DynamicsReport) -> None:
    model = load(run / "snapshots" / "step-0000100")
    one = model.run(TASK.stream(N, seed=derived_seed(0, 0)), record=BeliefReadout.needs.sites, n_recorded=N)
    assert report.belief_r2.value[0, -1] == pytest.approx(BeliefReadout().measure(one).r2.value[0, -1], abs=1e-4)


def test_the_lens_of_every_snapshot_is_that_of_the_probe(run: Path, report: DynamicsReport) -> None:
    model = load(run / "snapshots" / "step-0000030")
    one = model.run(TASK.stream(N, seed=derived_seed(0, 0)), record=(LOGIT_LENS,), n_recorded=N)
    lens = PosteriorLens().measure(one)
    assert report.lens_kl_bits.value[0, 2] == pytest.approx(lens.kl_bits.value, rel=1e-6)
    assert float(report.arrival[0, 2]) == pytest.approx(float(lens.arrival), nan_ok=True)
    assert report.lens_kl_bits.value[0, :, -1] == pytest.approx(report.kl_bits.value[0], rel=1e-5)  # the model itself
    panel = next(own for own in report.panels() if own.title.startswith("Posterior by layer and step"))
    drawn = panel.figure.data[0]
    assert np.array_equal(drawn.z, report.lens_kl_bits.value[0].T[::-1]) and tuple(drawn.x) == report.steps


def test_patterns_are_compared_row_by_row_with_the_last_snapshot(run: Path, report: DynamicsReport) -> None:
    own, last = (
        load(run / "snapshots" / f"step-{step:07d}")
        .run(TASK.stream(N, seed=derived_seed(0, 0)), record=(PATTERN,), n_recorded=N)
        .at(PATTERN)
        .double()
        for step in (10, 100)
    )
    slow = [float(jensen_shannon_bits(p, q).mean()) for p, q in zip(own, last, strict=True)]
    assert report.pattern_distance_bits_by_layer[0, 1] == pytest.approx(slow, rel=1e-5)
    assert report.pattern_distance_bits.value[0, 1] == pytest.approx(np.mean(slow), rel=1e-5)
    assert float(report.pattern_distance_bits[0, -1]) == 0


def test_the_swap_is_that_of_intervene(run: Path, report: DynamicsReport) -> None:
    slow = intervene(run / "snapshots" / "step-0000100", n=N)
    level = slow.unedited_answer_shift_bits[0]
    shift, ceiling = report.answer_shift_bits.value[0, -1], report.answer_shift_bits.ceiling[0, -1]
    assert shift == pytest.approx(slow.answer_shift_bits.value[:, 0] + level, rel=1e-5)
    assert ceiling == pytest.approx(slow.answer_shift_bits.ceiling[:, 0] + level, rel=1e-5)


def test_the_frame_ratio_is_that_of_the_jacobian(run: Path) -> None:
    model = load(run / "snapshots" / "step-0000030")
    one = model.run(TASK.stream(6, seed=0), record=(K,), n_recorded=6)
    swap, subspaces = key_frame(model, TASK, one, n=4, seed=0)
    ratios = frame_ratios(model, swap, subspaces, one)
    grams = jacobian_grams(model, one.trials, RESID_PRE, (0, 1), seed=derived_seed(0, 8))
    basis = [torch.linalg.eigh(grams[layer]).eigenvectors[:, -5:] for layer in (0, 1)]
    shared = [float((b.T @ subspaces[0].basis).square().sum()) / 5 for b in basis]
    assert ratios.shape == (2,) and ratios == pytest.approx(np.array(shared) * 21 / 5, rel=1e-5)


def test_a_stopped_analysis_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, loaded = a_run(tmp_path / "run"), list[str]()
    load_one = analysis.model_at

    def stopping(path: Path, **options: str) -> object:
        loaded.append(path.name[-3:])
        if len(loaded) == 3:
            raise KeyboardInterrupt
        return load_one(path, **options)

    monkeypatch.setattr(analysis, "model_at", stopping)
    with pytest.raises(KeyboardInterrupt):
        training_dynamics(run, n=8)
    assert loaded == ["100", "030", "010"] and len(list((run / "dynamics").iterdir())) == 2
    loaded = ["stopped"] * 3
    found = training_dynamics(run, n=8)
    assert len(list((run / "dynamics").iterdir())) == len(STEPS)
    assert loaded[3:] == ["100", "010", "000"]  # the last first, since distances are to it
    loaded = ["stopped"] * 3
    again = training_dynamics(run, n=8)
    before = parts_of(curves_of(found))[1]
    assert not loaded[3:]
    assert all(np.array_equal(v, before[k], equal_nan=True) for k, v in parts_of(curves_of(again))[1].items())


def test_one_model_is_in_memory_at_a_time(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gc
    import weakref

    alive, most = weakref.WeakSet[object](), 0
    load_one = analysis.model_at

    def counted(path: Path, **options: str) -> object:
        nonlocal most
        gc.collect()
        model = load_one(path, **options)
        alive.add(model.module)
        most = max(most, len(alive))
        return model

    monkeypatch.setattr(analysis, "model_at", counted)
    training_dynamics(*sorted((run / "snapshots").iterdir())[1:], n=8)
    assert most == 1


def test_checkpoints_of_a_run_are_the_run(run: Path, report: DynamicsReport, tmp_path: Path) -> None:
    paths = sorted((run / "snapshots").iterdir(), reverse=True)
    listed = curves_of(training_dynamics(*paths, n=N, out=str(tmp_path)))
    assert listed.steps == report.steps and np.array_equal(listed.kl_bits.value, report.kl_bits.value)
    assert len(list((tmp_path / "parts").iterdir())) == len(STEPS)


@pytest.mark.slow
def test_seeds_are_put_together(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(by), a_recipe().reseeded(by), steps=(0, 30, 100)) for by in (1, 2, 3)]
    found = training_dynamics(*runs, n=8)
    report = curves_of(found)
    assert report.kl_bits.value.shape == (3, 3) and len(set(report.runs)) == 3
    mean = report.kl_bits_mean
    assert np.allclose(mean.value, report.kl_bits.value.mean(axis=0)) and mean.resampled == "trainings" and mean.n == 3
    low, high = mean.ends
    assert (low < mean.value).all() and (mean.value < high).all()


def test_trainings_of_one_seed_are_refused(run: Path, tmp_path: Path) -> None:
    """Half precision gives other weights, but no second training."""
    pack(run, tmp_path / "packed", keep=len(STEPS))
    with pytest.raises(InvalidArgument, match=rf"{run} and {tmp_path / 'packed'} are both of seed 0, so"):
        training_dynamics(run, tmp_path / "packed")
    stages = [a_run(tmp_path / str(seed), a_recipe(after=a_recipe(seed=seed)), draw=seed) for seed in (5, 7)]
    assert [own.name for own in runs_of(stages)] == ["small, seed 0 after 5", "small, seed 0 after 7"]


def test_further_probes_are_joined_along_the_steps(run: Path, tmp_path: Path) -> None:
    """Each as `diagnose` gives it; one that fails costs only itself; they are saved and loaded as other reports."""
    probes = ["calibration", "key_overlap", "domain_separation"]
    found = training_dynamics(run, n=8, probes=probes)
    last = bayesgeom.diagnose(load(run / "snapshots" / "step-0000100"), TASK, n=8, n_untrained=0, probes=probes[:2])
    assert "several kinds" in found.skipped["domain_separation"]
    for name in probes[:2]:
        joined, single = found[name], last[name]
        for field, quantity in quantities_of(type(single)).items():
            assert quantities_of(type(joined))[field].dims == ("training_step", *quantity.dims)
            whole, one = joined.estimate(field), single.estimate(field)
            for one_end, end in zip((one.value, *one.ends), (whole.value, *whole.ends), strict=True):
                np.testing.assert_allclose(end[-1], one_end, rtol=1e-6)
            assert [level.name for level in whole.baselines][:1] == [level.name for level in one.baselines][:1]
    found.save(tmp_path / "saved")
    assert Diagnosis.load(tmp_path / "saved")["key_overlap"] == found["key_overlap"]
    rows = found["calibration"].to_pandas("kl_bits")
    assert rows["training_step"].tolist() == [*map(int, found["dynamics"].steps)]  # type: ignore[attr-defined]
    assert found["calibration"].headlines()[0].value == float(last["calibration"].estimate("entropy_mae_bits"))
    curve, joined_kl = curves_of(found).kl_bits[0], found["calibration"].estimate("kl_bits")
    for one_end, end in zip((curve.value, *curve.ends), (joined_kl.value, *joined_kl.ends), strict=True):
        np.testing.assert_allclose(one_end, end, rtol=1e-5)  # passes that record other sites round otherwise


def test_jobs_compare_each_training_with_its_own_last_snapshot(run: Path, tmp_path: Path) -> None:
    """Also under one name: names are for messages."""
    other = a_run(tmp_path / "other", a_recipe(seed=7))
    bench = Bench(task=TASK, n=8, seed=0, n_recorded=8)
    jobs = [snapshot_job(replace(own, name="small"), len(STEPS) - 1, bench, "cpu") for own in runs_of([run, other])]
    with ThreadPoolExecutor(1) as pool:
        found = Batch(executor=pool, folder=tmp_path / "jobs").results(jobs)
    assert [float(own.estimates["pattern_distance_bits"]) for own in found] == [0, 0]


@pytest.mark.parametrize("architecture", ["lstm", pytest.param("mamba", marks=pytest.mark.exhaustive), "mlp"])
def test_an_architecture_gives_what_it_has(architecture: str, tmp_path: Path) -> None:
    sizes = {"architecture": architecture, "n_layers": 2, "d_model": 22} | (
        {"d_mlp": 13} if architecture == "mlp" else {}
    )
    whole = training_dynamics(a_run(tmp_path / "run", a_recipe(sizes=sizes), steps=(0, 100)), n=8)
    report = curves_of(whole)
    assert np.isfinite(report.kl_bits.value).all() and np.isfinite(report.belief_r2.value[0, 0])
    assert np.isfinite(report.answer_shift_bits.value).all() and np.isfinite(report.pc1_share.value).all()
    assert np.isnan(report.pattern_distance_bits.value).all() and np.isnan(report.key_overlap.value).all()
    assert "no attention heads" in whole.skipped["attention-pattern distance"] and "key overlap" in whole.skipped
    assert "attention_maps" not in whole


def test_every_snapshot_is_a_row_of_the_table(whole: Diagnosis) -> None:
    assert list(whole) == ["dynamics", "manifold_film", "attention_maps", "inside"]
    assert len(whole.to_html()) < 6e6
    rows = whole.to_pandas().query("metric == 'kl_bits'")
    assert rows["run"].tolist() == ["small"] * len(STEPS) and rows["step"].tolist() == [int(step) for step in STEPS]


def test_the_report_opens_with_what_formed(report: DynamicsReport) -> None:
    lines = report.headlines()
    assert [line.metric for line in lines] == ["kl_bits", "belief_r2", "answer_shift_bits", "frame_ratio"]
    assert [line.value for line in lines[1:]] == [
        report.belief_r2.value[0, -1],
        report.answer_shift_bits.value[0, -1, 0],
        report.frame_ratio.value[0, -1, 0],
    ]
    shift = lines[2]
    assert report.answer_shift_bits.ceiling[0, -1, 0] == pytest.approx(shift.value, rel=1e-5)
    assert shift.verdict == Verdict.BY_CONSTRUCTION


def test_a_single_snapshot_is_no_training(report: DynamicsReport) -> None:
    alone = {name: report.estimate(name)[:, :1] for name in quantities_of(DynamicsReport) if name != "kl_bits_mean"} | {
        "kl_bits_mean": report.kl_bits_mean[:1]
    }
    distances = report.pattern_distance_bits_by_layer[:, :1]
    one = replace(report, steps=("0",), pattern_distance_bits_by_layer=distances, **alone)
    assert opening_of(one)[0] == f"At step 0 KL is {rounded(float(report.kl_bits.value[0, 0]))} bits."
    assert opening_of(report)[0].startswith("KL goes from")


def test_the_plane_of_the_last_snapshot_has_no_verdict(rng: np.random.Generator) -> None:
    """Its axes are fitted to that snapshot: on them noise exceeds a random plane and other noise."""
    noise = rng.normal(size=(3, 11, 2, 13))
    flat = noise - noise.mean(axis=(1, 2), keepdims=True)
    axes = np.linalg.svd(flat[-1].reshape(-1, 13), full_matrices=False)[2][:2].T
    shares = [float(((own @ axes) ** 2).sum() / (own**2).sum()) for own in flat]
    assert shares[-1] > max(*shares[:-1], 2 / 13)
    share = Estimate.of(np.array(shares), (np.array(shares) - 0.01, np.array(shares) + 0.01), n=11)
    report = ManifoldFilmReport(
        run="small",
        steps=("0", "30", "300"),
        cloud=np.zeros((3, 7, 2)),
        entropy_bits=np.zeros(7),
        final_axes_share=replace(share, baselines=(Baseline.of("chance", RANDOM_PLANE, np.full(3, 2 / 13)),)),
        n=11,
    )
    lines = report.headlines()
    assert len(lines) == 3 and not any(own.verdict for own in lines)
    assert report.headline() == lines[0] and "step 300" in lines[0].label, "the card has the trained network"
    assert [own.baselines for own in lines] == [["0.1538 (random plane)"]] * 3


# What cannot be put together.


def test_what_is_no_training_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    one = a_run(tmp_path / "one", steps=(100,))
    with pytest.raises(InvalidArgument, match=r"empty contains no snapshots: pass a directory"):
        training_dynamics(tmp_path / "empty")
    with pytest.raises(UnknownName, match=r"no training named 'chess'. Packed trainings:"):
        training_dynamics("chess")
    with pytest.raises(InvalidArgument, match=r"has 1 snapshot.*at least 2"):
        training_dynamics(one)
    with pytest.raises(InvalidArgument, match=r"pass at least one training"):
        training_dynamics()
    with pytest.raises(InvalidArgument, match=r"at least 4, because half"):
        training_dynamics(run, n=3)
    with pytest.raises(InvalidArgument, match=r"single checkpoint, other arguments are runs"):
        training_dynamics(run, one / "snapshots" / "step-0000100")
    with pytest.raises(InvalidArgument, match=r"device 'foo' cannot be used here"):
        training_dynamics(run, device="foo")
    with pytest.raises(InvalidArgument, match=r"seed must be a non-negative integer.*, got -1"):
        training_dynamics(run, seed=-1)
    with pytest.raises(InvalidArgument, match=r"one argument per training; got a list"):
        _place([run])  # `dynamics` itself has its types checked in tests


def test_different_trainings_are_not_mixed(run: Path, tmp_path: Path) -> None:
    others = {
        "architectures": a_recipe(sizes={**SIZES, "d_mlp": 17, "norm": "layernorm"}),
        "tasks": a_recipe(task=Bijection(n_values=5, n_pairs=4, repeats=True)),
        "seed": a_recipe(lr=0.5),
    }
    for word, recipe in others.items():
        other = a_run(tmp_path / word, replace(recipe, seed=1_000))
        with pytest.raises(InvalidArgument, match=word):
            training_dynamics(run, other)
        with pytest.raises(InvalidArgument, match=word if word != "seed" else "different trainings"):
            training_dynamics(run / "snapshots" / "step-0000000", other / "snapshots" / "step-0000100")
    apart = r"architectures .*\(d_mlp: 13 there, 17 requested; norm: rmsnorm there, layernorm requested\)\.$"
    with pytest.raises(InvalidArgument, match=apart):  # and no word of the fields in which they agree
        training_dynamics(run, tmp_path / "architectures")
    lstm = a_run(tmp_path / "lstm", a_recipe(sizes={"architecture": "lstm", "n_layers": 2, "d_model": 22}))
    with pytest.raises(InvalidArgument, match=r"architecture: transformer there, lstm requested"):
        training_dynamics(run, lstm)
    with pytest.raises(InvalidArgument, match="are both of seed 0"):
        training_dynamics(run, run)
    with pytest.raises(InvalidArgument, match=r"compared at the same steps"):
        training_dynamics(run, a_run(tmp_path / "short", a_recipe(seed=1_000), steps=(0, 30)))
    with pytest.raises(InvalidArgument, match=r"of the same step"):
        training_dynamics(run / "snapshots" / "step-0000010", run / "snapshots" / "step-0000010")


def test_a_damaged_snapshot_is_named_and_an_unfinished_one_is_none(run: Path, tmp_path: Path) -> None:
    """What an interruption leaves has a dot before its name, whole or not."""
    copy = tmp_path / "copy"
    shutil.copytree(run / "snapshots", copy / "snapshots")
    shutil.copytree(copy / "snapshots" / "step-0000010", copy / "snapshots" / ".step-0000010.a1b2")
    assert [path.name for path in snapshot_paths(copy)] == [f"step-{step:07d}" for step in STEPS]
    for file in ("config.json", "model.safetensors"):
        (copy / "snapshots" / "step-0000030" / file).unlink()
        for read in (
            training_dynamics,
            bayesgeom.gradient_movement,
            lambda run: pack(run, tmp_path / "packed", keep=2),
        ):
            with pytest.raises(CheckpointFault, match=rf"step-0000030 lacks .*{file}.*delete the directory"):
                read(copy)
