"""The ablation report: paired intervals, summaries against slow twins, files, and a figure that shows the null."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayesgeom.ablations import Ablation, Component
from bayesgeom.ablations.engine import TileScores
from bayesgeom.ablations.report import AblationReport, Context, ablation_report
from bayesgeom.ablations.tally import Tally
from bayesgeom.core.errors import OutputFault
from bayesgeom.stats.bootstrap import mean_interval, ratio_interval

N, POSITIONS, LAYERS, HEADS = 29, 7, 2, 3
HEAD_ABLATIONS = [Ablation((Component(layer, "head", head),)) for layer in range(LAYERS) for head in range(HEADS)]
OTHERS = [
    Ablation((Component(1, "mlp"),)),
    Ablation((Component(0, "head", 1), Component(1, "head", 2))),
    Ablation((Component(0, "block"),)),
]
BATTERY = [*HEAD_ABLATIONS, *OTHERS]
DAMAGES = [0.5, 0.01, 0.3, 0.2, 0.24, -0.02, 0.7, 0.9, 0.1]


def scores(rng: np.random.Generator, damages: Sequence[float] = DAMAGES, noise: float = 0.05) -> TileScores:
    baseline = rng.random((3, N, POSITIONS))
    shift = np.array(damages)[:, None, None, None] + noise * rng.normal(size=(len(damages), 3, N, POSITIONS))
    return TileScores(baseline=baseline, variants=baseline + shift, inert=np.array([d == 0.01 for d in damages]))


def reported(
    tile: TileScores,
    battery: Sequence[Ablation] = BATTERY,
    attribution: Sequence[float] | None = None,
    pick: str = "L0H1 (hypotheses / activation, mean |cos| 0.123)",
    n: int = N,
) -> AblationReport:
    tally = Tally.empty(n, len(battery), POSITIONS).plus(tile)
    bits = np.full(len(battery), np.nan) if attribution is None else np.array(attribution)
    context = Context(
        battery=battery,
        mode="mean",
        n_layers=LAYERS,
        n_heads=HEADS,
        seed=3,
        attribution_bits=bits,
        key_overlap_pick=pick,
        uniform_kl_bits=1.7,
    )
    return ablation_report(tally, context)


def by_hand(values: np.ndarray) -> tuple[float, float, float]:
    """Mean over sequences and its interval."""
    lo, hi = mean_interval(values, seed=3)
    return float(values.mean()), float(lo), float(hi)


def test_effects_and_intervals_are_of_paired_differences(rng: np.random.Generator) -> None:
    tile = scores(rng)
    report = reported(tile)
    names = ("damage_bits", "entropy_mae_increase_bits", "accuracy_change")
    for index in (0, 5, 8):
        for metric, name in enumerate(names):
            change = (tile.variants[index, metric] - tile.baseline[metric]).mean(axis=-1)
            found = [vars(report)[name + end][index] for end in ("", "_lo", "_hi")]
            np.testing.assert_allclose(found, by_hand(change), atol=1e-12, err_msg=name)
    assert (report.damage_bits_lo < report.damage_bits).all() and (report.damage_bits < report.damage_bits_hi).all()
    assert report.n == N


def test_the_ratio_is_resampled_with_its_baseline(rng: np.random.Generator) -> None:
    tile = scores(rng)
    report = reported(tile)
    with_it, without = tile.baseline[0].mean(axis=-1), tile.variants[4, 0].mean(axis=-1)
    assert report.kl_ratio[4] == pytest.approx(without.sum() / with_it.sum())
    found = (report.kl_ratio_lo[4], report.kl_ratio_hi[4])
    np.testing.assert_allclose(found, tuple(ratio_interval(without, with_it, seed=3)))


def test_a_constant_shift_has_an_interval_of_no_width(rng: np.random.Generator) -> None:
    """What sequences have in common with and without the ablation does not blur its effect."""
    report = reported(scores(rng, noise=0.0))
    for ends in (
        report.damage_bits_lo,
        report.damage_bits_hi,
        report.accuracy_change_lo,
        report.entropy_mae_increase_bits_hi,
    ):
        np.testing.assert_allclose(ends, DAMAGES, atol=1e-12)


def test_units_of_several_sequences_give_the_same_means(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = scores(rng)
    single = reported(tile)
    monkeypatch.setattr("bayesgeom.ablations.tally.MAX_UNITS", 7)  # units of 5, the last of 4
    grouped = reported(tile)
    for name in ("damage_bits", "kl_ratio", "accuracy_change", "damage_bits_by_position", "baseline_kl_bits"):
        np.testing.assert_allclose(vars(grouped)[name], vars(single)[name], atol=1e-12, err_msg=name)
    constant = reported(scores(rng, noise=0.0))
    np.testing.assert_allclose(constant.damage_bits_lo, DAMAGES, atol=1e-12)


def test_summaries_equal_their_slow_twins(rng: np.random.Generator) -> None:
    tile = scores(rng)
    report = reported(tile)
    damage = [float((tile.variants[i, 0] - tile.baseline[0]).mean()) for i in range(len(BATTERY))]
    assert report.ranked() == sorted(range(len(BATTERY)), key=lambda i: -damage[i])
    assert report.top_damage_bits == pytest.approx(max(damage))
    heads = sorted(damage[:6], reverse=True)
    assert report.top_to_second_ratio == pytest.approx(heads[0] / heads[1])
    assert report.share_above_half_of_top == sum(h > heads[0] / 2 for h in heads) / 6 == 2 / 6
    for layer in range(LAYERS):
        own = damage[HEADS * layer : HEADS * (layer + 1)]
        np.testing.assert_allclose(report.damage_by_head[layer], own)
        assert report.damage_by_layer_sum[layer] == pytest.approx(sum(own))
    assert report.baseline_kl_bits == pytest.approx(tile.baseline[0].mean())
    assert report.baseline_entropy_mae_bits == pytest.approx(tile.baseline[1].mean())
    by_position = (tile.variants[:, 0] - tile.baseline[0]).mean(axis=1)
    np.testing.assert_allclose(report.damage_bits_by_position, by_position)
    assert report.intervals["top_damage_bits"] == (report.damage_bits_lo[7], report.damage_bits_hi[7])
    assert report.nulls["top_damage_bits"] == 0.0


def test_labels_say_what_each_row_is(rng: np.random.Generator) -> None:
    report = reported(scores(rng))
    assert report.ablations == ("L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2", "L1 mlp", "L0H1 + L1H2", "L0 block")
    assert report.kinds == ("head",) * 6 + ("mlp", "set", "block")
    assert list(report.layer) == [0, 0, 0, 1, 1, 1, 1, -1, 0] and list(report.head) == [0, 1, 2, 0, 1, 2, -1, -1, -1]
    assert list(report.inert) == [False, True, *[False] * 7]


def test_without_single_heads_their_summaries_are_unknown(rng: np.random.Generator) -> None:
    report = reported(scores(rng, [0.4, 0.1, 0.2]), OTHERS)
    assert np.isnan(report.damage_by_head).all() and np.isnan(report.damage_by_layer_sum).all()
    assert math.isnan(report.top_to_second_ratio) and math.isnan(report.share_above_half_of_top)
    assert report.top_damage_bits == pytest.approx(0.4, abs=0.05)
    assert report.figure().data and report.table() and str(report.headlines()[0])


def test_the_pick_of_key_overlap_stands_beside_that_of_ablation(rng: np.random.Generator) -> None:
    report = reported(scores(rng, noise=0.001))
    first, second = report.headlines()[:2]
    assert first.value == report.top_damage_bits and "L0H1 + L1H2" in first.label
    assert second.value == report.damage_bits[1] and (second.lo, second.hi) == (
        report.damage_bits_lo[1],
        report.damage_bits_hi[1],
    )
    assert (
        second.label
        == "least key overlap: L0H1 (hypotheses / activation, mean |cos| 0.123), rank 5 of 6 heads by KL increase"
    )


def test_a_pick_that_was_not_ablated_alone_has_no_damage(rng: np.random.Generator) -> None:
    report = reported(scores(rng, [0.4, 0.1, 0.2]), OTHERS)
    assert math.isnan(report.headlines()[1].value) and report.headlines()[1].label.endswith("not ablated alone")
    labels = [line.label for line in reported(scores(rng), pick="").headlines()]
    assert not any("key overlap" in label for label in labels)


@pytest.mark.parametrize(("flip", "correlation"), [(1, 1.0), (-1, -1.0)])
def test_rank_correlation_with_attribution(flip: int, correlation: float, rng: np.random.Generator) -> None:
    cubes = [flip * d**3 for d in DAMAGES]
    report = reported(scores(rng, noise=0.0), attribution=cubes)
    assert report.attribution_rank_correlation == pytest.approx(correlation)
    np.testing.assert_array_equal(report.attribution_bits, cubes)
    assert math.isnan(reported(scores(rng)).attribution_rank_correlation)
    last = report.headlines()[-1]
    assert (last.metric, last.value) == ("attribution_rank_correlation", report.attribution_rank_correlation)
    assert "attribution_rank_correlation" not in [line.metric for line in reported(scores(rng)).headlines()]


def test_a_saved_report_comes_back_equal(tmp_path: Path, rng: np.random.Generator) -> None:
    report = reported(scores(rng))
    report.save(tmp_path / "battery")
    loaded = AblationReport.load(tmp_path / "battery")
    for name, value in vars(report).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(vars(loaded)[name], value, err_msg=name, strict=True)
        else:
            assert vars(loaded)[name] == value or math.isnan(value), name
    assert loaded.table() == report.table()
    with pytest.raises(OutputFault, match="holds no readable report"):
        AblationReport.load(tmp_path)


def test_tidy_rows_carry_label_and_interval(rng: np.random.Generator) -> None:
    report = reported(scores(rng))
    rows = {(r.metric, r.variant): r for r in report.records() if r.position is None}
    for i, label in enumerate(report.ablations):
        row = rows["damage_bits", label]
        assert (row.value, row.low, row.high) == (
            report.damage_bits[i],
            report.damage_bits_lo[i],
            report.damage_bits_hi[i],
        )
    assert rows["top_damage_bits", None].baseline == 0.0


def test_the_table_is_ranked_and_names_what_has_no_effect(rng: np.random.Generator) -> None:
    report = reported(scores(rng))
    lines = report.table().splitlines()
    last = report.table(most=4).splitlines()[-1]
    assert len(lines) == 1 + len(BATTERY) and last.startswith("… and 5 with smaller KL increases")
    assert [line.startswith(report.ablations[i]) for line, i in zip(lines[1:], report.ranked(), strict=True)] == [
        True
    ] * 9
    assert [line.endswith("no_effect") for line in lines].count(True) == 1
    assert f"{report.damage_bits[7]:.5f}" in lines[1]


def test_the_figure_shows_heads_intervals_and_the_null(rng: np.random.Generator) -> None:
    report = reported(scores(rng))
    figure = report.figure()
    heat = next(trace for trace in figure.data if trace.type == "heatmap")
    np.testing.assert_array_equal(np.array(heat.z, dtype=float), report.damage_by_head)
    assert any("null" in text for text in heat.colorbar.ticktext)
    forests = [trace for trace in figure.data if trace.type == "scatter" and trace.mode == "markers"]
    assert [label for forest in forests for label in forest.y if label in report.ablations] == [
        report.ablations[i]
        for kinds in (("head",), ("attention", "mlp"), ("block",), ("set",))
        for i in report.ranked()
        if report.kinds[i] in kinds
    ]
    heads = [i for i in report.ranked() if report.kinds[i] == "head"]
    np.testing.assert_array_equal(np.array(forests[0].x, dtype=float), report.damage_bits[heads])
    np.testing.assert_allclose(forests[0].error_x.array, (report.damage_bits_hi - report.damage_bits)[heads])
    np.testing.assert_allclose(forests[0].error_x.arrayminus, (report.damage_bits - report.damage_bits_lo)[heads])
    null = next(trace for trace in figure.data if trace.type == "scatter" and trace.mode == "lines")
    assert list(null.x) == [0.0, 0.0]
    along = {trace.name: trace.y for trace in figure.data if trace.type == "scatter" and trace.mode == "lines+markers"}
    assert list(along) == [report.ablations[i] for i in heads[:5]]
    np.testing.assert_array_equal(along[report.ablations[heads[0]]], report.damage_bits_by_position[heads[0]])
    titles = [axis.title.text for axis in (figure.layout.xaxis, figure.layout.xaxis2, figure.layout.yaxis)]
    assert "KL increase (bits)" in titles[0] and "bits" in titles[1] and titles[2] == "layer"
    assert figure.layout.title.text


def test_a_long_battery_shows_its_top_alone(rng: np.random.Generator) -> None:
    battery = [replace(HEAD_ABLATIONS[0], name=f"number {i}") for i in range(31)]
    report = reported(scores(rng, [0.1 * i for i in range(31)]), battery)
    forest = next(trace for trace in report.figure().data if trace.type == "scatter" and trace.mode == "markers")
    assert next(iter(forest.y)) == "number 30" and len(forest.y) == 20 and len(report.table().splitlines()) == 22
    assert "31" in "".join(note.text for note in report.figure().layout.annotations if "Heads" in note.text)


def test_one_sequence_has_damages_without_intervals(rng: np.random.Generator, tmp_path: Path) -> None:
    tile = scores(rng)
    one = TileScores(baseline=tile.baseline[:, :1], variants=tile.variants[:, :, :1], inert=tile.inert)
    report = reported(one, n=1)
    assert np.isfinite(report.damage_bits).all() and np.isnan(report.damage_bits_lo).all()
    assert "…" not in report.table() and report.table().count(" – ") == len(BATTERY)
    assert report.figure().data and math.isnan(report.headlines()[0].lo)
    report.save(tmp_path / "one")
    assert AblationReport.load(tmp_path / "one").table() == report.table()
