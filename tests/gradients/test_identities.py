"""The gradient laws hold against autograd on every kind of our transformers, and are noticed where they do not."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from bayesgeom.gradients.capture import (
    IDENTITIES,
    Targets,
    captured,
    identity_errors,
    in_float64,
    loss_nats,
)
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import NORMS, POSITIONS
from bayesgeom.models.native.wrapped import LlamaConfig
from bayesgeom.models.resolve import as_model, load
from bayesgeom.tasks.bijection import Bijection
from tests.ablations.plain import TASK, lively, n_hooks

TRIALS = TASK.sample(3, seed=0)


def errors(model: Model, targets: Targets = "sampled") -> np.ndarray:
    """Largest difference and largest relative difference, by identity."""
    wide = in_float64(model)
    _, layers = captured(wide, TRIALS if model.task is TASK else model.task.sample(3, seed=0), targets)  # type: ignore[union-attr]
    found = torch.stack([identity_errors(layer, wide.spec.score_scale) for layer in layers]).numpy()
    return np.stack([found[..., 0].max(axis=0), (found[..., 0] / found[..., 1]).max(axis=0)])


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_laws_hold_to_1e_10(positions: str, norm: str, tied: bool) -> None:
    found = errors(lively(positions=positions, norm=norm, tied=tied))
    assert found.shape == (2, len(IDENTITIES))
    assert (found < 1e-10).all()  # differences, and differences relative to the gradient; NaN would fail


def test_the_identities_hold_for_grouped_keys_where_defined() -> None:
    config = LlamaConfig(d_vocab=22, n_ctx=13, n_layers=2, n_heads=6, n_kv_heads=2, d_model=60, d_mlp=29)
    model = as_model(config.build(seed=0))
    model.task = TASK
    found = errors(model)
    asked = np.array([name != "scores" for name in IDENTITIES])  # a Hugging Face model has no point for them
    assert (found[:, asked] < 1e-10).all() and np.isnan(found[:, ~asked]).all()


def test_the_laws_hold_for_the_exact_targets_too() -> None:
    assert (errors(lively(), "exact") < 1e-10).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bijection-v20", "bijection-v20-repeats", "bijection-v20-llama", "hmm-s5"])
def test_the_laws_hold_on_the_shipped_checkpoints(name: str) -> None:
    found = errors(load(name))
    assert (found[~np.isnan(found)] < 1e-10).all()


def test_a_wrong_law_is_noticed() -> None:
    """Attention that is not what mixed the values, and a scale that is not the scores'."""
    wide = in_float64(lively())
    _, layers = captured(wide, TRIALS, "sampled")
    layer = layers[0]
    flat = torch.ones_like(layer.pattern).tril()
    wrong = dataclasses.replace(layer, pattern=flat / flat.sum(-1, keepdim=True))
    found = identity_errors(wrong, wide.spec.score_scale)
    assert bool((found[:, 0] > 1e-3 * found[:, 1]).all())
    scaled = identity_errors(layer, 2 * wide.spec.score_scale)
    at = [IDENTITIES.index(name) for name in ("queries", "keys")]
    torch.testing.assert_close(scaled[at, 0], scaled[at, 1])  # off by the whole gradient


def test_the_loss_is_the_one_of_training() -> None:
    """Beside torch's own cross-entropy, sequence by sequence."""
    logits = torch.randn(3, TRIALS.n_scored, 22, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, exact = TRIALS.at_scored(TRIALS.labels), TRIALS.at_scored(TRIALS.predictive)
    for row in range(3):
        sampled = torch.nn.functional.cross_entropy(logits[row], labels[row])
        wide = torch.zeros(TRIALS.n_scored, 22, dtype=torch.float64)
        wide[:, TRIALS.answers] = exact[row]
        soft = torch.nn.functional.cross_entropy(logits[row], wide)
        for targets, expected in (("sampled", sampled), ("exact", soft)):
            found = loss_nats(logits, TRIALS, targets)[row]  # type: ignore[arg-type]
            torch.testing.assert_close(found, expected)


def test_the_model_itself_is_left_alone() -> None:
    model = lively()
    before, hooks = copy.deepcopy(model.module.state_dict()), n_hooks(model.module)
    model.module.train()
    wide = in_float64(model)
    captured(wide, TRIALS, "sampled")
    assert n_hooks(model.module) == n_hooks(wide.module) == hooks and model.module.training
    for name, value in model.module.state_dict().items():
        assert value.dtype == torch.float32 and torch.equal(value, before[name])
    assert all(p.grad is None for p in [*model.module.parameters(), *wide.module.parameters()])


def test_hooks_go_also_after_an_exception() -> None:
    wide = in_float64(lively())
    hooks = n_hooks(wide.module)
    with pytest.raises(IndexError):
        captured(wide, Bijection(n_values=40, n_pairs=7).sample(2, seed=0), "sampled")  # ids that it has not
    assert n_hooks(wide.module) == hooks
