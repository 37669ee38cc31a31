"""Belief statistics: what the answers say of a statistic is its baseline; tasks without any are not measured."""

import pytest

from bayesgeom.core.errors import TaskMismatch
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.measurements._beliefs import ANSWERS, LOG_ANSWERS
from bayesgeom.measurements.belief_statistics import BeliefStatistics
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.tasks.linear_gaussian import LinearGaussian
from tests.measurements.beliefs import CHAIN, LAYERS, NOISE, WRITTEN, planted


def test_what_the_answers_say_of_a_statistic_is_its_baseline() -> None:
    report = BeliefStatistics().measure(planted(LinearGaussian(decay=(0.1, 0.9), noise=0.5, n_bins=6, length=5)))
    assert report.statistics == ("mean", "log_variance") and report.statistic_r2.value.shape == (2, 1, LAYERS)
    mean, variance = (report.statistic_r2.baseline(ANSWERS).value[at, 0, 0] for at in range(2))
    assert mean > 0.6 and variance < report.statistic_r2.baseline(LOG_ANSWERS).value[1, 0, 0] < 0.99
    lines = report.headlines()
    assert len(lines) == 2 and report.drawn_statistic.shape == (2, report.read_statistic.shape[2])
    assert max(report.statistic_r2.value[:, 0, NOISE]) < 0.1 < report.statistic_r2.value[0, 0, WRITTEN]


def test_other_tasks_have_none() -> None:
    sizes = TransformerConfig(d_vocab=CHAIN.d_vocab, n_ctx=CHAIN.n_pos, n_layers=1, n_heads=1, d_model=7, d_mlp=7)
    model = HookedModel(Transformer(sizes, seed=0), name="tiny", task=CHAIN)
    with pytest.raises(TaskMismatch, match=r"declared statistics of the belief, which task 'hmm' does not have"):
        diagnose(model, n=8, n_untrained=0, probes=["belief_statistics"])
