"""Saved reports of schema 2 lose no number when `docs/readings/convert.py` converts them.

`tests/results/schema2/` holds one committed report of each kind as it was saved before the conversion; `samples.py`
states which, and how the large ones are cut. Their numbers are also in today's committed readings, except in the
fields that `CHANGED` names with a reason.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bayesgeom.core.reading import encoded
from bayesgeom.probes.belief_report import BeliefReadoutReport
from bayesgeom.results.diagnosis import Diagnosis, load_report, report_kinds
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.report import Report
from bayesgeom.results.storage import JSON, estimate_parts, parts_of, read
from tests.pages import READINGS, reading_script
from tests.results.samples import ORIGINS, SAVED

KINDS = sorted(path.name for path in SAVED.iterdir())
INTERVALS = ("*_lo", "*_hi", "intervals[[]*")
# Readings with intervals by a newer rule: how the table of rules in docs/readings.md names them.
NEWER_RULE = {
    "ablation": "the ablations",
    "attention_entropy": "`claims`",
    "belief_readout": "`claims`",
    "erasure_onwards": "`interventions`",
    "intervention": "`interventions`",
    "key_overlap": "`claims`",
    "length": "`length-recall-recurrent`",
    "relabelling": "`relabeling`",
    "sweep": "`sweep`",
    "value_manifold": "`claims`",
}
# Kind: patterns of the fields with numbers that today's reading does not contain.
CHANGED = {
    **dict.fromkeys(NEWER_RULE, INTERVALS),
    "key_overlap": (*INTERVALS, "overlap_bias"),  # the jackknife's bias, by which the rule withholds intervals
    # Also other clusters, those of greedy seeds, and what is computed from them.
    "belief_readout": (*INTERVALS, "rand_index*", "token_rand_index*", "silhouette*"),
    # Also a fall: now measured in other trainings than those that choose its steps (`docs/readings/restate_falls.py`).
    "dynamics": ("key_overlap_lo", "key_overlap_hi", "fall", "fall_lo", "fall_hi", "fall_share"),
    # Restated: levels of the context-free predictor that is never worse than uniform, and shares closed from these.
    "comparison": ("kl_bits_null", "entropy_mae_bits_null", "accuracy_where_known_null", "share_closed*"),
    # Also counted as scored positions instead of tokens (`docs/readings/count_scored_positions.py`).
    "value_manifold": (*INTERVALS, "shown_position"),
    # Measured again with the decoder directions of the present fit.
    "joint_intervention": (*INTERVALS, "axis_correlation*", "increase_bits*", "beyond_random_bits"),
}
# What a new measurement may move. Shares of variance and KL in float64 move by the last digits. Keys come from float32
# products over 128 coordinates, with errors of about 2^-24 √128 = 7e-7 of their length. Centered keys of a head with
# mean |cos| 0.999 are 0.03 times as long, so their cosines move by 2e-5. Value manifolds
# rest on float32, too: shares moved by 1e-7 at most, participation ratios by 7e-6, signed rank correlations by 1e-5.
ROUNDING = {
    **dict.fromkeys(("key_overlap", "value_manifold"), 2e-5),
    **dict.fromkeys(("attention_entropy", "belief_readout", "intervention", "comparison"), 1e-15),
}
NEVER_COMMITTED = {"domain_separation", "monitor", "pass_thresholds", "write_strength"}  # in that form


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """`docs/readings/convert.py`, which finds its own modules through `sys.path`."""
    before = list(sys.path)
    yield reading_script("convert")
    sys.path[:] = before


def made_from(script: ModuleType, kind: str) -> tuple[Any, list[Report]]:
    """The old report of a sample, and the reports that it becomes."""
    reports, _ = script.old_reports(SAVED / kind)
    old = reports[kind]
    return old, [script.CONVERTERS[kind](old), *(of(old) for of in script.SPLIT.get(kind, ()))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_old_number_is_in_the_new_report(kind: str, script: ModuleType) -> None:
    old, new = made_from(script, kind)
    n_numbers = sum(1 for part in (old.scalars, old.arrays) for _ in script.numbers(part))
    assert n_numbers > 10 and all(isinstance(own, Report) for own in new)
    assert script.missing(kind, old, new) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_number_is_found(kind: str, script: ModuleType) -> None:
    old, new = made_from(script, kind)
    name = next(name for name in old.arrays if name not in script.DROPPED.get(kind, ()))
    other = type(old)(old.scalars, {**old.arrays, name: np.append(old.arrays[name].ravel(), 0.123456789)})
    assert script.missing(kind, other, new) == {name: [0.123456789]}


def test_there_is_a_sample_of_every_kind_that_is_small(script: ModuleType) -> None:
    assert set(KINDS) | NEVER_COMMITTED == {*script.CONVERTERS, *script.SPLIT} and not set(KINDS) & NEVER_COMMITTED
    assert set(ORIGINS) == set(KINDS) and CHANGED.keys() <= set(KINDS)
    assert max(path.stat().st_size for path in SAVED.glob("*/*")) < 60_000


def lost(script: ModuleType, kind: str, reading: Sequence[Report]) -> dict[str, list[float]]:
    """Old numbers of a sample that a reading does not contain, by field, up to the rounding of a new measurement."""
    reports, _ = script.old_reports(SAVED / kind)
    stored = np.array([x for report in reading for part in parts_of(report) for x in script.numbers(part)])
    found = script.missing(kind, reports[kind], reading)
    far = {
        name: [x for x in values if np.abs(stored - x).min() > ROUNDING.get(kind, 0.0)]
        for name, values in found.items()
    }
    return {name: values for name, values in far.items() if values}


@pytest.mark.parametrize("kind", KINDS)
def test_every_old_number_is_in_the_committed_reading(kind: str, script: ModuleType) -> None:
    reading = load_report(READINGS / ORIGINS[kind])
    reports = list(reading.values()) if isinstance(reading, Diagnosis) else [reading]
    found, patterns = lost(script, kind, reports), CHANGED.get(kind, ())
    assert not [name for name in found if not any(fnmatchcase(name, pattern) for pattern in patterns)]
    assert bool(found) == (kind in CHANGED), "remove the entry"


def test_changed_readings_are_named_with_the_reason() -> None:
    page = (READINGS.parent / "readings.md").read_text(encoding="utf-8")
    (rule,) = [line for line in page.splitlines() if line.startswith("| ") and "| current rule." in line]
    assert all(name in rule.split("|")[1] for name in NEWER_RULE.values())
    assert "joint removals now use the decoder directions of the present fit" in " ".join(page.split())
    curves = Diagnosis.load(READINGS / ORIGINS["dynamics"])["dynamics"].estimate("key_overlap")
    assert "bias is larger than the uncertainty" in curves.why_not and np.isnan(curves.ends[0]).any()
    clusters = Diagnosis.load(READINGS / ORIGINS["belief_readout"])["belief_readout"].estimate("silhouette")
    assert "its clusters are those of greedy seeds" in rule and np.isfinite(clusters.ends[0]).all()
    assert "places of its drawn points count scored positions" in rule
    (prefix,) = [line for line in page.splitlines() if line.startswith("| `mlp-prefix`")]
    assert "levels of its context-free predictor and its shares closed were restated" in prefix
    assert CHANGED.keys() == NEWER_RULE.keys() | {"comparison", "dynamics", "joint_intervention"}


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("attention_entropy", "consistency"),
        ("belief_readout", "r2"),
        ("key_overlap", "overlap"),
        ("value_manifold", "pc1_share"),
    ],
)
def test_a_number_that_left_a_committed_reading_is_found(kind: str, field: str, script: ModuleType) -> None:
    report = report_kinds()[kind].load(READINGS / ORIGINS[kind])
    own = report.estimate(field)
    without = replace(report, **{field: replace(own, value=np.full_like(own.value, np.nan))})  # type: ignore[arg-type]
    assert field not in lost(script, kind, [report]) and field in lost(script, kind, [without])


def test_the_entry_point_runs_every_script_that_converts() -> None:
    module = reading_script("convert_all")
    # These measure reports or networks again.
    measuring = {"smollm2.py", "measure_interventions.py", "recall_accuracy.py", "loss_curves.py"}
    scripts = {path.name for path in READINGS.glob("*.py")} - measuring - {"convert_all.py"}
    assert {name for name, *_ in module.STEPS} == scripts


def test_places_of_points_count_scored_positions() -> None:
    """Tokens 0, 2, 4 are scored in each sequence; one scored position is the first, whatever its token."""
    counted = reading_script("count_scored_positions").counted
    every_second = np.array([[0, 2, 4]] * 3)
    for shown in ([4.0, 0.0, 2.0, 4.0], [2.0, 0.0, 1.0, 2.0]):  # tokens; and positions, which stay
        np.testing.assert_array_equal(counted(np.array(shown), every_second), [2, 0, 1, 2])
    np.testing.assert_array_equal(counted(np.array([7.0, 3.0]), np.array([[3], [7]])), [0, 0])
    with pytest.raises(AssertionError, match="sequences differ"):
        counted(np.array([2.0]), np.array([[0, 1], [0, 2]]))
    with pytest.raises(AssertionError, match="no scored token"):
        counted(np.array([1.0, 4.0]), every_second)
    with pytest.raises(AssertionError, match="leave a scored position out"):
        counted(np.array([0.0, 1.0]), every_second)


def test_the_committed_value_manifolds_count_scored_positions() -> None:
    folders = [path.parent for path in READINGS.glob(f"**/{JSON}") if '"value_manifold": {' in path.read_text("utf-8")]
    assert len(folders) == 8
    convert = reading_script("count_scored_positions").convert
    changed = [folder.name for folder in folders if convert(folder)]
    assert not changed, f"run docs/readings/count_scored_positions.py: {changed}"


@pytest.fixture(scope="module")
def withholding() -> ModuleType:
    return reading_script("withhold_biased")


@pytest.mark.exhaustive
def test_no_committed_jackknife_interval_ends_at_its_estimate(withholding: ModuleType) -> None:
    reports = [read(path.parent)[0] for path in READINGS.glob(f"**/{JSON}")]
    changed = [withholding.converted(key, *own)[2] for parts in reports for key, own in parts.items()]
    assert len(changed) > 100 and not any(changed), "run docs/readings/withhold_biased.py"


def test_a_jackknife_interval_that_ends_at_its_estimate_is_withheld(withholding: ModuleType) -> None:
    """Exact overlaps keep their value at both ends; intervals that contain the estimate and other fields stay."""
    value = np.array([0.5, 0.5, 0.5, 0.5, np.nan])
    own = Estimate.of(value, ([0.5, 0.3, 0.4, 0.5, np.nan], [0.6, 0.5 + 1e-8, 0.6, 0.5 + 3e-8, np.nan]), n=31)
    scalars, arrays = estimate_parts("overlap", own)
    for name in ("overlap", "effective_memory_symbols"):
        new_scalars, new_arrays, changed = withholding.converted(
            "key_overlap", {name: scalars}, {key.replace("overlap", name): end for key, end in arrays.items()}
        )
        if name == "overlap":
            np.testing.assert_array_equal(new_arrays["overlap.low"], [np.nan, np.nan, 0.4, 0.5, np.nan])
            np.testing.assert_array_equal(new_arrays["overlap.high"], [np.nan, np.nan, 0.6, 0.5, np.nan])
            assert changed == 3 and "bias is larger than the uncertainty" in new_scalars[name]["why_not"]
            assert withholding.converted("key_overlap", new_scalars, new_arrays)[2] == 0, (
                "running it again does nothing"
            )
        else:
            assert changed == 0 and new_arrays[f"{name}.low"][0] == 0.5


@pytest.fixture(scope="module")
def kinks() -> ModuleType:
    return reading_script("withhold_kinks")


def test_overlaps_whose_cosines_may_be_noise_lose_their_interval(kinks: ModuleType) -> None:
    """Of 190 pairs: with SE 0.0002 b is 2 % of half the width, with SE 0.003 it is 29 %, and far from 0 none."""
    widths = 2 * kinks.HALF * np.array([0.0002, 0.003, 0.003])
    means, spreads = np.array([0.0, 0.0, 0.9]), np.array([0.4, 0.4, 0.02])
    ratio = kinks.kink_ratio(widths, 190.0, 1, means, spreads)
    by_hand = 190 * 0.003 / (0.4 * math.sqrt(2 * math.pi)) / 1.959964
    np.testing.assert_allclose(ratio, [by_hand / 15, by_hand, 0.0], atol=1e-12)
    assert ratio[0] < kinks.MOST < ratio[1]
    own = ({"key_overlap": {"why_not": ""}}, {"key_overlap.low": np.array([0.1]), "key_overlap.high": np.array([0.2])})
    assert kinks.without_ends(own, "key_overlap", np.array([True]), "noise") == 1
    assert np.isnan(own[1]["key_overlap.low"]).all() and own[0]["key_overlap"]["why_not"] == "noise"


def test_the_committed_overlaps_are_converted(kinks: ModuleType) -> None:
    for name in kinks.REPORTS:
        parts, extra = read(READINGS / name)
        is_dynamics = name in kinks.DYNAMICS
        own = parts["dynamics" if is_dynamics else "key_overlap"]
        changed = kinks.of_dynamics(own, extra["provenance"]) if is_dynamics else kinks.of_keys(own)
        assert changed == 0, f"run docs/readings/withhold_kinks.py: {name}"


@pytest.fixture(scope="module")
def windows() -> Iterator[ModuleType]:
    before = list(sys.path)
    yield reading_script("add_read_out_window")
    sys.path[:] = before


def test_the_committed_read_outs_have_the_widest_observer_among_their_baselines(windows: ModuleType) -> None:
    folders = [path.parent for path in READINGS.glob(f"**/{JSON}") if '"window_map_r2"' in path.read_text("utf-8")]
    assert len(folders) == 7
    for folder in folders:
        assert not windows.convert(folder), f"run docs/readings/add_read_out_window.py: {folder.name}"
        (report,) = [own for own in load_report(folder).reports.values() if isinstance(own, BeliefReadoutReport)]
        assert not report.windows or report.r2.baseline("belief after the last 10 symbols").low is not None


def test_a_read_out_gets_the_widest_observer_and_keeps_every_level(windows: ModuleType) -> None:
    """Reports before 25 November 2026 had the levels of one and of four symbols, without ends."""
    new = BeliefReadoutReport.load(READINGS / ORIGINS["belief_readout"])
    own, widest = new.r2, "belief after the last 10 symbols"
    kept = [
        replace(level, low=None, high=None) if level.name.startswith("belief after") else level
        for level in own.baselines
        if level.name != widest
    ]
    old = replace(new, r2=replace(own, baselines=tuple(kept)))
    assert old.r2.clears("higher").tolist() == [["yes", "yes", "yes"]]
    assert own.clears("higher").tolist() == [["no", "no", "undecided"]]
    again = windows.with_windows(old)
    assert encoded(parts_of(again)[0]) == encoded(parts_of(new)[0])
    for name, values in parts_of(new)[1].items():
        np.testing.assert_array_equal(parts_of(again)[1][name], values)
    moved = tuple(replace(level, value=level.value + (level.name == kept[3].name)) for level in kept)
    with pytest.raises(AssertionError, match="belief after the current symbol alone"):
        windows.with_windows(replace(old, r2=replace(own, baselines=moved)))
