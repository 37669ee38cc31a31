"""What a measurement wants run beyond the first run: each sequence once, in order, and only of a model that can."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.core import RESID_POST, Ask, Run, Trials, concatenate
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.diagnosis.plan import all_measurements
from bayesgeom.measurements.base import Control, Further, Measurement, Subject
from bayesgeom.measurements.calibration import Calibration, CalibrationReport
from bayesgeom.measurements.running import at_last, first_run, further_runs, measured
from bayesgeom.models.base import Model
from bayesgeom.models.captured.model import CapturedModel
from bayesgeom.models.served.client import Client
from bayesgeom.models.served.model import ServedModel
from bayesgeom.tasks.base import WindTunnel
from tests.interventions.worlds import TASK, lively
from tests.models.test_server import Letters

N = 5  # sequences of the first run
NEW = TASK.sample(7, seed=3)


@final
@dataclass(frozen=True, kw_only=True)
class Wanting(Measurement[CalibrationReport]):
    """Calibration of a model that is asked for further sequences, which the report does not need."""

    name: ClassVar[str] = "wanting"
    asks: frozenset[Ask] = frozenset({Ask.PREDICT})  # type: ignore[misc]  # of each case
    wanted: tuple[Further, ...] = field(default=(), repr=False)

    def further(self, task: WindTunnel, run: Run, seed: int) -> Iterator[Further]:
        yield from self.wanted

    def of(self, subject: Subject, untrained: Sequence[CalibrationReport] = ()) -> CalibrationReport:
        assert len(subject.further) == len(self.wanted)
        return Calibration().measure(subject.run)

    def controls(self) -> Iterator[Control[CalibrationReport]]:
        return iter(())


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Trials]:
    """The sequences of every call of `Model.run` so far."""
    seen, run = list[Trials](), Model.run

    def counted(self: Model, blocks: Any, **options: Any) -> Run:
        given = list(blocks)
        seen.append(concatenate(given))
        return run(self, given, **options)

    monkeypatch.setattr(Model, "run", counted)
    return seen


def further_of(*wanted: Further, model: Model | None = None, asks: Ask = Ask.PREDICT) -> tuple[Run, ...]:
    model = lively() if model is None else model
    measurement = Wanting(wanted=wanted, asks=frozenset({asks}))
    return further_runs(model, measurement, TASK, first_run(model, TASK, n=N, seed=0), seed=0)


def answers(trials: Trials) -> np.ndarray:
    """The answers at the last scored position, one sequence at a time."""
    rows = [lively().run([trials.rows(slice(i, i + 1))], n_recorded=1).log_answers[0, -1] for i in range(len(trials))]
    return np.asarray(torch.stack(rows).numpy())


def once(trials: Trials, label: str = "again") -> Further:
    return Further(trials=trials, is_last_only=True, label=label)


def test_sequences_of_one_label_run_once_each_and_come_back_in_order(passes: list[Trials]) -> None:
    few, turned = NEW.rows(slice(0, 3)), NEW.rows(torch.tensor([6, 0, 2, 0]))
    runs = further_of(once(few), once(turned), once(NEW))
    assert len(passes) == 2, "the first run, and one for all three"
    assert len(passes[1]) == 7 and {*map(tuple, passes[1].tokens.tolist())} == {*map(tuple, NEW.tokens.tolist())}
    for run, trials in zip(runs, (few, turned, NEW), strict=True):
        assert run.trials is trials and run.n_recorded == len(trials)
        np.testing.assert_allclose(run.log_answers[:, -1], answers(trials), atol=1e-5)


def test_what_the_first_run_knows_does_not_run(passes: list[Trials]) -> None:
    first = first_run(lively(), TASK, n=N, seed=0).trials
    passes.clear()
    mixed = concatenate([at_last(NEW.rows(slice(0, 2))), at_last(first)])
    (run, known) = further_of(once(mixed), once(first))
    assert [len(own) for own in passes] == [N, 2]
    np.testing.assert_allclose(run.log_answers[:, -1], answers(mixed), atol=1e-5)
    np.testing.assert_allclose(known.log_answers[:, -1], answers(first), atol=1e-5)
    passes.clear()
    further_of(once(first))
    assert [len(own) for own in passes] == [N], "nothing is left to run"


def test_each_label_is_a_run_of_its_own(passes: list[Trials]) -> None:
    few, others = NEW.rows(slice(0, 3)), NEW.rows(slice(3, 7))
    runs = further_of(once(few, "one"), once(others, "other"), once(few, "one"))
    assert [len(own) for own in passes[1:]] == [3, 4, 3]
    for run, trials in zip(runs, (few, others, few), strict=True):
        np.testing.assert_allclose(run.log_answers[:, -1], answers(trials), atol=1e-5)


def test_sequences_with_sites_run_whole_and_hold_them(passes: list[Trials]) -> None:
    few = NEW.rows(slice(0, 3))
    wanted = [Further(trials=few, record=(RESID_POST,)), once(NEW), Further(trials=NEW, record=(RESID_POST,))]
    (recorded, last, whole) = further_of(*wanted, asks=Ask.RERUN)
    assert [len(own) for own in passes[1:]] == [3, 7, 7]
    assert recorded.at(RESID_POST).shape[1] == 3 and whole.at(RESID_POST).shape[1] == 7 and not last.recorded
    torch.testing.assert_close(whole.at(RESID_POST)[:, :3], recorded.at(RESID_POST))


def test_a_measurement_that_wants_nothing_runs_nothing(passes: list[Trials]) -> None:
    assert further_of() == () and len(passes) == 1


@pytest.fixture
def capture(tmp_path: Path) -> CapturedModel:
    bayesgeom.capture(lively(), TASK, out=tmp_path / "capture", n=N, sites=["resid_post"])
    return CapturedModel(tmp_path / "capture")


@pytest.mark.parametrize("ask", Ask)
def test_a_capture_is_refused_by_what_was_asked_for(ask: Ask, capture: CapturedModel, passes: list[Trials]) -> None:
    with pytest.raises(InvalidArgument) as error:
        further_of(once(NEW), model=capture, asks=ask)
    message = str(error.value)
    assert message.startswith(f"wanting requires {ask.value}. ") and "is a capture" in message and "\n" not in message
    assert len(passes) == 1
    assert further_of(model=capture, asks=ask) == (), "a measurement that wants nothing more is not refused"


@pytest.mark.parametrize("ask", [ask for ask in Ask if ask is not Ask.PREDICT])
def test_a_server_is_refused_by_what_was_asked_for(ask: Ask) -> None:
    served = ServedModel(Client(url="http://127.0.0.1:9/v1", model="m"), Letters(), n_ids=Letters.n_ids)
    measurement = Wanting(wanted=(once(NEW),), asks=frozenset({ask}))
    with pytest.raises(
        InvalidArgument, match=f"wanting requires {ask.value}. m is served at .*: load the model itself"
    ):
        further_runs(served, measurement, TASK, first_run(lively(), TASK, n=N, seed=0), seed=0)
    served.require_asks({Ask.PREDICT}, by="wanting")


@pytest.mark.parametrize("name", ["relabeling", "evidence_response", "fitted_lens"])
def test_a_measurement_that_runs_the_model_again_is_refused_before_anything_runs(
    name: str, capture: CapturedModel, passes: list[Trials]
) -> None:
    measurement = all_measurements()[name]
    (ask,) = measurement.asks
    with pytest.raises(InvalidArgument, match=f"{name} requires {ask.value}. .*: pass the model itself"):
        measured(measurement, capture, TASK, n=N, seed=0)
    assert not passes


def test_one_measurement_alone_says_what_was_set(passes: list[Trials]) -> None:
    report = measured(Wanting(wanted=(once(NEW),)), lively(), TASK, n=N, seed=3)
    assert report.provenance["arguments"].keys() == {"asks", "n", "seed"}
    assert [len(own) for own in passes] == [N, 7]


def test_a_diagnosis_skips_what_a_capture_cannot_do(capture: CapturedModel) -> None:
    """The battery does not check it: the plan does, before anything runs."""
    diagnosis = bayesgeom.diagnose(capture, TASK, n=N, n_untrained=0, probes=["calibration"], ablations=True)
    assert diagnosis.skipped["ablation"].startswith("ablation requires edited activations. ")
