"""The type of what measures: its options, its settings, what it needs, and planted subjects."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesgeom.core.errors import InvalidArgument, TaskMismatch, UnknownName
from bayesgeom.core.run import RESID_POST, RESID_PRE
from bayesgeom.diagnosis.plan import all_measurements, check_probes, named_measurement
from bayesgeom.measurements.base import Control, Needs, Subject, planted_run, planted_trials
from bayesgeom.measurements.calibration import Calibration
from bayesgeom.measurements.evidence_response import EvidenceResponse
from bayesgeom.measurements.fitted_lens import FittedLens
from bayesgeom.measurements.inside import Inside
from bayesgeom.measurements.value_manifold import ValueManifold
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.prompts import Prompts
from tests.tasks.tokenizers import word_tokenizer

KNOWN = all_measurements()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("calibration", Calibration()),
        ("value_manifold", ValueManifold()),
        ("value_manifold:standardized", ValueManifold(standardized=True)),
        ("inside:with_heads", Inside(with_heads=True)),
        ("evidence_response:single", EvidenceResponse(single=True)),
        ("fitted_lens:maps/j.pt", FittedLens(jacobian="maps/j.pt")),  # it takes the text itself
    ],
)
def test_an_option_sets_a_field(text: str, expected: object) -> None:
    assert named_measurement(text, KNOWN) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value_manifold:flat", r"option of probe 'value_manifold' named 'flat'\. There are: standardized"),
        ("evidence_response:ages", r"option of probe 'evidence_response' named 'ages'\. There are: single"),
        ("calibration:sharp", r"option of probe 'calibration' named 'sharp'"),
        ("calibrations", r"no probe named 'calibrations'"),
    ],
)
def test_an_unknown_option_is_refused_before_a_model_is_loaded(text: str, message: str) -> None:
    with pytest.raises(UnknownName, match=message):
        check_probes([text])


def test_the_same_measurement_with_two_options_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="two probes are named 'value_manifold'"):
        check_probes(["value_manifold", "value_manifold:standardized"])


def test_settings_are_what_a_user_can_set() -> None:
    prepared = replace(FittedLens(jacobian="j.pt"), n_fit=96, n_test=24)
    assert prepared.settings() == {"jacobian": "j.pt"}
    assert EvidenceResponse(ages=(0, 2)).settings() == {"n": 64, "ages": [0, 2], "single": False}


def test_needs_name_what_a_task_lacks() -> None:
    prompts = Prompts(texts=("apple river", "stone")).bind(word_tokenizer(), d_vocab=257)
    with pytest.raises(TaskMismatch, match="lens requires an exact posterior, which task 'prompts' does not have"):
        Needs(posterior=True).check_task(prompts, Bijection().sample(2, seed=0), by="lens")
    with pytest.raises(TaskMismatch, match="requires sequences of several kinds, which task 'bijection' does not"):
        Needs(groups=True).check_task(Bijection(), Bijection().sample(2, seed=0), by="lens")
    Needs(posterior=True, sites=(RESID_PRE,)).check_task(Bijection(), Bijection().sample(2, seed=0), by="lens")


def test_a_planted_subject_has_no_model_to_edit(rng: np.random.Generator) -> None:
    trials = planted_trials(rng.dirichlet(np.ones(3), size=(7, 2)), rng.integers(5, size=(7, 11)))
    subject = Subject(run=planted_run(trials, {}))
    with pytest.raises(InvalidArgument, match="a planted subject has runs only"):
        subject.edited()


def test_a_planted_run_has_the_sizes_and_answers_that_were_planted(rng: np.random.Generator) -> None:
    exact = rng.dirichlet(np.ones(3), size=(7, 2))
    trials = planted_trials(exact, rng.integers(5, size=(7, 11)))
    run = planted_run(trials, {RESID_POST: torch.zeros(2, 7, 2, 13)})
    assert (run.spec.n_layers, run.spec.d_model) == (2, 13)
    np.testing.assert_allclose(run.log_answers.exp(), exact)
    assert not run.behavior.kl_bits.any() and trials.scored.sum(dim=1).tolist() == [2] * 7
    uniform = torch.full((7, 2, 3), 1 / 3, dtype=torch.float64)
    kl = (exact * np.log2(exact * 3)).sum(axis=2)
    np.testing.assert_allclose(planted_run(trials, {}, model=uniform).behavior.kl_bits, kl, rtol=1e-5)


def test_a_control_reports_in_its_own_size(rng: np.random.Generator) -> None:
    trials = planted_trials(rng.dirichlet(np.ones(3), size=(7, 2)), rng.integers(5, size=(7, 11)))
    points = torch.from_numpy(rng.normal(size=(2, 7, 2, 13)) * np.linspace(1, 9, 13))
    control = Control(label="x", run=planted_run(trials, {RESID_POST: points}), holds=lambda report: True)
    plain = control.report(ValueManifold())
    assert "standardized" not in plain.conditions
    chosen = replace(control, measurement=ValueManifold(standardized=True)).report(ValueManifold())
    assert "standardized" in chosen.conditions
    assert replace(control, untrained=(control.run,)).report(ValueManifold()).pc1_share.baselines
