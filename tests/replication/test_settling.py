"""What settles when, which first, and what falls again: on curves whose answer is known, and on a training."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayesgeom.core.errors import InvalidArgument, OutputFault
from bayesgeom.core.verdict import Reason
from bayesgeom.dynamics import measure as frame
from bayesgeom.dynamics.report import NEVER, DynamicsReport, ThresholdStep
from bayesgeom.dynamics.run import training_dynamics
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import codes_of
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.subspaces import jacobian
from examples.replication import measurements
from examples.replication.settling import (
    NO_FALL,
    SCALES,
    SettlingReport,
    decided_again,
    dissociation,
    fall,
    frame_moment,
    largest_fall,
    measuring,
    order_of,
    precision_by_share,
    precision_moment,
    reached,
    settled,
    with_settling,
)
from tests.dynamics.trainings import STEPS as WEIGHTS_AT
from tests.dynamics.trainings import a_recipe, a_run
from tests.pages import READINGS

STEPS = (0, 10, 20, 40, 80)


def test_moments_are_first_snapshots_and_the_ones_before() -> None:
    distance = np.array([1.0, 0.5, 0.1, 0.2, 0.0])
    assert frame_moment(STEPS, distance) == ThresholdStep(20.0, 10.0)
    assert precision_moment(STEPS, np.array([4.0, 3.0, 2.1, 2.0, 1.0])) == ThresholdStep(40.0, 20.0)
    assert precision_by_share(STEPS, np.array([11.0, 3.0, 2.1, 2.0, 1.0])) == ThresholdStep(40.0, 20.0)
    assert precision_by_share(STEPS, np.array([11.0, 2.0, 2.1, 2.0, 1.0])) == ThresholdStep(10.0, 1.0)


def test_what_never_changes_has_no_moment() -> None:
    flat = np.ones(5)
    assert all(math.isnan(of(STEPS, flat).step) for of in (precision_moment, precision_by_share))
    assert math.isnan(frame_moment(STEPS, np.zeros(5)).step) and math.isnan(
        frame_moment(STEPS, np.full(5, np.nan)).step
    )
    assert math.isnan(precision_by_share(STEPS, np.arange(5.0)).step)


def test_the_interval_holds_what_the_spacing_allows() -> None:
    later, earlier = [ThresholdStep(80.0, 40.0)] * 3, [ThresholdStep(20.0, 10.0)] * 3
    found = dissociation(later, earlier)
    assert found.per_run == pytest.approx(2.0) and (found.lo, found.hi) == (1.0, 3.0)
    assert found.verdict(first="the frame", second="precision") == "the frame is first, by a factor of 4"
    back = dissociation(earlier, later)
    assert back.verdict(first="the frame", second="precision") == "precision is first, by a factor of 4"


def test_the_interval_over_seeds_is_students() -> None:
    later = [ThresholdStep(step, step) for step in (16.0, 32.0, 128.0)]
    found = dissociation(later, [ThresholdStep(2.0, 2.0)] * 3)
    lo, hi = seed_interval(np.array([3.0, 4.0, 6.0]))
    assert (found.mean, found.lo, found.hi) == pytest.approx((13 / 3, float(lo), float(hi)))


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ([ThresholdStep(80.0, 40.0)] * 2, "2 trainings, and at least 3"),
        ([ThresholdStep(40.0, 20.0)] * 3, "the interval holds 0"),
        ([ThresholdStep(80.0, 40.0)] * 2 + [ThresholdStep(math.nan, math.nan)], "in 1 of 3 trainings"),
    ],
)
def test_what_cannot_be_decided_says_why(later: list[ThresholdStep], reason: str) -> None:
    found = dissociation(
        later, [ThresholdStep(20.0, 10.0) if len(later) == 2 else ThresholdStep(40.0, 20.0)] * len(later)
    )
    verdict = found.verdict(first="the frame", second="precision")
    assert verdict.startswith("cannot decide") and reason in verdict


def test_the_largest_fall_is_that_of_all_pairs(rng: np.random.Generator) -> None:
    for _ in range(20):
        curve = rng.normal(size=7)
        start, end = largest_fall(curve)
        assert start <= end
        assert curve[start] - curve[end] == max(curve[i] - curve[j] for i in range(7) for j in range(i, 7))


def noisy(curve: list[float], rng: np.random.Generator, *, runs: int, sd: float = 0.01) -> np.ndarray:
    """The curve in several trainings, with noise of this size at each step."""
    return np.asarray(np.array(curve) + sd * rng.normal(size=(runs, 5)))


def test_a_dip_is_there_and_a_rise_has_none(rng: np.random.Generator) -> None:
    dip = fall(noisy([0, 3, 5, 3, 6], rng, runs=5))
    assert (dip.start, dip.end, dip.verdict) == (2, 3, "there")
    assert dip.size == pytest.approx(2, abs=0.05) and dip.lo < 2 < dip.hi
    assert dip.share == pytest.approx(1 / 3, abs=0.01)
    rising = fall(noisy([0, 1, 2, 3, 4], rng, runs=5))
    assert (rising.size, rising.verdict) == (0, NO_FALL) and math.isnan(rising.lo)
    assert fall(noisy([5, 4, 3, 2, 1], rng, runs=5)).verdict == "no rise"
    small = fall(noisy([0, 3, 5, 4.9, 6], rng, runs=5))
    assert small.verdict == "not there" and small.lo > 0
    assert fall(noisy([0, 3, 5, 4.4, 6], rng, runs=5, sd=0.3)).verdict == "cannot decide"


def test_the_first_half_chooses_steps_and_the_others_measure() -> None:
    first, second = [0.0, 3.0, 5.0, 3.0, 6.0], [0.0, 4.0, 1.0, 5.0, 4.0]
    found = fall(np.array([first, first, second, [0.0, 4.0, 1.4, 5.0, 4.0], second]))
    assert (found.start, found.end) == (2, 3), "not 1 and 2, where the measured trainings fall most"
    own = np.array([1.0 - 5.0, 1.4 - 5.0, 1.0 - 5.0])
    assert (found.size, found.lo, found.hi) == pytest.approx((own.mean(), *map(float, seed_interval(own))))
    assert found.rise == np.array([first, first, second, [0.0, 4.0, 1.4, 5.0, 4.0], second]).mean(axis=0).max()
    np.testing.assert_array_equal(measuring(np.arange(3)), [1, 2])


def test_an_unmeasured_curve_has_no_verdict() -> None:
    assert fall(np.full((3, 5), np.nan)).verdict == "not measured"


@pytest.mark.parametrize("runs", [1, 2])
def test_too_few_trainings_give_a_fall_no_verdict(runs: int, rng: np.random.Generator) -> None:
    found = fall(noisy([0, 3, 5, 3, 6], rng, runs=runs))
    assert found.size == pytest.approx(2, abs=0.05) and math.isnan(found.lo) and math.isnan(found.hi)
    assert found.verdict == "cannot decide: fewer than 3 trainings"
    assert fall(noisy([0, 1, 2, 3, 4], rng, runs=runs)).verdict == "cannot decide: fewer than 3 trainings"


def test_noise_alone_is_no_fall(rng: np.random.Generator) -> None:
    """Each training falls somewhere, but not where the others do; the interval holds 0 in about 95 % of data sets."""
    curves = np.linspace(0, 0.1, 5) + rng.normal(size=(400, 6, 5))
    found = [fall(own) for own in curves]
    assert sum(own.verdict == "there" for own in found) <= 0.05 * len(found)
    held = [own.lo <= -0.025 * (own.end - own.start) <= own.hi for own in found if own.start < own.end]
    assert np.mean(held) == pytest.approx(0.95, abs=0.03)


def test_reached_is_the_first_time_and_settled_the_last() -> None:
    curve = np.array([1.0, 0.05, 0.5, 0.08, 0.0])
    assert reached(STEPS, curve <= 0.1) == ThresholdStep(10.0, 1.0)
    assert settled(STEPS, curve) == ThresholdStep(40.0, 20.0)
    assert settled(STEPS, np.array([1.0, 0.9, 0.8, 0.7, 0.0])) == ThresholdStep(80.0, 40.0)


def test_what_holds_from_the_start_or_never_has_no_moment() -> None:
    for holds in ([True] * 5, [False] * 5):
        assert repr(reached(STEPS, np.array(holds))) == repr(NEVER)
    assert repr(settled(STEPS, np.zeros(5))) == repr(NEVER)


SNAPSHOTS = (0, 10, 20, 40, 80, 160, 320)


def slow_moment(steps: tuple[int, ...], curve: list[float]) -> float:
    """From the end backwards, while a tenth or less is left."""
    whole = abs(curve[0] - curve[-1])
    found = math.nan
    for step, value in reversed(list(zip(steps, curve, strict=True))):
        if whole == 0 or abs(value - curve[-1]) > 0.1 * whole:
            break
        found = step
    return found


def test_a_moment_is_where_a_curve_settles_for_good(rng: np.random.Generator) -> None:
    for _ in range(50):
        curve = rng.normal(size=7) * np.array([9, 7, 5, 0.5, 0.5, 0.5, 0.1])
        found = settled(SNAPSHOTS, curve)
        assert found.step == pytest.approx(slow_moment(SNAPSHOTS, curve.tolist()), nan_ok=True)
    passing = settled(SNAPSHOTS, np.array([1.0, 0.0, 0.5, 0.05, 0.0, 0.0, 0.0]))
    assert (passing.step, passing.before) == (40.0, 20.0), "where it only passes by, it has not settled"
    assert math.isnan(settled(SNAPSHOTS, np.ones(7)).step) and math.isnan(settled(SNAPSHOTS, np.full(7, np.nan)).step)


def curves(kl: list[float], frame: list[float], n_runs: int = 3) -> dict[str, np.ndarray]:
    own = {"kl_bits": kl, "pattern_distance_bits": frame, "curve_share": frame}
    tiled = {name: np.tile(values, (n_runs, 1)) for name, values in own.items()}
    return tiled | {"key_overlap": np.repeat(tiled["curve_share"][..., None], 5, axis=2)}


EARLY, LATE = [1, 0.05, 0.01, 0, 0, 0, 0.0], [1, 0.99, 0.98, 0.97, 0.96, 0.95, 0.0]
EXPONENTIAL = [2.0 ** (-2 * k) for k in range(7)]


def test_an_order_on_all_scales_is_decided_and_one_that_changes_is_not() -> None:
    abrupt = [1.0, 1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3]
    assert order_of(SNAPSHOTS, curves(abrupt, EARLY)).verdict == "the frame is first on all scales and measures"
    assert (
        order_of(SNAPSHOTS, curves([1, *[1e-3] * 6], LATE)).verdict == "precision is first on all scales and measures"
    )
    between = order_of(SNAPSHOTS, curves(EXPONENTIAL, [1, 0.9, 0.8, 0.7, 0.05, 0, 0]))
    assert [int(step) for step in between.precision_steps[0]] == [20, 80, 320]
    assert between.verdict.startswith(
        "not decided: the order changes with the scale or the measure (the frame first in 3, "
    )
    tied = order_of(SNAPSHOTS, curves([1, 0.9, 0.8, 1e-9, 1e-9, 1e-9, 1e-9], [1, 0.9, 0.8, 0.05, 0, 0, 0]))
    assert tied.verdict.startswith("not decided: some pairs are open")


def test_few_trainings_or_measures_decide_nothing() -> None:
    abrupt = [1.0, 1.0, 1.0, 1.0, 1.0, 1e-3, 1e-3]
    assert "2 trainings, and at least 3" in order_of(SNAPSHOTS, curves(abrupt, EARLY, n_runs=2)).verdict
    without = curves(abrupt, EARLY) | {
        "pattern_distance_bits": np.full((3, 7), np.nan),
        "key_overlap": np.full((3, 7, 5), np.nan),
    }
    found = order_of(SNAPSHOTS, without)
    assert found.frame_measures == ("manifold curve fit",)
    assert found.verdict == "not decided: 1 frame measure, and at least 2 are needed"
    nothing = order_of(SNAPSHOTS, without | {"curve_share": np.full((3, 7), np.nan)})
    assert nothing.fields()["dissociation_by_scale"].value.shape == (3, 0) and nothing.fields()["order_by_scale"] == ()


def test_fields_agree_with_their_pairs() -> None:
    found = order_of(SNAPSHOTS, curves(EXPONENTIAL, EARLY))
    own = found.fields()
    assert own["precision_step_by_scale"].shape == (3, 3) == own["frame_step_by_measure"].shape
    found_mean = own["dissociation_by_scale"]
    assert found_mean.value == pytest.approx(np.array([[1] * 3, [3] * 3, [5] * 3]))
    assert found_mean.resampled == "trainings" and found_mean.n == 3
    assert [[pair.lo for pair in row] for row in found.pairs] == found_mean.low.tolist()
    assert len(own["order_by_scale"]) == 9 and own["order_by_scale"][8].startswith("the frame is first")
    assert tuple(SCALES) == ("KL", "√KL", "log KL")


# Reports that were saved before.


def test_the_shipped_trainings_reach_nine_tenths_at_290_3060_and_6000() -> None:
    found = Diagnosis.load(READINGS / "dynamics-bijection")["settling"]
    assert isinstance(found, SettlingReport)
    assert found.precision_step_by_scale.tolist() == [[290, 3060, 6000]] * 3
    at = found.frame_measures.index("attention patterns")
    assert found.frame_step_by_measure[:, at].tolist() == [3060, 3060, 4285]
    assert found.order.startswith("not decided: the order changes with the scale or the measure")


@pytest.mark.slow
def test_a_saved_report_is_timed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = Diagnosis.load(READINGS / "dynamics-sticky")
    known = saved["settling"]
    assert isinstance(known, SettlingReport)
    wrong = replace(known, order="by another rule", precision_step_by_scale=known.precision_step_by_scale + 1)
    replace(saved, reports={**saved.reports, "settling": wrong}).save(tmp_path / "old")
    measurements.settling(from_report=tmp_path / "old", out=tmp_path / "new")
    again = Diagnosis.load(tmp_path / "new")["settling"]
    assert isinstance(again, SettlingReport) and again.table() == known.table()
    with pytest.raises(OutputFault, match="holds no readable report"):
        decided_again(tmp_path)
    with pytest.raises(OutputFault, match="holds no report of `bayesgeom dynamics`; it holds replication"):
        decided_again(READINGS / "seeds-sticky")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    """A training in miniature."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "N_RANDOM", 2)
        patch.setattr(jacobian, "N_LOGITS", 5)
        return with_settling(training_dynamics(a_run(tmp_path_factory.mktemp("one") / "run"), n=24))


@pytest.fixture(scope="module")
def report(measured: Diagnosis) -> DynamicsReport:
    return measured[DynamicsReport]


@pytest.fixture(scope="module")
def settling(measured: Diagnosis) -> SettlingReport:
    return measured[SettlingReport]


def test_the_report_follows_the_curves(measured: Diagnosis, tmp_path: Path) -> None:
    assert list(measured) == ["dynamics", "settling", "manifold_film", "attention_maps", "inside"]
    assert measured["settling"].provenance == measured.provenance
    measured.save(tmp_path / "out")
    assert list(decided_again(tmp_path / "out")) == list(measured)


def test_what_settles_when_follows_from_the_curves(report: DynamicsReport, settling: SettlingReport) -> None:
    distance, kl = report.pattern_distance_bits.value[0], report.kl_bits.value[0]
    assert settling.frame_step[0] == WEIGHTS_AT[int(np.argmax(distance <= 0.1 * distance[0]))]
    stated = settling.precision_step[0, 0]
    assert np.isnan(stated) or stated == WEIGHTS_AT[int(np.argmax(kl <= 2 * kl[-1]))]
    assert "at least 3" in settling.verdicts[0] or "no moment" in settling.verdicts[0]
    answer = settling.answer()
    assert answer is not None and (answer.metric, answer.verdict) == ("dissociation", "not decided")
    assert settling.order.startswith("not decided")
    log2 = np.log2(settling.precision_step / settling.frame_step)
    np.testing.assert_allclose(settling.dissociation_by_run.value, log2)
    least, most = settling.dissociation_by_run.ends
    known = np.isfinite(log2)
    assert (least[known] <= log2[known]).all() and (log2[known] <= most[known]).all()


def test_the_settling_figure_has_a_row_for_every_pair_and_every_curve(settling: SettlingReport) -> None:
    """A row without a mark says why: "answer shift, layer 1" was blank, as if its value were missing."""
    traces = [trace for panel in settling.panels() for trace in panel.figure.data]
    is_known = np.isfinite(settling.fall_share)
    assert 0 < is_known.sum() < len(is_known)
    rows = zip(settling.curves, settling.fall_verdicts, is_known, strict=True)
    names = [name if known else f"{name} ({why})" for name, why, known in rows]
    falls = next(trace for trace in traces if list(trace.y or ()) == names)
    assert {why for why, known in zip(settling.fall_verdicts, is_known, strict=True) if not known} == {"no rise"}
    np.testing.assert_array_equal(falls.x, settling.fall_share)
    (low, high), rise = (
        settling.fall.ends,
        settling.fall.value / np.where(settling.fall_share, settling.fall_share, np.nan),
    )
    known = np.isfinite(low / rise)
    np.testing.assert_allclose((falls.x - falls.error_x.arrayminus)[known], (low / rise)[known], atol=1e-12)
    np.testing.assert_allclose((falls.x + falls.error_x.array)[known], (high / rise)[known], atol=1e-12)
    table = settling.table()
    assert table.splitlines()[-1] == f"frame or precision first: {settling.order}"
    assert all(f"{step:g}" in table for step in settling.frame_step)


@pytest.mark.slow
def test_seeds_are_put_together(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / str(by), a_recipe().reseeded(by), steps=(0, 30, 100)) for by in (1, 2, 3)]
    found = with_settling(training_dynamics(*runs, n=8))[SettlingReport]
    assert "at least 3" not in found.verdicts[0]
    assert (found.fall.resampled, found.fall.n) == ("trainings", 2), "the first training chooses the steps"


def test_a_model_without_attention_has_no_frame_step(tmp_path: Path) -> None:
    recipe = a_recipe(sizes={"architecture": "mlp", "n_layers": 2, "d_model": 22, "d_mlp": 13})
    found = with_settling(training_dynamics(a_run(tmp_path / "run", recipe, steps=(0, 100)), n=8))[SettlingReport]
    assert "no moment" in found.verdicts[0]
    assert np.isnan(found.fall.ends[0]).all() and (codes_of(found.fall) == Reason.SAME_TRAININGS).any()


def test_runs_and_a_report_are_not_both_given() -> None:
    for runs, saved in (((), None), (("run",), Path("report"))):
        with pytest.raises(InvalidArgument, match="not both and not neither"):
            measurements.settling(runs, from_report=saved)
