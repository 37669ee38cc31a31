"""What every probe keeps to, present and future: nothing is registered, discovery finds them."""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

import bayesgeom
from bayesgeom.core.run import Run
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.probes.base import Control, Probe, mean_over_copies
from bayesgeom.probes.one_pass import all_probes, diagnose
from bayesgeom.results.diagnosis import Diagnosis, report_kinds
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.report import Report
from bayesgeom.tasks.bijection import Bijection

NAMES = tuple(all_probes())
DOCS = Path(bayesgeom.__file__).parents[1] / "docs" / "probes"
TASK = Bijection(n_values=11, n_pairs=7, repeats=True)
SIZES = TransformerConfig(d_vocab=22, n_ctx=13, n_layers=2, n_heads=3, d_model=21, d_mlp=17)
every_probe = pytest.mark.parametrize("name", NAMES)


def probe_of(name: str) -> Probe[Any]:
    return all_probes()[name]


@cache
def controls_of(name: str) -> tuple[Control[Any], ...]:
    return tuple(probe_of(name).controls())


@cache
def diagnosed() -> Diagnosis:
    """Every probe on one lively little model, with an untrained copy beside it."""
    module = Transformer(SIZES, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return diagnose(HookedModel(module, name="tiny", task=TASK), n=29, nulls=1)


@cache
def measured(name: str) -> tuple[Report, ...]:
    """The probe's report on each of its controls, then, where that model can serve it, on a model."""
    probe = probe_of(name)
    fresh = [tuple(probe.measure(run) for run in control.initialised) for control in controls_of(name)]
    planted = [probe.measure(control.run, f) for control, f in zip(controls_of(name), fresh, strict=True)]
    return (*planted, *(report for key, report in diagnosed().items() if key == name))


def fingerprint(run: Run) -> list[object]:
    """Every number that a probe could have written to."""
    tensors = [*run.recorded.values(), run.log_answers, run.trials.tokens, run.trials.predictive, run.trials.belief]
    tensors += [run.trials.scored, run.trials.realised, *run.trials.token_sets.values(), *run.trials.relations.values()]
    behaviours = [run.behaviour, run.exact_behaviour, *run.null_behaviours.values()]
    return [t.numpy().tobytes() for t in tensors] + [v.tobytes() for b in behaviours for v in vars(b).values()]


def assert_equal_reports(one: Report, other: Report) -> None:
    assert type(one) is type(other)
    np.testing.assert_equal(one.scalars(), other.scalars())
    for field, values in one.arrays().items():
        assert other.arrays()[field].dtype == values.dtype
        np.testing.assert_array_equal(other.arrays()[field], values, err_msg=field)


def test_there_are_probes() -> None:
    assert "calibration" in NAMES and set(diagnosed()) | set(diagnosed().left_out) >= set(NAMES)


@every_probe
def test_probe_and_report_share_their_name(name: str) -> None:
    kind = report_kinds()[name]
    assert probe_of(name).name == kind.name == name and name.isidentifier() and name == name.lower()
    assert all(type(report) is kind for report in measured(name))
    assert kind.title and kind.about.strip().endswith(".") and kind.__doc__


@every_probe
def test_controls_hold(name: str) -> None:
    controls = controls_of(name)
    assert len(controls) >= 2 and len({control.label for control in controls}) == len(controls)
    for control, report in zip(controls, measured(name), strict=False):
        assert bool(control.holds(report)), control.label


@every_probe
def test_controls_can_fail(name: str) -> None:
    """A control that holds for the report of every other control tells nothing apart."""
    controls, reports = controls_of(name), measured(name)[: len(controls_of(name))]

    def holds(control: Control[Any], report: Report) -> bool:
        try:
            return bool(control.holds(report))
        except (ValueError, IndexError, KeyError, LookupError):  # other shapes: not this control's answer
            return False

    assert any(not holds(control, report) for control in controls for report in reports)


@every_probe
def test_controls_hold_only_the_declared_sites(name: str) -> None:
    needs = probe_of(name).needs
    for control in controls_of(name):
        for run in (control.run, *control.initialised):
            assert set(needs.sites) <= set(run.recorded) <= {*needs.sites, *needs.optional}, control.label


@every_probe
def test_measuring_changes_nothing_and_repeats_itself(name: str) -> None:
    probe, control = probe_of(name), controls_of(name)[0]
    before = fingerprint(control.run)
    fresh = [probe.measure(run) for run in control.initialised]
    assert_equal_reports(probe.measure(control.run, fresh), measured(name)[0])
    assert fingerprint(control.run) == before


@every_probe
def test_headlines_are_numbers_with_labels(name: str) -> None:
    for report in measured(name):
        lines = report.headlines()
        assert lines and len({line.label for line in lines}) == len(lines)
        for line in lines:
            assert isinstance(line.value, float) and (math.isfinite(line.value) or math.isnan(line.value)), line.label
            assert line.label and line.metric in vars(report)
            assert math.isnan(line.lo) == math.isnan(line.hi) and not line.lo > line.hi
            assert math.isnan(line.null) or line.null_label


def is_among(value: float, stored: float | np.ndarray) -> bool:
    return bool((np.isnan(stored) if math.isnan(value) else np.equal(stored, value)).any())


@every_probe
def test_headlines_say_what_is_stored(name: str) -> None:
    """A headline is a scalar with its interval and null, or one entry of an array; either is in the table."""
    for report in measured(name):
        records = report.records()
        for line in report.headlines():
            stored = vars(report)[line.metric]
            assert is_among(line.value, stored.value if isinstance(stored, Estimate) else stored), line
            assert is_among(line.value, np.array([r.value for r in records if r.metric == line.metric])), line
            if isinstance(stored, float):
                np.testing.assert_equal(line.null, vars(report)["nulls"].get(line.metric, math.nan))
                ends = vars(report)["intervals"].get(line.metric, (math.nan, math.nan))
                np.testing.assert_equal((line.lo, line.hi), ends)


@every_probe
def test_the_first_number_stands_beside_its_null(name: str) -> None:
    if name in diagnosed():
        first = diagnosed()[name].headlines()[0]
        assert math.isfinite(first.null) and first.null_label, f"{first.label} has no null"


@every_probe
def test_nulls_and_intervals_belong_to_scalars(name: str) -> None:
    for report in measured(name):
        held = vars(report)
        for key in (*held.get("nulls", ()), *held.get("intervals", ())):
            assert isinstance(vars(report)[key], float), key
        assert report.n >= 1


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
    """Everything that names a null in a figure: traces, colour-bar ticks, panel titles."""
    bars = [trace.colorbar.ticktext or () for trace in figure.data if "colorbar" in trace]
    notes = [note.text or "" for note in figure.layout.annotations]
    return " ".join(
        [*(trace.name or "" for trace in figure.data), *(t for ticks in bars for t in ticks), *notes]
    ).lower()


@every_probe
def test_the_figure_names_what_it_draws(name: str) -> None:
    for report in measured(name):
        figure = report.figure()
        assert figure.layout.title.text and figure.data
        for key, axis in axes_used(figure).items():
            assert axis.title.text, f"{key} has no title"
        has_levels = any(math.isfinite(value) for value in vars(report).get("nulls", {}).values())
        names = {own.name.lower() for name in report.quantities() for own in vars(report)[name].baselines}
        if has_levels or names:
            assert any(word in drawn_text(figure) for word in ("null", "chance", *names)), "no baseline is drawn"


@every_probe
def test_the_figure_is_drawn_from_stored_numbers_alone(name: str, tmp_path: Path) -> None:
    report = measured(name)[-1]
    report.save(tmp_path / name)
    restored = report_kinds()[name].load(tmp_path / name)
    assert_equal_reports(restored, report)
    assert json.loads(str(restored.figure().to_json())) == json.loads(str(report.figure().to_json()))
    assert str(restored.headlines()[0]) == str(report.headlines()[0])


@every_probe
def test_records_are_well_formed(name: str) -> None:
    for report in measured(name):
        records = report.records()
        assert len({(r.metric, r.variant, r.layer, r.head, r.position) for r in records}) == len(records) > 0
        for record in records:
            assert record.probe == name and record.n == report.n
            assert all(isinstance(v, float) for v in (record.value, record.low, record.high, record.baseline))
            assert all(i is None or i >= 0 for i in (record.layer, record.head, record.position))


def companions(kind: type[Report], suffixes: Sequence[str] = ("_lo", "_hi", "_null")) -> list[tuple[str, str]]:
    return [(f.removesuffix(s), f) for f in kind.axes() for s in suffixes if f.endswith(s)]


@every_probe
def test_companions_share_the_axes_of_their_array(name: str) -> None:
    axes = report_kinds()[name].axes()
    for base, companion in companions(report_kinds()[name]):
        assert base in axes, f"{companion} accompanies nothing"
        assert [axis for axis in axes[base] if axis in axes[companion]] == list(axes[companion]), companion
    for report in measured(name):
        sizes: dict[str, set[int]] = {}
        for field, names in axes.items():
            assert len(names) == vars(report)[field].ndim, field
            for axis, size in zip(names, vars(report)[field].shape, strict=True):
                sizes.setdefault(axis, set()).add(size)
        assert all(len(found) == 1 for found in sizes.values()), sizes


@every_probe
def test_intervals_are_the_right_way_round(name: str) -> None:
    for report in measured(name):
        arrays = report.arrays()
        for base in {base for base, companion in companions(type(report)) if companion.endswith("_lo")}:
            lo, hi = arrays[f"{base}_lo"], arrays[f"{base}_hi"]
            assert not (lo > hi).any(), base


def test_no_copies_are_no_answer(rng: np.random.Generator) -> None:
    arrays = list(rng.normal(size=(3, 5, 7)))
    np.testing.assert_allclose(mean_over_copies(arrays, like=arrays[0]), (arrays[0] + arrays[1] + arrays[2]) / 3)
    nothing = mean_over_copies([], like=arrays[0])
    assert nothing.shape == (5, 7) and np.isnan(nothing).all()


@every_probe
def test_every_probe_has_its_page(name: str) -> None:
    page = DOCS / f"{name}.md"
    assert page.is_file(), f"docs/probes/{name}.md is missing"
    assert len(page.read_text(encoding="utf-8").split()) > 50
