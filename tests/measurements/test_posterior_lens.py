"""Posterior lens, against a plain loop over stages, sequences and positions, and the arrival rule by hand."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bayesgeom.core.run import LOGIT_LENS, RESID_POST, RESID_PRE, Run
from bayesgeom.measurements.base import planted_run, planted_trials
from bayesgeom.measurements.posterior_lens import PosteriorLens, PosteriorLensReport
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.models.resolve import as_model
from bayesgeom.stats.behavior import POSITION, UNIFORM
from bayesgeom.tasks.bijection import Bijection
from tests.supported import tiny
from tests.weights import perturbed

TASK = Bijection(n_values=7, n_pairs=5, repeats=True)
N, D = 11, 17  # sequences; dimensions of the residual stream
TOLERANCE = 1e-6  # bits: logits of order 10 in float32, whose error a mean over positions of both signs reduces


@dataclass(frozen=True, kw_only=True)
class End:
    """What a model does after its last block, in numpy."""

    weight: np.ndarray
    bias: np.ndarray
    is_centered: bool
    epsilon: float
    matrix: np.ndarray
    cap: float | None = None

    def logits(self, x: np.ndarray, *, with_norm: bool = True) -> np.ndarray:
        if with_norm:
            x = x - x.mean() if self.is_centered else x
            x = x / math.sqrt((x * x).mean() + self.epsilon) * self.weight + self.bias
        logits = np.array([sum(row * x) for row in self.matrix])
        return logits if self.cap is None else self.cap * np.tanh(logits / self.cap)


def array(values: torch.Tensor) -> np.ndarray:
    return np.asarray(values.detach().double().numpy())


def transformer(norm: str) -> tuple[nn.Module, End]:
    sizes = {"d_vocab": TASK.d_vocab, "n_ctx": TASK.n_pos, "n_layers": 3, "n_heads": 1, "d_model": D, "d_mlp": 13}
    module = perturbed(TransformerConfig(**sizes, norm=norm).build(seed=0), 0.3)
    assert isinstance(module, Transformer)
    own = module.ln_final
    bias = array(own.b) if own.is_layernorm else np.zeros(D)
    matrix = array(module.embed.weight)
    return module, End(weight=array(own.w), bias=bias, is_centered=own.is_layernorm, epsilon=1e-5, matrix=matrix)


def capped() -> tuple[nn.Module, End]:
    """A small Gemma 2, whose logits are capped."""
    hf: Any = perturbed(tiny("gemma2").eval(), 0.3)
    width = hf.config.hidden_size
    end = End(
        weight=1 + array(hf.model.norm.weight),
        bias=np.zeros(width),
        is_centered=False,
        epsilon=hf.config.rms_norm_eps,
        matrix=array(hf.lm_head.weight),
        cap=hf.config.final_logit_softcapping,
    )
    return hf, end


ENDS = {"layernorm": transformer, "rmsnorm": transformer, "soft cap": lambda _: capped()}


def slow_kl_bits(
    run: Run, end: End, *, first_stage: int = 0, with_norm: bool = True, over_answers: bool = True
) -> np.ndarray:
    """KL(exact ‖ lens) by stage and scored position: the stream before each layer, then after the last one."""
    stream = [*run.at(RESID_PRE), run.at(RESID_POST)[-1]][first_stage:]
    answers, exact = run.trials.answers.tolist(), array(run.trials.at_scored(run.trials.predictive))
    kl = np.zeros((len(stream), *exact.shape[:2]))
    for stage, resid in enumerate(stream):
        for sequence, at in np.ndindex(*exact.shape[:2]):  # only scored positions are recorded
            logits = end.logits(array(resid[sequence, at]), with_norm=with_norm)
            total = math.log(sum(math.exp(one) for one in (logits[answers] if over_answers else logits)))
            for p, logit in zip(exact[sequence, at], logits[answers], strict=True):
                kl[stage, sequence, at] += p * (math.log(p) - logit + total) / math.log(2) if p > 0 else 0.0
    return kl.mean(axis=1)


@pytest.fixture(params=ENDS, scope="module")
def lens(request: pytest.FixtureRequest) -> tuple[PosteriorLensReport, Run, End]:
    module, end = ENDS[request.param](request.param)
    trials = TASK.sample(N, seed=1)
    run = as_model(module).run([trials], record=[LOGIT_LENS, RESID_PRE, RESID_POST], n_recorded=N)
    return PosteriorLens().measure(run), run, end


def test_the_lens_is_the_slow_one(lens: tuple[PosteriorLensReport, Run, End]) -> None:
    report, run, end = lens
    slow = slow_kl_bits(run, end)
    np.testing.assert_allclose(report.kl_bits_by_position, slow, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(report.kl_bits.value, slow.mean(axis=1), rtol=TOLERANCE, atol=TOLERANCE)


def test_a_naive_lens_reads_something_else(lens: tuple[PosteriorLensReport, Run, End]) -> None:
    report, run, end = lens
    after = slow_kl_bits(run, end, first_stage=1)  # the stream after each layer, named as if before it
    wrong = {
        "a layer too late": after - report.kl_bits_by_position[:-1],
        "without the norm": slow_kl_bits(run, end, with_norm=False) - report.kl_bits_by_position,
        "over the whole vocabulary": slow_kl_bits(run, end, over_answers=False) - report.kl_bits_by_position,
    }
    if end.cap is not None:
        without = End(**{**vars(end), "cap": None})
        wrong["without the cap"] = slow_kl_bits(run, without) - report.kl_bits_by_position
    assert {name: float(np.abs(each).max()) > 0.01 for name, each in wrong.items()} == dict.fromkeys(wrong, True)


def test_a_last_block_that_adds_nothing_changes_nothing_and_the_one_before_does() -> None:
    module, _ = transformer("rmsnorm")
    assert isinstance(module, Transformer)
    with torch.no_grad():
        for name in ("attn.W_O.weight", "mlp.W_out.weight", "mlp.W_out.bias"):
            module.blocks[2].get_parameter(name).zero_()
    run = as_model(module).run([TASK.sample(N, seed=1)], record=[LOGIT_LENS], n_recorded=N)
    kl = PosteriorLens().measure(run).kl_bits.value
    assert kl[2] == pytest.approx(kl[3], abs=TOLERANCE) and abs(kl[1] - kl[3]) > 0.01


def mixed_run(shares: list[float], rng: np.random.Generator) -> tuple[Run, np.ndarray]:
    """A run whose stages mix the exact posterior with the uniform prediction; the last one is the model."""
    exact = rng.dirichlet(np.full(5, 0.4), size=(N, 3)) * np.array([3, 1, 1, 1, 1])  # the position is informative
    exact /= exact.sum(axis=2, keepdims=True)
    stages = [share * exact + (1 - share) / 5 for share in shares]
    trials = planted_trials(exact, rng.integers(7, size=(N, 13)))
    recorded = {LOGIT_LENS: torch.from_numpy(np.log(np.stack(stages[:-1])))}
    return planted_run(trials, recorded, model=torch.from_numpy(stages[-1])), exact


def slow_arrival(run: Run, exact: np.ndarray) -> tuple[float, dict[str, float]]:
    """The first stage from which every KL is below a tenth of the better context-free predictor's; its levels."""

    def mean_kl(predicted: np.ndarray) -> float:
        total = 0.0
        for sequence in range(N):
            for at in range(exact.shape[1]):
                for p, q in zip(exact[sequence, at], predicted[sequence, at], strict=True):
                    total += p * math.log2(p / q)
        return total / (N * exact.shape[1])

    position = (exact.sum(axis=0) - exact / 2) / (N - 0.5)  # a sequence has half its weight in what predicts it
    levels = {UNIFORM: mean_kl(np.full_like(exact, 0.2)), POSITION: mean_kl(position)}
    kl = [mean_kl(np.exp(array(own))) for own in (*run.at(LOGIT_LENS), run.log_answers)]
    arrived = [stage for stage in range(len(kl)) if all(own < min(levels.values()) / 10 for own in kl[stage:])]
    return (arrived[0] if arrived else math.nan), levels


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.0, 0.2, 0.95, 0.99, 1.0], 2),
        ([0.0, 0.97, 0.2, 0.98, 1.0], 3),  # it is lost again: a first crossing says 1
        ([1.0, 1.0, 1.0], 0),
        ([1.0, 0.99, 0.5], math.nan),
        ([0.0, 0.3, 0.785, 0.95], 3),  # a tenth of the uniform prediction's KL would say 2
    ],
)
def test_the_posterior_arrives_by_the_rule(shares: list[float], expected: float, rng: np.random.Generator) -> None:
    run, exact = mixed_run(shares, rng)
    report = PosteriorLens().measure(run)
    at, levels = slow_arrival(run, exact)
    for name, level in levels.items():
        np.testing.assert_allclose(report.kl_bits.baseline(name).value, level, rtol=0, atol=TOLERANCE)
    assert report.threshold_bits == pytest.approx(min(levels.values()) / 10, abs=TOLERANCE)
    assert levels[POSITION] < levels[UNIFORM]
    np.testing.assert_equal(float(report.arrival.value), at)
    np.testing.assert_equal(at, expected)
