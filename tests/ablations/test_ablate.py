"""ablate: the whole way from a model to a report, bad input, and batteries that stop and go on."""

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom import ablations, cli
from bayesgeom.ablations import Ablation, Component
from bayesgeom.ablations.report import AblationReport
from bayesgeom.ablations.run import N_REFERENCE, BatteryRun
from bayesgeom.core.errors import InvalidArgument, MissingSite, OutputFault, TaskMismatch, UnknownName
from bayesgeom.core.run import Z, concatenate
from bayesgeom.measurements.ablation import ablate
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.checkpoint_files import versions
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.storage import JSON, PROGRESS, parts_of
from bayesgeom.tasks.base import derived_seed
from bayesgeom.tasks.bijection import Bijection
from tests.ablations.plain import TASK, Plain, heads, lively, scored, some_sets
from tests.tiny import tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures

MODULE = importlib.import_module("bayesgeom.ablations.run")  # its name in the package is the function's
SMALL = [Ablation(heads((1, 2))), Ablation((Component(0, "mlp"),)), Ablation((Component(2, "block"),))]


def ablated(model: HookedModel, out: Path | None = None, **changes: Any) -> AblationReport:
    return ablate(model, None, SMALL, **{"n": 300, "out": out} | changes)


def assert_equal(one: AblationReport, other: AblationReport) -> None:
    (scalars, arrays), (others, other_arrays) = parts_of(one), parts_of(other)
    assert repr(scalars) == repr(others) and arrays.keys() == other_arrays.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(other_arrays[name], value, err_msg=name, strict=True)


def effects(report: AblationReport) -> dict[str, np.ndarray]:
    """The effects of every ablation, and the lower ends of the first."""
    return {
        "KL increase": report.kl_increase_bits.value,
        "its lower end": report.kl_increase_bits.ends[0],
        "entropy error": report.entropy_mae_increase_bits.value,
        "KL ratio": report.kl_ratio.value,
        "accuracy": report.accuracy_change.value,
        "by position": report.kl_increase_bits_by_position,
    }


# The numbers.


class _NoPasses:
    """A replayer that must not be asked for anything."""

    def baseline(self, trials: Any) -> Any:
        raise AssertionError("a reference pass whose means nothing uses")

    logits = baseline


@pytest.mark.parametrize("mode", ["zero", "resample"])
def test_only_means_that_are_put_in_place_are_computed(mode: str) -> None:
    battery = BatteryRun.of(lively(), TASK, SMALL, mode=mode, n=5, seed=0)
    assert battery._means([ablation.edits(mode) for ablation in SMALL], _NoPasses()) == {}
    own = BatteryRun.of(lively(), TASK, [*SMALL, Ablation(heads((1, 0)), mode="mean")], mode=mode, n=300, seed=0)
    means = own._means([ablation.edits(mode) for ablation in own.battery], own.model.replayer())
    assert [*means] == [(Z, 1)]


@pytest.mark.parametrize("mode", ["zero", "mean"])
def test_the_kl_increase_is_what_one_pass_per_ablation_gives(mode: str) -> None:
    """Two blocks of the stream, the task's own means, and nothing shared with the engine but the trials."""
    model, n, seed = lively(), 150, 5
    trials = concatenate(list(TASK.stream(n, seed=derived_seed(seed, 0))))
    others = concatenate(list(TASK.stream(N_REFERENCE, seed=derived_seed(seed, 3))))
    plain, battery = Plain.of(model.module, trials, others), [*SMALL, *some_sets()[:3]]
    report = bayesgeom.ablate(model, battery=battery, mode=mode, n=n, seed=seed)
    with torch.no_grad():
        before = scored(trials.at_scored(model.module(trials.tokens)), trials)
    assert float(report.unablated_kl_bits) == pytest.approx(before[0].mean(), abs=1e-5)
    for i, ablation in enumerate(battery):
        change = plain.scores(ablation, mode) - before
        own = (report.kl_increase_bits, report.entropy_mae_increase_bits, report.accuracy_change)
        found = [estimate.value[i] for estimate in own]
        np.testing.assert_allclose(found, change.mean(axis=(1, 2)), atol=1e-5, err_msg=ablation.label)
        np.testing.assert_allclose(report.kl_increase_bits_by_position[i], change[0].mean(axis=0), atol=1e-5)


def test_the_uniform_predictors_kl_is_of_the_same_sequences() -> None:
    n, seed = 150, 5
    trials = concatenate(list(TASK.stream(n, seed=derived_seed(seed, 0))))
    exact = trials.at_scored(trials.predictive).reshape(-1, len(trials.answers)).numpy()
    plain = [sum(p * np.log2(p * len(row)) for p in row if p > 0) for row in exact]
    found = ablated(lively(), n=n, seed=seed).uniform_kl_bits
    assert found == pytest.approx(np.mean(plain), rel=1e-12) and found > 0.1


def test_the_default_battery_takes_every_part_away_once() -> None:
    report = bayesgeom.ablate(lively(), n=17)
    assert len(report.ablations) == len(set(report.ablations)) == 15 + 3 * 3
    assert [report.kinds.count(kind) for kind in ("head", "attention", "mlp", "block")] == [15, 3, 3, 3]
    assert np.isfinite(report.kl_increase_bits_by_head).all() and (report.n, report.mode) == (17, "mean")


def test_no_sequence_is_its_own_donor(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def spied(replayer: Any, batch: Any, *rest: Any) -> Any:
        sizes.append(len(batch))
        return score_batch(replayer, batch, *rest)

    score_batch = MODULE.score_batch
    monkeypatch.setattr(MODULE, "score_batch", spied)
    report = ablated(lively(), n=129, mode="resample")  # the stream's second block has one sequence
    assert sum(sizes) == report.n == 129 and min(sizes) > 1


@pytest.mark.parametrize("mode", [pytest.param("mean", marks=pytest.mark.exhaustive), "resample"])
def test_the_report_does_not_depend_on_the_tile(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rows in (13 * 128, 13 * 31, 1):
        monkeypatch.setattr("bayesgeom.ablations.engine.TARGET_ROWS", rows)
        found.append(ablated(lively(), n=150, mode=mode))
    for other in found[1:]:
        for name, own in effects(found[0]).items():
            if name != "KL ratio":
                np.testing.assert_allclose(effects(other)[name], own, atol=1e-6, err_msg=name)


# Stopping and going on.


def interrupted_after(n_batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the next tile is scored."""
    score_batch, calls = MODULE.score_batch, [0]

    def scoring(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] > n_batches:
            raise KeyboardInterrupt
        return score_batch(*arguments)

    monkeypatch.setattr(MODULE, "score_batch", scoring)


@cache
def straight(mode: str) -> AblationReport:
    """The report of a battery that was not stopped, with a block of the stream as one tile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayesgeom.ablations.engine.TARGET_ROWS", 13 * 128)
        return ablated(lively(), mode=mode)


@pytest.mark.parametrize(
    ("n_batches", "mode"),
    [
        (0, "mean"),
        (1, "mean"),
        (1, "resample"),
    ],
)
def test_a_stopped_battery_goes_on_to_the_same_report(
    n_batches: int, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, expected = lively(), straight(mode)
    monkeypatch.setattr("bayesgeom.ablations.engine.TARGET_ROWS", 13 * 128)  # a block of the stream is one tile
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted_after(n_batches, patch)
        ablated(model, mode=mode, out=tmp_path)
    assert (tmp_path / PROGRESS).exists() == (n_batches > 0)
    scored_again: list[int] = []
    score_batch = MODULE.score_batch
    monkeypatch.setattr(MODULE, "score_batch", lambda *a: scored_again.append(1) or score_batch(*a))
    assert_equal(ablated(model, mode=mode, out=tmp_path), expected)
    assert len(scored_again) == 3 - n_batches


ASKED: dict[str, Any] = {"battery": SMALL, "n": 3}


@pytest.fixture(scope="module")
def progress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a battery that has run; what is refused leaves it as it is."""
    folder = tmp_path_factory.mktemp("progress")
    ablate(lively(), **ASKED, out=folder)
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 301},
        {"seed": 1},
        {"mode": "zero"},
        {"battery": [*SMALL[:2], Ablation(SMALL[2].components, mode="zero")]},
        {"task": Bijection(n_values=11, n_pairs=7, repeats=True)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_progress_of_another_battery_is_refused(changes: dict[str, Any], progress: Path) -> None:
    with pytest.raises(OutputFault, match="holds the progress of another battery"):
        ablate(lively(), **ASKED | changes, out=progress)
    assert {PROGRESS, JSON} <= {path.name for path in progress.iterdir()}


@pytest.mark.filterwarnings("ignore:tiny cannot be replayed")
def test_progress_in_another_environment_is_refused(progress: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = lively()
    hooked.module.register_forward_hook(lambda *_: None)
    with pytest.raises(OutputFault, match=r"another battery \(numerics\.foreign_hooks: .*there, .* requested\)"):
        ablate(hooked, **ASKED, out=progress)
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(OutputFault, match=r"another battery \(numerics\.float32_precision: "):
            ablate(lively(), **ASKED, out=progress)
    finally:
        torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr("bayesgeom.models.base.versions", lambda: {**versions(), "torch": "99"})
    with pytest.raises(OutputFault, match=r"another battery \(numerics\.torch: \S+ there, 99 requested\)"):
        ablate(lively(), **ASKED, out=progress)


# Bad input: one clear error, before anything runs.


def missing_z() -> HookedModel:
    model = lively()
    model.withheld = {Z: "its identity broke"}
    return model


@pytest.mark.parametrize(
    ("build", "arguments", "error", "message"),
    [
        (lively, {"battery": [Ablation((Component(3, "mlp"),))]}, InvalidArgument, r"L3 mlp: tiny has layers 0 … 2\."),
        (lively, {"battery": [Ablation(heads((0, 0), (1, 5)))]}, InvalidArgument, r"L1H5: tiny has heads 0 … 4 in a"),
        (
            missing_z,
            {"battery": "heads"},
            MissingSite,
            r"ablation 'mean L0H0' requires site 'z', .*its identity broke",
        ),
        (lively, {"mode": "resample", "n": 1}, InvalidArgument, r"at least 2 to resample .*, got 1\."),
        (lively, {"battery": []}, InvalidArgument, r"battery is empty: pass at least one ablation"),
        (lively, {"mode": "nothing"}, InvalidArgument, r"mode must be zero, mean or resample, got 'nothing'"),
        (lively, {"n": 0}, InvalidArgument, r"n, the number of sequences, must be at least 1, got 0\."),
        (lively, {"task": Bijection(n_values=7, n_pairs=5)}, TaskMismatch, r"has 14 ids; tiny was trained on"),
    ],
)
def test_bad_input_is_one_clear_error_before_anything_runs(
    build: Callable[[], HookedModel], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    model, passes = build(), []
    model.module.embed.register_forward_hook(lambda *_: passes.append(1))
    with pytest.raises(error, match=message):
        ablate(model, **arguments)
    assert passes == []


def test_a_battery_may_be_named_as_on_the_command_line() -> None:
    assert_equal(ablate(lively(), battery="mlps", n=5), ablate(lively(), battery=ablations.every_mlp(lively()), n=5))
    with pytest.raises(UnknownName, match=r"no battery named 'units'.*heads"):
        ablate(lively(), battery="units", n=5)


def test_components_and_sets_check_themselves() -> None:
    for build in (lambda: Component(0, "head"), lambda: Component(0, "mlp", 1), lambda: Component(0, "neuron")):
        with pytest.raises((InvalidArgument, TypeError), match=r"component|neuron"):
            build()
    with pytest.raises(
        InvalidArgument, match=r"needs at least one component \(Component\(0, 'attention'\)\); got none"
    ):
        Ablation(())


# The ways in.


def test_diagnose_can_take_the_battery_along() -> None:
    diagnosis = bayesgeom.diagnose(lively(), probes=["calibration"], n=17, n_untrained=0, ablations=True)
    assert list(diagnosis) == ["calibration", "ablation"]
    alone = ablate(lively(), n=17)
    assert diagnosis.answer is not None and not diagnosis.answer.explains and alone.n_mattering
    assert_equal(diagnosis["ablation"], alone.no_better())
    assert not diagnosis["ablation"].n_mattering and "yes" not in {
        line.verdict for line in alone.no_better().headlines()
    }
    assert "ablation" in diagnosis.summary()


def test_command_line_goes_on_where_it_was_stopped(
    tmp_path: Path, tiny_checkpoints: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    arguments = ["ablate", "bijection-v20", "--battery", "mlps", "--n", "131", "--out", str(out)]
    monkeypatch.setattr("bayesgeom.ablations.engine.TARGET_ROWS", 37 * 128)
    with monkeypatch.context() as patch:
        interrupted_after(1, patch)
        assert cli.main(arguments) == 130
    assert "interrupted" in capsys.readouterr().err and [path.name for path in out.iterdir()] == [PROGRESS]
    assert cli.main(arguments) == 0
    assert_equal(
        Diagnosis.load(out)["ablation"],
        ablate("bijection-v20", battery=ablations.every_mlp(bayesgeom.load("bijection-v20")), n=131),
    )
    assert (out / PROGRESS).is_file(), "the command saved the report once: `ablate` did, with its progress"
    interrupted_after(0, monkeypatch)
    assert cli.main(arguments) == 0, "the same command reads the progress and measures nothing"
