"""Comparisons of models and of diagnoses, against a slow twin and against what must be refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bayesgeom
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.verdict import Reason
from bayesgeom.generalization.comparison import _paired
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.models.resolve import of_module
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.findings import Finding, sentence
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.tasks.bijection import Bijection
from tests.shape_checks import ARE_ON
from tests.weights import perturbed

TASK = Bijection(n_values=7, n_pairs=5)
SIZES = TransformerConfig(d_vocab=14, n_ctx=9, n_layers=2, n_heads=3, d_model=15, d_mlp=11)


def model(seed: int, noise: float = 0.0) -> Model:
    module = perturbed(SIZES.build(seed=seed), noise, seed=7)
    return of_module(module, name=f"seed{seed}", task=TASK)


def test_differences_are_those_of_each_sequence() -> None:
    models = [model(0), model(1, noise=0.1), model(2, noise=0.2)]
    report = bayesgeom.compare(models, n=37, seed=3)
    trials = list(TASK.stream(37, seed=derived_seed(3, Branch.TRIALS)))
    kl = [own.run(iter(trials)).behavior.kl_bits.astype(np.float64).mean(axis=1) for own in models]
    assert report.rows[0] == "KL(exact ‖ model)" and report.is_paired.all() and report.difference.value.shape == (6, 3)
    assert report.models == ("seed0", "seed1", "seed2") and report.pairs[1] == "seed2 − seed0"
    assert report.pair_of.tolist() == [[0, 1], [0, 2], [1, 2]]
    for pair, (a, b) in enumerate(report.pair_of):
        own = kl[b] - kl[a]
        assert report.difference.value[0, pair] == pytest.approx(own.mean(), rel=1e-12)
        if pair == 0:  # the other pairs have heavier tails
            low, high = (end[0, pair] for end in report.difference.ends)
            assert high - low == pytest.approx(2 * 1.96 * own.std(ddof=1) / 37**0.5, rel=0.35)
    first, second = report.value.value[:, report.pair_of.T].transpose(1, 0, 2)
    np.testing.assert_allclose(report.difference.value, second - first, atol=1e-12)


def test_the_share_closed_is_measured_from_the_uniform_predictor() -> None:
    own, worse = model(1, noise=0.1), model(1, noise=0.4)
    report = bayesgeom.compare([own, model(0), worse], n=19)
    (calibration,) = bayesgeom.diagnose(own, n=19, n_untrained=0, probes=["calibration"]).values()
    kl = calibration.estimate("kl_bits")
    expected = 1 - float(kl) / float(kl.baseline("uniform").value)
    assert report.share_closed[0, 0] == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(report.share_closed[:2, :2]).all() and np.isnan(report.share_closed[2:]).all()
    assert np.isnan(report.share_closed[0, 2]), "it has more than twice the KL of the uniform predictor"


def test_equal_accuracies_differ_by_0_and_not_by_rounding(rng: np.random.Generator) -> None:
    """Two models with as many hits had an accuracy difference of −4.337e−19."""
    seen = rng.integers(1, 19, size=(128, 6)) / 19
    others = seen[rng.permutation(128)]
    assert (others - seen).mean(axis=0).any(), "rounding is there"
    equal = _paired(seen, others, seed=0)
    assert not equal.value.any() and (equal.ends[0] < 0).all() and (equal.ends[1] > 0).all()
    near = _paired(seen, others + 1e-12, seed=0)
    assert near.value == pytest.approx([1e-12] * 6, rel=1e-3), "small is not rounding"


def diagnosed(own: Model, n: int = 41, **arguments: Any) -> Diagnosis:
    return bayesgeom.diagnose(own, n=n, **({"n_untrained": 0, "probes": ["calibration"]} | arguments))


def changed(diagnosis: Diagnosis, **fields: Any) -> Diagnosis:
    """The diagnosis with other fields of calibration."""
    report = replace(diagnosis[CalibrationReport], **fields)
    return replace(diagnosis, reports={**diagnosis.reports, "calibration": report})


def without_scores(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis as most committed readings hold it."""
    return changed(diagnosis, sequence_scores=diagnosis[CalibrationReport].sequence_scores[:0])


def test_diagnoses_are_paired_as_models_are(tmp_path: Path) -> None:
    both, folders = [model(0), model(1, noise=0.1)], [tmp_path / "a", tmp_path / "b"]
    for own, folder in zip(both, folders, strict=True):
        diagnosed(own, n=300, seed=3).save(folder)
    models, loaded = bayesgeom.compare(both, n=300, seed=3), bayesgeom.compare(folders)
    assert [f"calibration: {row}" for row in models.rows] == list(loaded.rows[:6])
    assert (loaded.units[:6], loaded.better[:6]) == (models.units, models.better)
    assert models.is_paired.all() and loaded.is_paired[:6].all()
    few, of_few = bayesgeom.compare(both, n=16), bayesgeom.compare([diagnosed(own, n=16) for own in both])
    for of_models, of_diagnoses in ((models, loaded), (few, of_few)):
        here, there = of_models.difference, of_diagnoses.difference[:6]
        for own, other in zip((here.value, *here.ends), (there.value, *there.ends), strict=True):
            # Without AVX-512, passes of other sizes round differently: 2e-9 of a value.
            np.testing.assert_allclose(other, own, rtol=1e-7, atol=1e-9)
        assert [there.reason_at((row, 0)) for row in range(6)] == [here.reason_at((row, 0)) for row in range(6)]
        np.testing.assert_allclose(of_diagnoses.value.value[:6], of_models.value.value, rtol=1e-6)
    np.testing.assert_allclose(loaded.share_closed[:2], models.share_closed[:2], atol=1e-6)
    same = bayesgeom.compare(both, n=300, seed=3, probes="calibration")
    assert same.rows == loaded.rows and np.array_equal(same.difference.value, loaded.difference.value)


def test_pairing_narrows_the_interval() -> None:
    """Two nearly equal models: what sequences share cancels, which the ends of two intervals cannot show."""
    made = [diagnosed(model(0, noise=noise)) for noise in (0.3, 0.301)]
    paired, apart = bayesgeom.compare(made), bayesgeom.compare([*map(without_scores, made)])
    assert paired.is_paired.any() and not apart.is_paired.any()
    rows = [own.rows.index("calibration: KL(exact ‖ model)") for own in (paired, apart)]
    ends = [[float(end[row, 0]) for end in own.difference.ends] for own, row in zip((paired, apart), rows, strict=True)]
    assert ends[0][1] - ends[0][0] < (ends[1][1] - ends[1][0]) / 3
    assert apart.difference.value[rows[1], 0] == pytest.approx(paired.difference.value[rows[0], 0], rel=1e-4)


def test_pairs_of_other_sequences_are_conservative() -> None:
    a, b, c = (diagnosed(model(seed)) for seed in (0, 1, 2))
    entropies = c[CalibrationReport].entropy_bits_by_position + 1e-4
    report = bayesgeom.compare([a, b, changed(c, entropy_bits_by_position=entropies)])
    assert report.is_paired[:5, 0].all() and not report.is_paired[:, 1:].any()
    row = report.rows.index("calibration: cross-entropy on the labels")
    assert np.isfinite(report.difference.value[row, 0]) and np.isnan(report.difference.value[row, 1:]).all()
    keys = bayesgeom.compare([diagnosed(model(seed), probes=["key_overlap"]) for seed in (0, 1)])
    assert not keys.is_paired.any() and not any(keys.better) and np.isnan(keys.share_closed).all()


def test_a_paired_row_has_the_paired_interval_or_none() -> None:
    """Models and their diagnoses alike: a row that is paired never has the interval of unpaired ends."""
    a, b = diagnosed(model(0)), diagnosed(model(0, noise=0.3))
    scores = b[CalibrationReport].sequence_scores.copy()
    scores[:, 4] = a[CalibrationReport].sequence_scores[:, 4]
    scores[:3, 4] -= 0.2
    few = bayesgeom.compare([a, changed(b, sequence_scores=scores)])
    assert few.is_paired[:6].all() and few.difference.reason_at((4, 0)) == Reason.FEW_DIFFER
    report = bayesgeom.compare([a, a])
    assert report.models == ("seed0 (A)", "seed0 (B)") and not np.nan_to_num(report.difference.value).any()
    for compared in (report, bayesgeom.compare([model(0), model(0)], n=41)):
        assert compared.is_paired[:6].all() and np.isnan(compared.difference.ends[0][:6]).all()
        assert {compared.difference.reason_at((row, 0)) for row in range(6)} == {Reason.CONSTANT}
    assert {line.verdict for line in report.headlines()} == {"undecided"}
    assert report.headlines()[0].no_interval == "constant" and "constant" in report.table()


def test_infinite_scores_have_no_interval() -> None:
    a, b = (diagnosed(model(seed)) for seed in (0, 1))
    scores = [own[CalibrationReport].sequence_scores.copy() for own in (a, b)]
    for own in scores:
        own[3, 4] = np.inf
    report = bayesgeom.compare([changed(own, sequence_scores=of) for own, of in zip((a, b), scores, strict=True)])
    row = report.rows.index("calibration: cross-entropy on the labels")
    assert np.isnan(report.difference.ends[0][row]).all()
    assert [report.value.reason_at((row, side)) for side in range(2)] == [Reason.MISSING] * 2


def test_lower_and_higher_are_better_where_they_are() -> None:
    report = bayesgeom.compare([model(0), model(1, noise=0.4)], n=31)
    low, high = report.difference.ends
    for row, way in enumerate(report.better):
        least, most = low[row, 0], high[row, 0]
        b_is_better = least > 0 if way == "higher" else most < 0
        a_is_better = most < 0 if way == "higher" else least > 0
        assert report.verdict(row, 0) == ("seed1" if b_is_better else "seed0" if a_is_better else "undecided")


@pytest.mark.parametrize(
    ("ends", "finding", "verdict"),
    [
        ((1e-5, 6e-5), Finding.THE_SAME, "the same"),
        ((-6e-5, 9e-5), Finding.THE_SAME, "the same"),
        ((1e-5, 0.3), Finding.HARDLY_CLOSEST, "seed0"),
        ((0.1, 0.3), Finding.CLOSEST, "seed0"),
        ((-0.1, 0.3), Finding.CLOSEST_UNDECIDED, "undecided"),
        ((np.nan, np.nan), Finding.CLOSEST_UNDECIDED, "undecided"),
    ],
)
def test_two_models_are_the_same_within_a_thousandth_of_the_gap(
    ends: tuple[float, float], finding: Finding, verdict: str
) -> None:
    report = bayesgeom.compare([model(0), model(1, noise=0.4)], n=31)
    assert report.margin[0] == pytest.approx(0.001 * report.value.baseline("uniform").value[0].min(), rel=1e-12)
    assert 1e-4 < report.margin[0] < 0.1 and np.isnan(report.margin[2:]).all()
    low, high = (np.array(end) for end in report.difference.ends)
    (low[0, 0], high[0, 0]), values = ends, report.value.value.copy()
    values[0] = 0.5, 0.5 + np.nanmax([0.0, *ends])
    changed = replace(
        report, difference=replace(report.difference, low=low, high=high), value=replace(report.value, value=values)
    )
    answer = changed.answer()
    assert answer is not None and (answer.finding, changed.verdict(0, 0)) == (finding, verdict)
    assert changed.headlines()[0].verdict == verdict and sentence(answer).endswith(".")
    if finding is Finding.THE_SAME:
        assert answer.values["alike"].keys() == {"seed0", "seed1"} and not answer.values["others"]


@pytest.mark.parametrize("given", ["transformer", ["transformer", "lstm"], []])
def test_the_comparison_by_training_is_in_the_study(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"two or more .* `python -m examples\.replication compare`"):
        bayesgeom.compare(given)


OF_ANOTHER_TYPE = () if ARE_ON else (Path("mess3-small"), 3)  # run-time checks of annotations refuse these first


@pytest.mark.parametrize("few", [[], ["mess3-small"], "mess3-small", *OF_ANOTHER_TYPE])
def test_fewer_than_two_are_refused(few: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"a list of two or more models or diagnoses, got"):
        bayesgeom.compare(few)


@pytest.mark.parametrize(
    ("change", "text"),
    [({"n": 23}, r"differ in n: A has 19, C has 23"), ({"seed": 1}, r"differ in seed: A has 0, C has 1")],
)
def test_diagnoses_of_other_sequences_are_refused(change: dict[str, int], text: str) -> None:
    own, other = (diagnosed(model(0), **({"n": 19, "seed": 0} | more)) for more in ({}, change))
    with pytest.raises(InvalidArgument, match=text):
        bayesgeom.compare([own, own, other])


def test_other_tasks_and_mixtures_are_refused() -> None:
    a, shorter = model(0), Bijection(n_values=7, n_pairs=4)
    with pytest.raises(InvalidArgument, match=r"differ in task: A has Bijection\(n_values=7, n_pairs=5"):
        bayesgeom.compare([a, of_module(SIZES.build(seed=1), task=shorter)], n=5)
    one, other = (bayesgeom.diagnose(a, task, n=5, n_untrained=0, probes=["calibration"]) for task in (TASK, shorter))
    with pytest.raises(InvalidArgument, match=r"differ in task"):
        bayesgeom.compare([one, other])
    padded = {**one.provenance, "task": {**one.provenance["task"], "n_pairs": 6}}
    with pytest.raises(InvalidArgument, match=r"differ in n_pairs of the task: A has 5, B has 6"):
        bayesgeom.compare([one, replace(one, provenance=padded)])
    with pytest.raises(InvalidArgument, match=r"none states its n, so the sequences are unknown"):
        bayesgeom.compare([replace(one, provenance={**one.provenance, "arguments": {}})] * 2)
    with pytest.raises(InvalidArgument, match=r"some of these are diagnoses and others models"):
        bayesgeom.compare([one, a])
    with pytest.raises(InvalidArgument, match=r"n, seed, probes cannot be passed with diagnoses"):
        bayesgeom.compare([one, one], n=3, seed=2, probes="calibration")
    with pytest.raises(InvalidArgument, match=r"at least 2 for an interval; got 1"):
        bayesgeom.compare([a, a], n=1)
