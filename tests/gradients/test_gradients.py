"""gradients: the whole way from a model to a saved report, and bad input."""

import importlib

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

import bayesgeom
from bayesgeom.core.errors import HookFault, InvalidArgument, TaskMismatch
from bayesgeom.gradients.attention_laws import advantage
from bayesgeom.gradients.capture import IDENTITIES, OTHER, captured, in_float64, loss_nats
from bayesgeom.gradients.report import GradientReport
from bayesgeom.gradients.run import batches, gradient_laws
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.tasks.base import derived_seed
from bayesgeom.tasks.bijection import Bijection
from tests.ablations.plain import TASK, lively

MODULE = importlib.import_module("bayesgeom.gradients.run")  # its name in the package is the function's


@pytest.fixture(scope="module")
def report() -> GradientReport:
    return bayesgeom.gradient_laws(lively(), n=11)


def test_the_report_carries_laws_correlations_and_maps(report: GradientReport) -> None:
    assert report.laws == IDENTITIES and report.identity_error.value.shape == (len(IDENTITIES), 3)
    assert np.nanmax(report.identity_error.value) < 1e-10 and np.nanmax(report.identity_error_nats.value) < 1e-10
    assert report.correlation.value.shape == report.correlation.baseline(OTHER).value.shape == (3, 5)
    low, high = report.correlation.ends
    known = ~np.isnan(low)  # of 11 sequences, one head's interval leaves the range of a correlation
    assert known.mean() > 0.9 and (low <= report.correlation.value)[known].all()
    assert (report.correlation.value <= high)[known].all()
    assert report.mean_advantage_nats.shape == report.mean_attention.shape == (3, 5, 7, 13)
    np.testing.assert_allclose(report.mean_attention.sum(axis=-1), 1, atol=1e-5)
    assert float(report.mean_correlation) == pytest.approx(report.correlation.value.mean())
    other = report.correlation.baseline(OTHER).value.mean()
    assert float(report.mean_correlation.baseline(OTHER).value) == pytest.approx(other)
    assert report.n == 11


def test_trials_may_be_given(report: GradientReport) -> None:
    trials = next(iter(TASK.stream(11, seed=derived_seed(0, 0))))
    given = bayesgeom.gradient_laws(lively(), trials)
    np.testing.assert_allclose(given.correlation.value, report.correlation.value, atol=1e-12)
    np.testing.assert_allclose(given.mean_advantage_nats, report.mean_advantage_nats, atol=1e-12)


def test_the_loss_is_what_the_model_scores(report: GradientReport) -> None:
    trials = next(iter(TASK.stream(11, seed=derived_seed(0, 0))))
    with torch.no_grad():
        logits = lively().module(trials.tokens)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), trials.labels.flatten())
    assert float(report.loss_nats) == pytest.approx(float(expected), abs=1e-5)


def test_descent_on_the_loss_lowers_it_as_the_advantage_says() -> None:
    """A head's scores nudged along its advantage: the loss falls by Σ α A², to first order."""
    model = lively()
    trials = TASK.sample(4, seed=3)
    wide = in_float64(model)
    before, layers = captured(wide, trials, "sampled")
    gain, pattern, size = advantage(layers[1].pattern, layers[1].agreement), layers[1].pattern, 1e-4
    point = wide.module.get_submodule("blocks.1.attn.hook_attn_scores")
    handle = point.register_forward_hook(lambda m, i, scores: scores + size * gain.nan_to_num())
    with torch.no_grad():
        after = loss_nats(wide.logits(trials), trials, "sampled")
    handle.remove()
    predicted = size * (pattern * gain.square()).sum((1, 2, 3))
    torch.testing.assert_close(before - after, predicted, rtol=1e-2, atol=0)
    assert bool((predicted > 0).all())


def test_tiles_hold_at_least_two_and_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bayesgeom.gradient_laws(lively(), n=11)
    monkeypatch.setattr(MODULE, "BUDGET_BYTES", 1)
    assert [len(batch) for batch in batches(TASK.sample(11, seed=0), lively().spec)] == [3, 2, 2, 2, 2]
    small = bayesgeom.gradient_laws(lively(), n=11)
    np.testing.assert_allclose(small.correlation.value, whole.correlation.value, atol=1e-12)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least 2"):
        gradient_laws(lively(), n=1)
    with pytest.raises((InvalidArgument, TypeCheckError), match="'sampled'"):
        gradient_laws(lively(), targets="soft")  # type: ignore[arg-type]
    with pytest.raises(TaskMismatch):
        gradient_laws(lively(), Bijection(n_values=40, n_pairs=7))
    with pytest.raises(InvalidArgument, match="pass task"):
        gradient_laws(HookedModel(lively().module))  # type: ignore[arg-type]


def test_attention_that_breaks_the_laws_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "TOLERANCE", 0.0)
    with pytest.raises(HookFault, match="the gradient laws are off"):
        bayesgeom.gradient_laws(lively(), n=2)
