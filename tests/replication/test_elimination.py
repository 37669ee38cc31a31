"""Elimination by layer: which answers a layer rules out, and what could be mistaken for it."""

import numpy as np
import pytest
import torch

from bayesgeom.report.diagnosis import load_report
from examples.replication.elimination import Elimination, EliminationReport, _explained, eliminated_at, interpolated
from tests.pages import READINGS, named_rows, section


@pytest.mark.parametrize("control", [*Elimination().controls()], ids=lambda own: own.label)
def test_a_planted_elimination_is_told_from_fading(control: object) -> None:
    probe = Elimination()
    (own,) = (each for each in probe.controls() if each.label == control.label)  # type: ignore[attr-defined]
    report = probe.measure(own.run)
    assert own.holds(report) and report.eliminated.value[-1] == pytest.approx(1)
    assert report.eliminated.value[1:] == pytest.approx(report.eliminated.value[0] + report.by_layer.value.cumsum())
    assert report.plot().data and report.summary()


def test_an_answer_that_comes_back_is_not_eliminated_before_it_stays_so() -> None:
    exact = torch.tensor([[[0.5, 0.5, 0.0]]], dtype=torch.float64)
    low, high = torch.tensor([0.0, 0.0, -9.0]), torch.zeros(3)
    read = [own.double().log_softmax(-1).expand(1, 1, 3) for own in (low, high, low, low)]
    assert eliminated_at(exact, read)[0, 0, 2] == 2
    assert eliminated_at(exact, read[:2])[0, 0, 2] == 2  # never: the number of stages


def test_interpolated_logits_have_the_kl_of_each_stage() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.rand(23, 3, 5, generator=generator, dtype=torch.float64)
    exact = exact / exact.sum(-1, keepdim=True)
    noise = torch.randn(23, 3, 5, generator=generator, dtype=torch.float64)
    read = [(exact.log() + scale * noise).log_softmax(-1) for scale in (2.0, 1.0, 0.5, 0.0)]
    kl = [
        [float((exact * (exact.log() - own)).sum(-1).mean()) for own in each]
        for each in (read, interpolated(exact, read))
    ]
    assert kl[1] == pytest.approx(kl[0], abs=1e-6)


def test_explained_variance_is_that_of_group_means() -> None:
    rng = np.random.default_rng(0)
    at, dead = rng.integers(4, size=(31, 5, 7)), rng.random((31, 5, 7)) < 0.6
    at = at + np.arange(7) // 2  # later answers are eliminated later
    values, answers = at[dead], np.broadcast_to(np.arange(7), dead.shape)[dead]
    within = sum(((values[answers == own] - values[answers == own].mean()) ** 2).sum() for own in range(7))
    found = _explained(at, dead, seed=0)
    assert found.value[0] == pytest.approx(1 - within / ((values - values.mean()) ** 2).sum())
    assert found.low is not None and found.low[0] > found.baselines[0].value[0] + 0.1


NAMED = named_rows(section("readings.md", "Layer by layer"))


@pytest.mark.parametrize("name", NAMED)
def test_a_row_of_the_readings_is_its_report(name: str) -> None:
    report = load_report(READINGS / "claims" / f"elimination-{name}")
    assert isinstance(report, EliminationReport)
    shares, line, explained = NAMED[name]
    assert [float(own) for own in shares.split()] == pytest.approx(report.by_layer.value, abs=0.0051)
    assert float(line) == pytest.approx(report.by_layer.baseline("interpolated logits").value.max(), abs=0.0051)
    assert float(explained) == pytest.approx(float(report.explained.value[0]), abs=0.00051)
    assert float(report.explained.baseline("shuffled answers").value[0]) < 0.0055
    assert report.by_layer.baseline("untrained networks").value.max() < 0.01
