"""The ablation report: paired intervals, summaries against slow twins, files, and a figure that shows the baseline."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bayesgeom
from bayesgeom.ablations import Ablation, Component
from bayesgeom.ablations._tally import Tally
from bayesgeom.ablations.engine import BatchScores
from bayesgeom.ablations.report import N_LISTED, AblationReport, ablation_report, with_attribution
from bayesgeom.core.text import number_text
from bayesgeom.core.verdict import Reason, Verdict
from bayesgeom.report.answer import gate_text
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.stats.bootstrap import mean_interval, ratio_interval

N, POSITIONS, LAYERS, HEADS = 37, 7, 2, 3
HEAD_ABLATIONS = [Ablation((Component(layer, "head", head),)) for layer in range(LAYERS) for head in range(HEADS)]
OTHERS = [
    Ablation((Component(1, "mlp"),)),
    Ablation((Component(0, "head", 1), Component(1, "head", 2))),
    Ablation((Component(0, "block"),)),
]
BATTERY = [*HEAD_ABLATIONS, *OTHERS]
NO_CHANGE = (Baseline.of("baseline", "no effect", 0.0),)
INCREASES = [0.5, 0.01, 0.3, 0.2, 0.24, -0.02, 0.7, 0.9, 0.1]


def scores(rng: np.random.Generator, increases: Sequence[float] = INCREASES, noise: float = 0.05) -> BatchScores:
    baseline = rng.random((3, N, POSITIONS))
    shift = np.array(increases)[:, None, None, None] + noise * rng.normal(size=(len(increases), 3, N, POSITIONS))
    return BatchScores(baseline=baseline, variants=baseline + shift, inert=np.array([d == 0.01 for d in increases]))


def reported(
    batch: BatchScores,
    battery: Sequence[Ablation] = BATTERY,
    attribution: Sequence[float] | None = None,
    n: int = N,
) -> AblationReport:
    tally = Tally.empty(n, len(battery), POSITIONS).plus(batch)
    report = ablation_report(tally, battery, mode="mean", shape=(LAYERS, HEADS), seed=3, uniform_kl_bits=1.7)
    return report if attribution is None else with_attribution(report, np.array(attribution))


def by_hand(values: np.ndarray) -> tuple[float, float, float]:
    """Mean over sequences and its interval."""
    lo, hi = mean_interval(values, seed=3)
    return float(values.mean()), float(lo), float(hi)


def test_effects_and_intervals_are_of_paired_differences(rng: np.random.Generator) -> None:
    batch = scores(rng)
    report = reported(batch)
    for index in (0, 5, 8):
        for metric, own in enumerate(
            (report.kl_increase_bits, report.entropy_mae_increase_bits, report.accuracy_change)
        ):
            change = (batch.variants[index, metric] - batch.baseline[metric]).mean(axis=-1)
            found = [float(own[index]), *map(float, own[index].ends)]
            np.testing.assert_allclose(found, by_hand(change), atol=1e-12, err_msg=str(metric))
            assert own.baseline("no effect").value[index] == 0.0
    low, high = report.kl_increase_bits.ends
    assert (low < report.kl_increase_bits.value).all() and (report.kl_increase_bits.value < high).all()
    assert report.n == report.kl_increase_bits.n == N and report.kl_ratio.baseline("no effect").value[0] == 1.0


def test_an_effect_clears_its_baseline_where_its_interval_excludes_zero(rng: np.random.Generator) -> None:
    report = reported(scores(rng))
    low, high = report.kl_increase_bits.ends
    expected = np.where(low > 0, "yes", np.where(high < 0, "no", "undecided"))
    np.testing.assert_array_equal(report.kl_increase_bits.clears("higher"), expected)
    assert report.headlines()[0].verdict == "yes" and {"yes", "no"} <= set(expected)


def test_the_ratio_is_resampled_with_its_baseline(rng: np.random.Generator) -> None:
    batch = scores(rng)
    report = reported(batch)
    with_it, without = batch.baseline[0].mean(axis=-1), batch.variants[4, 0].mean(axis=-1)
    assert report.kl_ratio.value[4] == pytest.approx(without.sum() / with_it.sum())
    ends = ratio_interval(without, with_it, seed=3, is_positive=True)
    np.testing.assert_allclose(report.kl_ratio[4].ends, tuple(ends))


def test_a_constant_shift_has_an_interval_of_no_width(rng: np.random.Generator) -> None:
    """What sequences have in common with and without the ablation does not blur its effect."""
    report = reported(scores(rng, noise=0.0))
    for ends in (
        report.kl_increase_bits.ends[0],
        report.kl_increase_bits.ends[1],
        report.accuracy_change.ends[0],
        report.entropy_mae_increase_bits.ends[1],
    ):
        np.testing.assert_allclose(ends, INCREASES, atol=1e-12)


def test_units_of_several_sequences_give_the_same_means(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = scores(rng)
    single = reported(batch)
    monkeypatch.setattr("bayesgeom.ablations._tally.MAX_UNITS", 7)  # units of 5, the last of 4
    grouped = reported(batch)
    for one, other in (
        (grouped.kl_increase_bits, single.kl_increase_bits),
        (grouped.kl_ratio, single.kl_ratio),
        (grouped.accuracy_change, single.accuracy_change),
        (grouped.unablated_kl_bits, single.unablated_kl_bits),
    ):
        np.testing.assert_allclose(one.value, other.value, atol=1e-12)
    np.testing.assert_allclose(grouped.kl_increase_bits_by_position, single.kl_increase_bits_by_position, atol=1e-12)
    constant = reported(scores(rng, noise=0.0))
    np.testing.assert_allclose(constant.kl_increase_bits.ends[0], INCREASES, atol=1e-12)


def test_summaries_equal_their_slow_twins(rng: np.random.Generator) -> None:
    batch = scores(rng)
    report = reported(batch)
    increase = [float((batch.variants[i, 0] - batch.baseline[0]).mean()) for i in range(len(BATTERY))]
    assert report.ranked() == sorted(range(len(BATTERY)), key=lambda i: -increase[i])
    assert report.headlines()[0].value == pytest.approx(max(increase))
    heads = sorted(increase[:6], reverse=True)
    assert float(report.top_to_second_ratio) == pytest.approx(heads[0] / heads[1])
    assert float(report.share_above_half_of_top) == sum(h > heads[0] / 2 for h in heads) / 6 == 2 / 6
    for layer in range(LAYERS):
        own = increase[HEADS * layer : HEADS * (layer + 1)]
        np.testing.assert_allclose(report.kl_increase_bits_by_head[layer], own)
        assert report.kl_increase_bits_by_layer[layer] == pytest.approx(sum(own))
    assert float(report.unablated_kl_bits) == pytest.approx(batch.baseline[0].mean())
    assert float(report.unablated_entropy_mae_bits) == pytest.approx(batch.baseline[1].mean())
    by_position = (batch.variants[:, 0] - batch.baseline[0]).mean(axis=1)
    np.testing.assert_allclose(report.kl_increase_bits_by_position, by_position)
    first, (low, high) = report.headlines()[0], report.kl_increase_bits[7].ends
    assert first.high == high and first.baseline == 0.0
    assert low - 0.6 * (first.value - low) < first.low < low, "chosen among nine: 1.28 times as far out, by 5/9 %"
    assert report.uniform_kl_bits == 1.7


@pytest.mark.parametrize(("own_bits", "is_better"), [(0.3, True), (1.69, False), (1.7, False), (2.5, False)])
def test_effects_in_a_model_no_better_than_uniform_explain_no_inference(
    rng: np.random.Generator, own_bits: float, *, is_better: bool
) -> None:
    """A model that fails its task was reported to beat every baseline, by 0.00025 bits."""
    report = reported(scores(rng))
    (level,) = report.unablated_kl_bits.baselines
    report = replace(report, unablated_kl_bits=Estimate.of(own_bits, n=N, baselines=(level,)))
    gate = "The predictions are not shown to be better than uniform: what follows explains no inference."
    assert gate_text(None, report) == ("" if is_better else gate)
    assert [line.metric for line in report.headlines()[:2]] == ["kl_increase_bits", "unablated_kl_bits"]
    opening = str(report).splitlines()[1]
    assert (opening == gate) == (not is_better) and (" components matter" in opening) == is_better
    assert (gate in Diagnosis.of(report).summary()) == (not is_better)
    text = report.to_html()
    answer = text.split('<section id="answer"')[1].split("</section>")[0]
    assert (gate in answer) == (not is_better)
    assert ('<section id="ablation" class="gray">' in text) == (not is_better)
    old = replace(report, unablated_kl_bits=Estimate.of(own_bits, n=N))
    assert gate_text(None, old) == "", "reports of earlier versions have no level to compare with"


def test_labels_say_what_each_row_is(rng: np.random.Generator) -> None:
    report = reported(scores(rng))
    assert report.ablations == ("L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2", "L1 mlp", "L0H1 + L1H2", "L0 block")
    assert report.kinds == ("head",) * 6 + ("mlp", "set", "block")
    assert list(report.layer) == [0, 0, 0, 1, 1, 1, 1, -1, 0] and list(report.head) == [0, 1, 2, 0, 1, 2, -1, -1, -1]
    assert list(report.inert) == [False, True, *[False] * 7]


def test_without_single_heads_their_summaries_are_unknown(rng: np.random.Generator) -> None:
    report = reported(scores(rng, [0.4, 0.1, 0.2]), OTHERS)
    assert np.isnan(report.kl_increase_bits_by_head).all() and np.isnan(report.kl_increase_bits_by_layer).all()
    assert math.isnan(float(report.top_to_second_ratio)) and math.isnan(float(report.share_above_half_of_top))
    assert report.headlines()[0].value == pytest.approx(0.4, abs=0.05)
    assert report.plot().data and report.table() and str(report.headlines()[0])


def test_headlines_list_the_largest_increases_and_what_has_no_effect(rng: np.random.Generator) -> None:
    """The terminal showed no ranking but in a table of its own, after which nothing fitted 25 lines."""
    report = reported(scores(rng, noise=0.001))
    listed = [line for line in report.headlines() if line.label.startswith("KL increase of ")]
    order = report.ranked()
    assert [line.label for line in listed] == [f"KL increase of {report.ablations[i]}" for i in order[1:]]
    (none,) = (line for line in listed if line.verdict == Verdict.NO_EFFECT)
    assert [line.value for line in listed if line is not none] == [
        report.kl_increase_bits.value[i] for i in order[1:] if not report.inert[i]
    ]
    assert (none.label, none.value, none.low, none.high) == ("KL increase of L0H1", 0.0, 0.0, 0.0)
    battery = [replace(HEAD_ABLATIONS[0], name=f"number {i}") for i in range(31)]
    many = reported(scores(rng, [0.1 * i for i in range(31)]), battery)
    assert len([line for line in many.headlines() if line.metric == "kl_increase_bits"]) <= N_LISTED + 1


def test_the_largest_increase_comes_first_with_an_interval_for_its_choice(rng: np.random.Generator) -> None:
    report = reported(scores(rng, noise=0.001))
    first = report.headlines()[0]
    assert first.value == report.kl_increase_bits.value.max() and "L0H1 + L1H2" in first.label
    assert first.chosen_of == len(BATTERY), "the interval allows for the choice"
    (only,) = [
        own for own in reported(scores(rng, [0.4]), OTHERS[:1]).headlines() if own.label.startswith("largest KL")
    ]
    assert (only.label, only.chosen_of) == ("largest KL increase: L1 mlp", 1), "of one ablation there is no choice"


@pytest.mark.parametrize(("largest", "label"), [(-1, "L0 block"), (2, "L0H2")])
def test_the_first_chart_holds_the_largest_effect(largest: int, label: str, rng: np.random.Generator) -> None:
    increases = [0.1] * len(BATTERY)
    increases[largest] = 0.9
    first, *others = reported(scores(rng, increases)).panels()
    (drawn,) = (trace for trace in first.figure.data[:1])
    assert not first.is_folded and (label in first.title or label in drawn.y)
    assert sum(panel.is_folded for panel in others) == len(others) - (largest == -1), "the map of heads is unfolded"


def test_the_largest_effect_has_its_own_interval_and_no_verdict_where_none_allows_for_its_choice(
    rng: np.random.Generator,
) -> None:
    battery = [replace(HEAD_ABLATIONS[0], name=f"number {i}") for i in range(11)]
    report = reported(scores(rng, [0.1 + 0.1 * i for i in range(11)]), battery)
    first, second = (own for own in report.headlines() if own.label.endswith(("number 10", "number 9")))
    assert (first.low, first.high) == tuple(float(end[10]) for end in report.kl_increase_bits.ends)
    assert (first.verdict, first.why, first.chosen_of) == ("", str(Reason.CHOICE_IGNORED), 1)
    assert "ignores" in str(report) and second.verdict == "yes"
    mattering = next(own for own in report.headlines() if own.metric == "n_mattering")
    assert mattering.value == report.n_mattering == 11 and not mattering.why, "it allows for the number of entries"
    alike = Estimate.of([0.1, 0.11, 0.12], ([-0.01, 0.0, 0.001], [0.2, 0.2, 0.25]), n=37, baselines=NO_CHANGE)
    report = reported(scores(rng, [0.1, 0.11, 0.12]), HEAD_ABLATIONS[:3])
    first = replace(report, kl_increase_bits=alike).headlines()[0]
    assert first.low < 0 < first.high and (first.verdict, first.chosen_of) == ("undecided", 3)


@pytest.mark.parametrize(("count", "n"), [(40, 160), (300, 60)])
def test_of_many_idle_parts_none_matters_with_intervals_for_all_of_them_at_once(
    count: int, n: int, rng: np.random.Generator
) -> None:
    """By intervals of their own, one of forty idle neurons matters on average."""
    battery = [replace(HEAD_ABLATIONS[0], name=f"number {i}") for i in range(count)]
    by_own, by_all = list[int](), list[int]()
    for shift in rng.normal(size=(8, count, 1, n, 1)):
        baseline = rng.random((3, n, POSITIONS))
        shift[0] += 4.0  # one part matters
        variants = baseline + np.broadcast_to(shift, (count, 3, n, POSITIONS))
        batch = BatchScores(baseline=baseline, variants=variants, inert=np.zeros(count, dtype=bool))
        report = reported(batch, battery, n=n)
        without_gap = replace(report, unablated_kl_bits=replace(report.unablated_kl_bits, baselines=()))
        by_own.append(int((report.kl_increase_bits.ends[0] > 0).sum()))
        by_all.append(without_gap.n_mattering)
        assert report.matters[0]
    assert np.mean(by_own) > 1.5 and np.mean(np.array(by_all) > 1) < 0.2


def test_a_component_matters_by_a_share_of_the_gap(rng: np.random.Generator) -> None:
    """All raise KL beyond doubt, five of them by so little that cells of a table print 0."""
    increases = [1e-5, 1e-5, 2e-5, 1e-5, 1e-5, 0.5, 0.004, 0.02, 0.9]
    batch = scores(rng, increases, noise=0.0)
    batch.baseline[0] *= 1e-3
    batch.variants[:, 0] = batch.baseline[0] + np.array(increases)[:, None, None]
    report = reported(batch)
    assert (report.kl_increase_bits.ends[0] > 0).all()
    np.testing.assert_array_equal(report.matters, np.array(increases) > 0.001 * 1.7)
    poor = replace(report, unablated_kl_bits=replace(report.unablated_kl_bits, value=np.array(0.4)))
    np.testing.assert_array_equal(poor.matters, np.array(increases) > 0.01 * 1.7)  # 1 % of the gap
    fair = replace(report, unablated_kl_bits=replace(report.unablated_kl_bits, value=np.array(0.003)))
    np.testing.assert_array_equal(fair.matters, np.array(increases) > 0.003)  # the model's own KL


def test_an_accuracy_that_stays_the_same_changes_by_0_and_not_by_rounding(rng: np.random.Generator) -> None:
    batch = scores(rng)
    batch.baseline[2] = rng.integers(0, 2, size=(N, POSITIONS))
    batch.variants[:, 2] = batch.baseline[2, rng.permutation(N)]  # as many hits, in other sequences
    report = reported(batch)
    assert (report.accuracy_change.value == 0).all() and (report.accuracy_change.ends[0] < 0).all()


@pytest.mark.parametrize(("flip", "correlation"), [(1, 1.0), (-1, -1.0)])
def test_rank_correlation_with_attribution(flip: int, correlation: float, rng: np.random.Generator) -> None:
    cubes = [flip * d**3 for d in INCREASES]
    report = reported(scores(rng, noise=0.0), attribution=cubes)
    assert float(report.attribution_rank_correlation) == pytest.approx(correlation)
    np.testing.assert_array_equal(report.attribution_bits, cubes)
    assert math.isnan(float(reported(scores(rng)).attribution_rank_correlation))
    lines = {line.metric: line.value for line in report.headlines()}
    assert lines["attribution_rank_correlation"] == float(report.attribution_rank_correlation)
    assert "attribution_rank_correlation" not in [line.metric for line in reported(scores(rng)).headlines()]


def test_the_table_is_ranked_and_names_what_has_no_effect(rng: np.random.Generator) -> None:
    report = reported(scores(rng))
    lines = report.table().splitlines()
    last = report.table(most=4).splitlines()[-1]
    assert len(lines) == 1 + len(BATTERY) and last.startswith("… and 5 more: to_pandas")
    assert [line.startswith(report.ablations[i]) for line, i in zip(lines[1:], report.ranked(), strict=True)] == [
        True
    ] * 9
    assert [line.endswith("no_effect") for line in lines].count(True) == 1
    assert number_text(report.kl_increase_bits.value[7]) in lines[1]


def test_a_long_battery_shows_its_top_alone(rng: np.random.Generator) -> None:
    battery = [replace(HEAD_ABLATIONS[0], name=f"number {i}") for i in range(31)]
    report = reported(scores(rng, [0.1 * i for i in range(31)]), battery)
    forest = next(trace for trace in report.plot().data if trace.type == "scatter" and trace.mode == "markers")
    assert next(iter(forest.y)) == "number 30" and len(forest.y) == 12 and len(report.table().splitlines()) == 22
    assert "31" in "".join(note.text for note in report.plot().layout.annotations if "Heads" in note.text)


def test_one_sequence_has_increases_without_intervals(rng: np.random.Generator, tmp_path: Path) -> None:
    batch = scores(rng)
    one = BatchScores(baseline=batch.baseline[:, :1], variants=batch.variants[:, :, :1], inert=batch.inert)
    report = reported(one, n=1)
    assert np.isfinite(report.kl_increase_bits.value).all() and np.isnan(report.kl_increase_bits.ends[0]).all()
    assert "…" not in report.table() and report.table().count(" – ") == len(BATTERY)
    assert report.plot().data and math.isnan(report.headlines()[0].low)
    report.save(tmp_path / "one")
    assert AblationReport.load(tmp_path / "one").table() == report.table()


def test_the_table_of_heads_is_a_map_of_layers_and_heads(tmp_path: Path) -> None:
    model = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=2, n_heads=3, d_model=6, d_mlp=8).build(seed=0)
    task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
    report = bayesgeom.ablate(model, task, battery="heads", n=13, out=tmp_path / "heads")
    table = report.to_pandas("kl_increase_bits").pivot(index="layer", columns="head", values="value")
    np.testing.assert_array_equal(table.to_numpy(), report.kl_increase_bits_by_head)
    assert set(report.to_pandas("kl_increase_bits")["kind"]) == {"head"}
    whole = bayesgeom.ablate(model, task, battery="layers", n=13).to_pandas()
    assert whole["head"].isna().all() and set(whole["layer"].dropna()) == {0, 1}
    assert bayesgeom.load_report(tmp_path / "heads") == report, "it is what was returned"
