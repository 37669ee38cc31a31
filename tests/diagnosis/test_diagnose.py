"""diagnose: what is measured, what is skipped and why, and that a seed decides every number."""

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, final

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument, MissingSite, NoCopy, TaskMismatch, UnknownName
from bayesgeom.core.run import N_RECORDED, RESID_MID, RESID_POST, RESID_PRE, STATE, Ask, K, Run, Z
from bayesgeom.core.torch_state import limited_threads, lock_of
from bayesgeom.diagnosis import passes
from bayesgeom.diagnosis import plan as planning
from bayesgeom.diagnosis.plan import all_measurements
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.measurements.base import Control, Further, Measurement, Needs, Probe, Subject
from bayesgeom.measurements.belief_readout import BeliefReadout
from bayesgeom.measurements.calibration import Calibration, CalibrationReport
from bayesgeom.measurements.key_overlap import KeyOverlapReport
from bayesgeom.measurements.value_manifold import ValueManifoldReport
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model, Withheld
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.report.diagnosis import left_out
from bayesgeom.report.estimate import UNTRAINED, Estimate, Quantity
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import parts_of
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.process import Mess3
from tests.shape_checks import ARE_ON
from tests.weights import perturbed

TASK = Bijection(n_values=11, n_pairs=5)  # 22 ids, 9 positions of which 5 are scored
SIZES = TransformerConfig(d_vocab=22, n_ctx=9, n_layers=2, n_heads=3, d_model=21, d_mlp=13)


@dataclass(frozen=True, kw_only=True, repr=False)
class SeenReport(Report):
    """What the probe was given."""

    name: ClassVar[str] = "seen"
    title: ClassVar[str] = "Seen"
    about: ClassVar[str] = "A probe for tests."
    sites: tuple[str, ...]
    fresh_sites: tuple[tuple[str, ...], ...]
    fresh_norm: tuple[float, ...]
    fresh_n: tuple[int, ...]
    norm: Annotated[Estimate, Quantity(label="norm")]
    n: int
    n_recorded: int

    def headlines(self) -> Sequence[Headline]:
        return (headline_of(self, "norm"),)

    def panels(self) -> Sequence[Panel]:
        raise AssertionError("nothing plots while measuring")


@dataclass(frozen=True)
class Seen(Probe[SeenReport]):
    """Says what was in the run; reads z, and the recurrent state where there is one."""

    name: ClassVar[str] = "seen"
    needs: ClassVar[Needs] = Needs(sites=(Z,), optional=(STATE, RESID_POST))

    def measure(self, run: Run, untrained: Sequence[SeenReport] = ()) -> SeenReport:
        return SeenReport(
            sites=tuple(site.name for site in run.recorded),
            fresh_sites=tuple(own.sites for own in untrained),
            fresh_norm=tuple(float(own.norm) for own in untrained),
            fresh_n=tuple(own.n for own in untrained),
            n=run.n,
            n_recorded=run.n_recorded,
            norm=Estimate.of(float(run.at(Z).norm())),
        )

    def controls(self) -> Iterator[Control[SeenReport]]:
        return iter(())


@dataclass(frozen=True)
class Recurrent(Probe[SeenReport]):
    """Needs what no transformer has."""

    name: ClassVar[str] = "recurrent"
    needs: ClassVar[Needs] = Needs(sites=(Z, STATE))

    def measure(self, run: Run, untrained: Sequence[SeenReport] = ()) -> SeenReport:
        raise AssertionError("its needs are not met")

    def controls(self) -> Iterator[Control[SeenReport]]:
        return iter(())


def lively(config: TransformerConfig = SIZES, name: str = "tiny", task: Bijection | None = TASK) -> HookedModel:
    module = perturbed(Transformer(config, seed=0), 0.3)
    return HookedModel(module, name=name, task=task)


def test_it_is_a_mapping_of_every_probe_or_its_excuse(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {**all_measurements(), "seen": Seen(), "recurrent": Recurrent()}
    monkeypatch.setattr(planning, "all_measurements", lambda: found)
    diagnosis = diagnose(lively(), n=7, n_untrained=1)
    known = {name for name, each in found.items() if each.is_default}
    assert set(diagnosis) | set(left_out(diagnosis)) == known and not set(diagnosis) & set(left_out(diagnosis))
    assert len(diagnosis) == len(list(diagnosis)) and next(iter(diagnosis)) == "calibration"
    assert {type(report).name for report in diagnosis.values()} == set(diagnosis)
    assert diagnosis.skipped["recurrent"].startswith(
        "probe 'recurrent' requires site 'state', which tiny does not provide. Available sites: "
    )
    assert all(diagnosis.skipped.values())


def test_without_a_renaming_the_reason_is_given() -> None:
    one = diagnose(lively(), n=1, n_untrained=0)
    assert "relabeling" not in one and "at least 2 for an interval" in one.skipped["relabeling"]
    for report in (own for own in one.values() if own.name != "inside"):
        assert report.headlines() and report.plot().layout.title.text
    task = Mess3(length=7)
    sizes = replace(SIZES, d_vocab=task.d_vocab, n_ctx=task.n_pos)
    found = diagnose(HookedModel(Transformer(sizes, seed=0), name="tiny", task=task), n=5, n_untrained=0)
    assert "cannot be renamed" in found.inapplicable["relabeling"] and "relabeling" not in found


def test_a_probe_accepts_an_option_in_its_name() -> None:
    diagnosis = diagnose(lively(), probes=["value_manifold:standardized"], n=5, n_untrained=0)
    assert "standardized" in diagnosis[ValueManifoldReport].conditions
    with pytest.raises(UnknownName, match=r"option of probe 'value_manifold' named 'flat'\. There are: standardized"):
        diagnose(lively(), probes=["value_manifold:flat"], n=5)


def test_numbers_at_initialization_are_left_out_where_no_copy_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: HookedModel, seed: int) -> HookedModel:
        raise NoCopy("it is partly on disk")

    monkeypatch.setattr(HookedModel, "untrained_copy", refuse)
    diagnosis = diagnose(lively(), probes=["key_overlap"], n=5, n_untrained=2)
    assert diagnosis.skipped == {"initialization": "it is partly on disk"}
    report = diagnosis["key_overlap"]
    assert isinstance(report, KeyOverlapReport)
    assert UNTRAINED not in [level.name for level in report.overlap.baselines]


def test_untrained_networks_without_the_models_sites_are_left_out_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of four networks one is like the model, one has more, one lacks `k`, and one lacks it in a layer."""
    built, seeds = HookedModel.untrained_copy, list[int]()

    def some(self: HookedModel, seed: int) -> HookedModel:
        copy, at = built(self, seed), len(seeds)
        seeds.append(seed)
        if at == 1:
            copy.withheld = Withheld({own: why for own, why in copy.withheld.items() if own != RESID_MID})
        if at >= 2:
            copy.withheld = Withheld({**copy.withheld, K: f"noise {at}"})
            copy.partial_sites = {K: (1,)} if at == 3 else {}
        return copy

    model = lively()
    model.withheld = Withheld({**model.withheld, RESID_MID: "not here"})
    monkeypatch.setattr(HookedModel, "untrained_copy", some)
    found = diagnose(model, probes=["key_overlap", "calibration"], n=5, n_untrained=4)
    left = "untrained network {0} was left out: it lacks k (noise {0})."
    assert found.skipped == {"initialization": f"{left.format(2)} {left.format(3)}"}
    monkeypatch.setattr(HookedModel, "untrained_copy", built)
    alike = diagnose(model, probes=["key_overlap", "calibration"], n=5, n_untrained=2)
    for name, report in alike.items():
        for key, values in parts_of(report)[1].items():
            if key != "gap_closed_by_copies":  # others take the places of those that were left out
                np.testing.assert_array_equal(parts_of(found[name])[1][key], values)
    assert found.answer is not None and found.answer.n_copies == 8


def test_missing_reports_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "all_measurements", lambda: {"seen": Seen(), "recurrent": Recurrent()})
    diagnosis = diagnose(lively(), n=5, n_untrained=0)
    with pytest.raises(
        UnknownName,
        match=r"probe 'recurrent' requires site 'state'.*\. There are: seen\.",
    ):
        diagnosis["recurrent"]
    with pytest.raises(UnknownName, match=r"no report in this diagnosis named 'sen'\. There are: "):
        diagnosis["sen"]
    assert "seen" in diagnosis and "recurrent" not in diagnosis and diagnosis.get("sen") is None


def test_a_named_probe_without_its_sites_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "all_measurements", lambda: {"seen": Seen(), "recurrent": Recurrent()})
    for asked in ("recurrent", Recurrent()):
        with pytest.raises(MissingSite, match=r"probe 'recurrent' requires site 'state', which tiny does not provide"):
            diagnose(lively(), probes=["seen", asked], n=5)


def test_probes_are_chosen_by_name_or_value() -> None:
    diagnosis = diagnose(lively(), probes=[Seen(), "calibration"], n=5, n_untrained=0)
    assert list(diagnosis) == ["calibration", "seen"] and diagnosis.skipped == {}
    assert diagnosis.provenance["arguments"]["probes"] == ("calibration", "seen")


@pytest.mark.skipif(ARE_ON, reason="checks of annotations would refuse first")
@pytest.mark.parametrize(
    "wrong", [torch.ones(3), {"kl": 1.0}, None, "fine", Estimate.of(0.5)], ids=lambda x: type(x).__name__
)
def test_a_probe_that_returns_no_report_costs_only_itself(wrong: object) -> None:
    @final
    class Wrong(Probe[SeenReport]):
        name: ClassVar[str] = "wrong"
        needs: ClassVar[Needs] = Needs(sites=(Z,))

        def measure(self, run: Run, untrained: Sequence[SeenReport] = ()) -> SeenReport:
            return wrong  # type: ignore[return-value]

        def controls(self) -> Iterator[Control[SeenReport]]:
            return iter(())

    for n_untrained in (0, 1):
        diagnosis = diagnose(lively(), probes=[Wrong(), "calibration", Seen()], n=5, n_untrained=n_untrained)
        assert list(diagnosis) == ["calibration", "seen"]
        reason = diagnosis.skipped["wrong"]
        assert type(wrong).__name__ in reason and "must return a Report" in reason and reason.count(". ") == 0
    with pytest.raises(InvalidArgument, match=r"'wrong' failed: its measure must return a Report"):
        diagnose(lively(), probes=Wrong(), n=5)


def test_a_probe_gets_its_sites_and_the_optional_ones_that_exist() -> None:
    report = diagnose(lively(), probes=[Seen()], n=5, n_untrained=2)["seen"]
    assert isinstance(report, SeenReport)
    assert set(report.sites) == {"z", "resid_post"}
    assert report.fresh_sites == (report.sites,) * 2
    assert len({float(report.norm), *report.fresh_norm}) == 3, "every copy has weights of its own"


@pytest.mark.parametrize("n", [7, N_RECORDED + 11])
def test_activations_are_recorded_of_a_bounded_number(n: int) -> None:
    report = diagnose(lively(), probes=[Seen()], n=n, n_untrained=1)["seen"]
    assert isinstance(report, SeenReport)
    assert (report.n, report.n_recorded) == (n, min(n, N_RECORDED)) and report.fresh_n[0] == min(n, N_RECORDED)


def test_activations_do_not_depend_on_n() -> None:
    short, long = (
        diagnose(lively(), probes=[Seen()], n=n, n_untrained=0)["seen"] for n in (N_RECORDED, N_RECORDED + 100)
    )
    assert float(short.norm) == pytest.approx(float(long.norm), rel=1e-6)  # type: ignore[attr-defined]


@pytest.mark.parametrize("n", [131, 5])
def test_calibration_is_that_of_a_plain_forward(n: int) -> None:
    model = lively()
    report = diagnose(model, probes=["calibration"], n=n, seed=7, n_untrained=0)["calibration"]
    assert isinstance(report, CalibrationReport)
    errors, kl, elsewhere = [], [], []
    for trials in TASK.stream(n, seed=derived_seed(7, 0)):
        with torch.no_grad():
            p_all = model.module(trials.tokens).double().softmax(-1).numpy()
        for row, pos in zip(*np.nonzero(trials.scored.numpy()), strict=True):
            inside = p_all[row, pos, 11:]
            p, q = trials.predictive[row, pos].numpy(), inside / inside.sum()
            exact = -sum(x * math.log2(x) for x in p if x > 0)
            errors.append(abs(exact + (q * np.log2(q)).sum()))
            kl.append(sum(x * math.log2(x / y) for x, y in zip(p, q, strict=True) if x > 0))
            elsewhere.append(1 - inside.sum())
    assert len(errors) == 5 * n and report.n == n
    assert float(report.entropy_mae_bits) == pytest.approx(np.mean(errors), abs=1e-6)
    assert float(report.kl_bits) == pytest.approx(np.mean(kl), abs=1e-6)
    assert float(report.off_answer_prob) == pytest.approx(np.mean(elsewhere), abs=1e-6)
    profile = np.array(errors).reshape(n, 5).mean(axis=0)
    np.testing.assert_allclose(report.entropy_mae_bits_by_position.value, profile, atol=1e-6)
    assert float(report.entropy_mae_bits.baseline("uniform").value) == pytest.approx(
        np.mean([math.log2(11 / (11 - s)) for s in range(5)])
    )


def test_untrained_copies_add_the_baseline_and_nothing_else() -> None:
    without, with_copies = (
        diagnose(lively(), probes=["calibration"], n=31, n_untrained=count)["calibration"] for count in (0, 2)
    )
    assert isinstance(without, CalibrationReport) and isinstance(with_copies, CalibrationReport)
    assert UNTRAINED not in [own.name for own in without.kl_bits.baselines]
    assert with_copies.kl_bits.baseline(UNTRAINED).value > 0
    assert without.kl_bits.ends == with_copies.kl_bits.ends and without.accuracy[1].ends == with_copies.accuracy[1].ends


def test_a_bare_module_needs_a_task() -> None:
    module = lively().module
    with pytest.raises(InvalidArgument, match=r"transformer does not state its training task: pass task=…"):
        diagnose(module, n=3)
    with pytest.raises(
        TaskMismatch, match=r"uses ids 0 … \d+; transformer has 22 ids|uses ids \d+ … 2\d; transformer has 22"
    ):
        diagnose(module, Bijection(n_values=13, n_pairs=5), n=13, n_untrained=0)
    assert diagnose(module, TASK, n=3, n_untrained=0, probes=["calibration"]).title.startswith(
        "transformer on Bijection("
    )


@pytest.mark.parametrize("task", [TASK, pytest.param(Mess3(length=8), marks=pytest.mark.exhaustive)])
def test_sequences_that_are_not_recorded_are_scored_like_the_others(task: WindTunnel) -> None:
    model = HookedModel(Transformer(SIZES), name="tiny", task=task, digest="x")
    n = N_RECORDED + 2 * 128 + 7
    with limited_threads(2):
        found = diagnose(model, n=n, n_untrained=0, probes=["calibration", "belief_readout"])
    run = model.run(
        task.stream(n, seed=derived_seed(0, Branch.TRIALS)),
        record=(RESID_PRE, RESID_POST),
        n_recorded=N_RECORDED,
        baseline_predictives=task.baseline_predictives,
        seed=derived_seed(0, Branch.RESAMPLING),
    )
    expected = parts_of(Calibration().measure(run))
    fields, arrays = parts_of(found["calibration"])
    assert found["calibration"].n == n and found["belief_readout"].n <= N_RECORDED
    assert list(arrays) == list(expected[1]) and fields.keys() == expected[0].keys()
    for name, values in arrays.items():
        np.testing.assert_allclose(values, expected[1][name], rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.exhaustive
def test_a_diagnosis_inside_the_modules_lock_and_one_outside_both_end(monkeypatch: pytest.MonkeyPatch) -> None:
    module, measuring, holds = Transformer(SIZES), threading.Event(), threading.Event()
    measure, ended = BeliefReadout.measure, list[str]()

    def waiting(self: BeliefReadout, *given: Any) -> Any:
        measuring.set()
        holds.wait(1)  # in vain, if the other diagnosis holds the lock for all of its passes
        return measure(self, *given)

    def diagnosed(name: str, n: int) -> None:
        model = HookedModel(module, name=name, task=TASK, digest="x")
        diagnose(model, n=n, n_untrained=0, probes=["belief_readout", "attention_entropy"])
        ended.append(name)

    def inside() -> None:
        assert measuring.wait(20)
        with lock_of(module):
            holds.set()
            diagnosed("inside", 200)

    monkeypatch.setattr(BeliefReadout, "measure", waiting)
    with limited_threads(2):
        threads = [
            threading.Thread(target=work, daemon=True) for work in (partial(diagnosed, "outside", 12_000), inside)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert sorted(ended) == ["inside", "outside"]


def test_a_large_model_is_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HookedModel(Transformer(SIZES), name="tiny", task=TASK, digest="x")
    whole = diagnose(model, probes=["calibration"], n=37, n_untrained=0)
    monkeypatch.setattr(passes, "LARGE", 0)
    parts = diagnose(model, probes=["calibration"], n=37, n_untrained=0)
    found, expected = (own["calibration"].kl_bits.value for own in (parts, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    sizes = [len(part) for part in passes._in_passes(model, TASK.stream(37, seed=0))]
    assert sizes == [13, 12, 12]


@final
@dataclass(frozen=True)
class Failing(Measurement[SeenReport]):
    """A measurement of another package that fails at one point."""

    name = "failing"
    asks = frozenset({Ask.PREDICT})
    at: str = "of"

    def prepared(self, model: Model, task: WindTunnel, *, n: int, seed: int) -> "Failing":
        return self._unless("prepared", self)

    def further(self, task: WindTunnel, run: Run, seed: int) -> Iterable[Further]:
        return self._unless("further", ())

    def of(self, subject: Subject, untrained: Sequence[SeenReport] = ()) -> SeenReport:
        return self._unless("of", 3)  # type: ignore[return-value]  # no report, where nothing fails

    def controls(self) -> Iterator[Control[SeenReport]]:
        return iter(())

    def _unless(self, place: str, result: Any) -> Any:
        if self.at == place:
            raise ValueError("broken")
        return result


@pytest.mark.parametrize("at", ["prepared", "further", "of", "nowhere"])
def test_a_measurement_of_another_package_that_fails_costs_only_itself(at: str) -> None:
    found = diagnose(lively(), probes=["calibration", Failing(at=at)], n=5, n_untrained=0)
    assert list(found) == ["calibration"] and "failing" in found.skipped
    assert ("broken" in found.skipped["failing"]) == (at != "nowhere")
    with pytest.raises(InvalidArgument, match="failing"):
        diagnose(lively(), probes=[Failing(at=at)], n=5, n_untrained=0)
