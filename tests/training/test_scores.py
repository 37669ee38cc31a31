"""Scores of trained models: who reads nothing, and where the answer is known."""

import pytest
import torch

from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.models.resolve import of_module
from bayesgeom.tasks.base import derived_seed
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.scores import context_free, score


def test_the_best_context_free_predictor_of_a_bijection_is_uniform() -> None:
    marginal = context_free(Bijection(n_values=5, n_pairs=4), seed=0)
    assert marginal.shape == (4, 5) and float((marginal - 0.2).abs().max()) < 0.05
    assert torch.allclose(marginal.sum(-1), torch.ones(4, dtype=torch.float64))


def test_scores_count_where_the_answer_is_known() -> None:
    task = Bijection(n_values=5, n_pairs=7, repeats=True)
    module = Transformer(TransformerConfig(d_vocab=10, n_ctx=13, n_layers=1, n_heads=3, d_model=21, d_mlp=13))
    own = score(of_module(module, task=task), task, n=11, seed=0)
    trials = next(iter(task.stream(11, seed=derived_seed(0, 0))))
    asked = trials.at_scored(trials.predictive)
    known = (asked.amax(-1) > 1 - 1e-9).double().mean(1)
    assert own.known == pytest.approx(known.numpy()) and 0 < known.mean() < 1
    assert (own.known_correct <= own.known + 1e-12).all() and (own.kl_bits > 0).all()
    free = context_free(task, seed=0).expand_as(asked)
    kl = torch.where(asked > 0, asked * (asked / free).log2(), 0.0).sum(-1).mean(1)
    assert own.context_free_kl_bits == pytest.approx(kl.numpy(), abs=1e-5)
    right = (free.argmax(-1) == asked.argmax(-1)).double() * (asked.amax(-1) > 1 - 1e-9)
    assert own.context_free_known_correct == pytest.approx(right.mean(1).numpy())
