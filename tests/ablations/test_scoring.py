"""Scores against the formulas written out, and against the one place where behavior is scored."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesgeom.ablations.engine import METRICS, Exact
from bayesgeom.core.edits import Replace
from bayesgeom.core.errors import NonFinite
from bayesgeom.core.run import Z
from bayesgeom.stats.behavior import answer_log_probabilities, behavior
from tests.ablations.plain import TASK, scored

TRIALS = TASK.sample(17, seed=2)
LOGITS = 5 * torch.randn(17, 7, 22, generator=torch.Generator().manual_seed(0))


def test_scores_are_their_formulas() -> None:
    found = Exact.of(TRIALS).scores(LOGITS)
    assert found.shape == (len(METRICS), 17, 7) and found.dtype == np.float64
    np.testing.assert_allclose(found, scored(LOGITS, TRIALS), atol=1e-12)


def test_scores_are_those_of_every_other_report() -> None:
    own = behavior(TRIALS, *answer_log_probabilities(LOGITS, TRIALS))
    error = np.abs(own.model_entropy_bits - own.exact_entropy_bits)
    np.testing.assert_allclose(Exact.of(TRIALS).scores(LOGITS), np.stack([own.kl_bits, error, own.correct]), atol=1e-12)


def test_the_exact_predictive_scores_zero() -> None:
    exact = Exact.of(TRIALS)
    logits = torch.full((17, 7, 22), -80.0, dtype=torch.float64)
    logits[..., TRIALS.answers] = exact.predictive.log().clamp_min(-800.0)  # exp(−800) is zero
    np.testing.assert_allclose(exact.scores(logits)[:2], 0.0, atol=1e-12)


def test_what_cannot_happen_costs_nothing_however_small_its_probability() -> None:
    logits = LOGITS.clone()
    logits[..., TRIALS.answers] = torch.where(Exact.of(TRIALS).predictive > 0, 0.0, -3e38)
    np.testing.assert_allclose(Exact.of(TRIALS).scores(logits)[:2], 0.0, atol=1e-12)


def test_broken_logits_name_the_edits() -> None:
    edit = Replace(site=Z, layer=1, mode="zero", heads=(2,))
    with pytest.raises(NonFinite, match=r"NaN or infinite under: zero L1H2\."):
        Exact.of(TRIALS).scores(torch.full((17, 7, 22), torch.nan), (edit,))
    with pytest.raises(NonFinite, match=r"under: no edit\."):
        Exact.of(TRIALS).scores(torch.full((17, 7, 22), torch.inf))


def test_only_the_tile_decides_what_is_exact() -> None:
    other = replace(TRIALS, predictive=TRIALS.predictive.flip(0))
    first, second = Exact.of(TRIALS).scores(LOGITS), Exact.of(other).scores(LOGITS)
    assert not np.allclose(first[0], second[0]) and np.array_equal(first[2], second[2])
