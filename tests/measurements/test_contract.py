"""What every measurement keeps to, present and future, and probes above all: nothing is registered, all are found."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

import bayesgeom
from bayesgeom.core.run import Run
from bayesgeom.diagnosis.plan import BATTERY, AnyMeasurement, all_measurements, all_probes
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.measurements.base import Control, Probe
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.report.diagnosis import Diagnosis, left_out, report_kinds
from bayesgeom.report.estimate import UNTRAINED, Estimate
from bayesgeom.report.report import Report
from bayesgeom.report.storage import VIEWER, parts_of, quantities_of
from bayesgeom.report.tables import records_of
from bayesgeom.selftest.run import _verdicts
from bayesgeom.tasks.bijection import Bijection
from tests.weights import perturbed

NAMES = tuple(all_probes())
DOCS = Path(bayesgeom.__file__).parents[1] / "docs" / "probes"
TASK = Bijection(n_values=11, n_pairs=7, repeats=True)
SIZES = TransformerConfig(d_vocab=22, n_ctx=13, n_layers=2, n_heads=3, d_model=21, d_mlp=17)
every_probe = pytest.mark.parametrize("name", NAMES)
# The viewer's data are no answer, and a battery needs a network: tests/ablations/test_planted.py has its controls.
WITHOUT_CONTROLS = {VIEWER, BATTERY}
every_measurement = pytest.mark.parametrize("name", sorted(all_measurements().keys() - WITHOUT_CONTROLS))


def probe_of(name: str) -> Probe[Any]:
    return all_probes()[name]


@cache
def controls_of(name: str) -> tuple[Control[Any], ...]:
    return tuple(all_measurements()[name].controls())


@cache
def diagnosed(*names: str) -> Diagnosis:
    """The probes of these names, or every probe, on one small perturbed model and an untrained copy."""
    module = perturbed(Transformer(SIZES, seed=0), 0.2)
    return diagnose(HookedModel(module, name="tiny", task=TASK), n=29, n_untrained=1, probes=names or None)


@cache
def measured(name: str) -> tuple[Report, ...]:
    """The probe's report on each of its controls, then on a model, if the model has the sites."""
    probe = probe_of(name)
    untrained = [tuple(probe.measure(run) for run in control.untrained) for control in controls_of(name)]
    planted = [probe.measure(control.run, own) for control, own in zip(controls_of(name), untrained, strict=True)]
    return (*planted, *(report for key, report in diagnosed().items() if key == name))


@cache
def drawn(name: str) -> tuple[go.Figure, ...]:
    """The figures of `measured(name)`, which tests read and do not change."""
    return tuple(report.plot() for report in measured(name))


def fingerprint(run: Run) -> list[object]:
    """Every number that a probe could have written to."""
    tensors = [*run.recorded.values(), run.log_answers, run.trials.tokens, run.trials.predictive, run.trials.belief]
    tensors += [run.trials.scored, run.trials.labels, *run.trials.token_sets.values(), *run.trials.relations.values()]
    behaviors = [run.behavior, run.exact_behavior, *run.baseline_behaviors.values()]
    return [t.numpy().tobytes() for t in tensors] + [v.tobytes() for b in behaviors for v in vars(b).values()]


def assert_equal_reports(one: Report, other: Report) -> None:
    assert type(one) is type(other)
    np.testing.assert_equal(parts_of(one)[0], parts_of(other)[0])
    for field, values in parts_of(one)[1].items():
        assert parts_of(other)[1][field].dtype == values.dtype
        np.testing.assert_array_equal(parts_of(other)[1][field], values, err_msg=field)


def test_there_are_probes() -> None:
    assert "calibration" in NAMES and set(diagnosed()) | set(left_out(diagnosed())) >= set(NAMES)


@every_probe
def test_probe_and_report_share_their_name(name: str) -> None:
    kind = report_kinds()[name]
    assert probe_of(name).name == kind.name == name and name.isidentifier() and name == name.lower()
    assert all(type(report) is kind for report in measured(name))
    assert kind.title and kind.about.strip().endswith(".") and kind.__doc__


def faults(measurement: AnyMeasurement, controls: tuple[Control[Any], ...]) -> Iterator[str]:
    """What is wrong with the controls of a measurement: there are none, or one does not hold, or holds for anything."""
    if not controls or len({control.label for control in controls}) < len(controls):
        yield "no controls, or two of one label"
    reports = [control.report(measurement) for control in controls]
    for control, report in zip(controls, reports, strict=True):
        if not holds(control, report):
            yield f"{control.label}: does not hold"
        wrong = [other for other in reports if other is not report]
        if all(holds(control, each) for each in (*wrong, *(changed(report, by) for by in (1.0, math.nan)))):
            yield f"{control.label}: holds for wrong reports, too"


def holds(control: Control[Any], report: Report) -> bool:
    try:
        return bool(control.holds(report))
    except (ValueError, IndexError, KeyError, LookupError):  # other shapes: not this control's answer
        return False


def changed(report: Report, by: float) -> Report:
    """The report with a number added to every value of its estimates."""
    names = quantities_of(type(report))
    return replace(report, **{name: report.estimate(name).mapped(lambda own: np.asarray(own + by)) for name in names})


@every_measurement
def test_controls_hold_and_a_wrong_report_fails_them(name: str) -> None:
    assert list(faults(all_measurements()[name], controls_of(name))) == []
    assert len(controls_of(name)) >= (2 if name in all_probes() else 1)


@every_measurement
def test_the_selftest_prints_the_controls(name: str) -> None:
    printed = list(_verdicts(name, all_measurements()[name]))
    assert [(each.probe, each.control) for each in printed] == [(name, own.label) for own in controls_of(name)]
    assert all(each.passed for each in printed)


@pytest.mark.parametrize("name", sorted(WITHOUT_CONTROLS))
def test_what_has_no_controls_is_known(name: str) -> None:
    assert list(all_measurements()[name].controls()) == []


def test_a_measurement_without_controls_and_one_that_cannot_fail_are_found() -> None:
    lens, (control, *_) = all_measurements()["posterior_lens"], controls_of("posterior_lens")
    assert list(faults(lens, ())) == ["no controls, or two of one label"]
    assert list(faults(lens, (replace(control, holds=lambda _: True),))) == [
        f"{control.label}: holds for wrong reports, too"
    ]
    assert f"{control.label}: does not hold" in faults(lens, (replace(control, holds=lambda _: False),))


@every_probe
def test_controls_hold_only_the_declared_sites(name: str) -> None:
    needs = probe_of(name).needs
    for control in controls_of(name):
        for run in (control.run, *control.untrained):
            assert set(needs.sites) <= set(run.recorded) <= {*needs.sites, *needs.optional}, control.label


@every_probe
def test_measuring_changes_nothing_and_repeats_itself(name: str) -> None:
    probe, control = probe_of(name), controls_of(name)[0]
    before = fingerprint(control.run)
    untrained = [probe.measure(run) for run in control.untrained]
    assert_equal_reports(probe.measure(control.run, untrained), measured(name)[0])
    assert fingerprint(control.run) == before


@every_probe
def test_headlines_are_numbers_with_labels(name: str) -> None:
    for report in measured(name):
        lines = report.headlines()
        assert lines and len({line.label for line in lines}) == len(lines)
        for line in lines:
            assert isinstance(line.value, float) and (math.isfinite(line.value) or math.isnan(line.value)), line.label
            assert line.label and getattr(report, line.metric) is not None
            assert math.isnan(line.low) == math.isnan(line.high) and not line.low > line.high
            assert math.isnan(line.baseline) or line.baseline_name


def is_among(value: float, stored: float | np.ndarray) -> bool:
    return bool((np.isnan(stored) if math.isnan(value) else np.equal(stored, value)).any())


@every_probe
def test_headlines_say_what_is_stored(name: str) -> None:
    """A headline is an entry of an estimate or an array, and stands in the table."""
    for report in measured(name):
        records = records_of(report)
        for line in report.headlines():
            stored = getattr(report, line.metric)
            if isinstance(getattr(type(report), line.metric, None), property):  # computed from fields, in no table
                assert line.value == stored
                continue
            assert is_among(line.value, stored.value if isinstance(stored, Estimate) else stored), line
            assert is_among(line.value, np.array([r.value for r in records if r.metric == line.metric])), line


@every_probe
def test_the_first_headline_has_a_baseline(name: str) -> None:
    if name in diagnosed():
        first = diagnosed()[name].headlines()[0]
        assert math.isfinite(first.baseline) and first.baseline_name, f"{first.label} has no baseline"


@every_probe
def test_untrained_networks_are_a_baseline(name: str) -> None:
    """Two of them that are the network itself: the level is its value wherever it is known."""
    probe, run = probe_of(name), controls_of(name)[0].run
    alone = probe.measure(run)
    report, n_levels = probe.measure(run, [alone, alone]), 0
    for metric in quantities_of(type(report)):
        own, without = report.estimate(metric), alone.estimate(metric)
        assert UNTRAINED not in [level.name for level in without.baselines]
        for level in (level for level in own.baselines if level.name == UNTRAINED):
            np.testing.assert_allclose(level.value, np.where(np.isnan(level.value), np.nan, without.value), atol=1e-9)
            n_levels += 1
    assert n_levels, "no quantity has them"


def axes_used(figure: go.Figure) -> dict[str, Any]:
    """Layout objects that must carry a title, by name; a panel whose axes are switched off draws none."""
    used: dict[str, Any] = {}
    for trace in figure.data:
        if "scene" in trace:
            scene = trace.scene or "scene"
            used |= {f"{scene}.{axis}axis": figure.layout[scene][f"{axis}axis"] for axis in "xyz"}
        elif "xaxis" in trace:
            for axis, found in (("xaxis", trace.xaxis or "x"), ("yaxis", trace.yaxis or "y")):
                used[f"{axis}{found[1:]}"] = figure.layout[f"{axis}{found[1:]}"]
    return {key: axis for key, axis in used.items() if axis.visible is not False}


def drawn_text(figure: go.Figure) -> str:
    """Everything that names a baseline in a figure: traces, color-bar ticks, panel titles."""
    bars = [trace.colorbar.ticktext or () for trace in figure.data if "colorbar" in trace]
    notes = [note.text or "" for note in figure.layout.annotations]
    return " ".join(
        [*(trace.name or "" for trace in figure.data), *(t for ticks in bars for t in ticks), *notes]
    ).lower()


@every_probe
def test_the_figure_names_what_it_draws(name: str) -> None:
    for report, figure in zip(measured(name), drawn(name), strict=True):
        assert figure.layout.title.text and figure.data
        for key, axis in axes_used(figure).items():
            assert axis.title.text or axis.type == "category", f"{key} has no title, and its rows have no names"
        names = {own.name.lower() for name in quantities_of(type(report)) for own in report.estimate(name).baselines}
        if names:
            assert any(word in drawn_text(figure) for word in ("chance", *names)), "no baseline is drawn"


@every_probe
def test_the_figure_is_drawn_from_stored_numbers_alone(name: str, tmp_path: Path) -> None:
    report, figure = measured(name)[-1], drawn(name)[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(report), "plot", lambda _: figure)  # its page draws it once more
        report.save(tmp_path / name)
    restored = report_kinds()[name].load(tmp_path / name)
    assert_equal_reports(restored, report)
    assert json.loads(str(restored.plot().to_json())) == json.loads(str(figure.to_json()))
    assert str(restored.headlines()[0]) == str(report.headlines()[0])


@every_probe
def test_records_are_well_formed(name: str) -> None:
    for report in measured(name):
        records = records_of(report)
        assert len({(r.metric, *r.places.items()) for r in records}) == len(records) > 0
        for record in records:
            assert record.probe == name and record.n == report.n
            assert all(isinstance(v, float) for v in (record.value, record.low, record.high, record.baseline))
            assert all(i is None or isinstance(i, str) or i >= 0 for i in record.places.values())


@every_probe
def test_intervals_contain_their_estimates(name: str) -> None:
    for report in measured(name):
        for metric in quantities_of(type(report)):
            own, (low, high) = report.estimate(metric).value, report.estimate(metric).ends
            reach = 1e-12 + 1e-6 * np.abs(own)  # one pass in float32 for the value, another for the interval
            assert not ((own < low - reach) | (own > high + reach)).any(), metric


@every_probe
def test_every_probe_has_its_page(name: str) -> None:
    page = DOCS / f"{name}.md"
    assert page.is_file(), f"docs/probes/{name}.md is missing"
    assert len(page.read_text(encoding="utf-8").split()) > 50
