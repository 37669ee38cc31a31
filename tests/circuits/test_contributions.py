"""Direct contributions: they sum to the logits of every family, and tell what writes the answer from what is read."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom import tasks
from bayesgeom.circuits.direct import ContributionsReport
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.models.base import Model
from bayesgeom.models.native.lstm import LSTMConfig
from bayesgeom.models.native.mamba import MambaConfig
from bayesgeom.models.resolve import as_model
from bayesgeom.report.estimate import Estimate
from bayesgeom.report.findings import Finding, sentence
from bayesgeom.tasks.base import Branch, derived_seed
from tests.families import each
from tests.models.huggingface.test_unembedding import attached
from tests.models.test_unembedding import transformer
from tests.models.test_wrap import gpt
from tests.supported import FAMILIES, tiny

TASK, NARROW = tasks.Bijection(n_values=7, n_pairs=3), tasks.Bijection(n_values=5, n_pairs=3)


def own_logits(model: Model, report: ContributionsReport, task: tasks.Bijection = TASK) -> np.ndarray:
    """The centered logits of the report's example in bits, from a plain pass."""
    first = next(task.stream(report.n, seed=derived_seed(0, Branch.TRIALS))).rows(slice(0, 1))
    with torch.no_grad():
        logits = model.logits(first)[0, report.example_position - 1, first.answers].double().numpy()
    return np.asarray((logits - logits.mean()) / np.log(2))


def assert_sums_to_the_logits(
    model: Model, task: tasks.Bijection = TASK, *, tolerance: float = 1e-5
) -> ContributionsReport:
    report = bayesgeom.contributions(model, task, n=9)
    cap = unembedding.soft_cap if (unembedding := model.unembedding()) is not None else None
    logits = own_logits(model, report, task)
    scale = np.abs(logits).max()
    np.testing.assert_allclose(report.example.sum(axis=0), report.example_logits, atol=1e-9 * scale)
    if cap is None:
        np.testing.assert_allclose(report.example_logits, logits, atol=tolerance * scale)
    return report


@pytest.mark.parametrize("kinds", [{}, {"tied": False, "positions": "rotary"}, {"norm": "layernorm"}])
def test_terms_of_native_transformers(kinds: dict[str, Any]) -> None:
    report = assert_sums_to_the_logits(as_model(transformer(**kinds)))
    assert ("positions" in report.components) == ("positions" not in kinds)
    # KL without a term, by hand: the model's logits minus the term plus its mean.
    assert float(report.kl_increase_bits.value[-1]) == pytest.approx(0, abs=1e-6)  # biases do not vary


def test_where_no_part_helps_the_one_that_harms_most_is_named() -> None:
    report = bayesgeom.contributions(as_model(transformer()), TASK, n=9)
    assert [level.name for level in report.unchanged_kl_bits.compared] == ["uniform", "position alone"]
    own = -np.arange(len(report.components))[::-1] / 10  # biases, the last of them, have no effect at all
    lost = Estimate.of(own, (1.2 * own, 0.8 * own), n=64, baselines=report.kl_increase_bits.baselines)
    changed = replace(report, kl_increase_bits=lost)
    first, answer = changed.headlines()[0], changed.answer()
    assert (first.label, first.value) == ("largest change: embedding", own[0])
    assert answer.finding is Finding.NONE_MATTER and answer.values["name"] == "embedding"
    assert sentence(answer).startswith(f"None of {len(own)} direct terms is shown to matter: without embedding, KL")
    raised = replace(report, kl_increase_bits=lost.mapped(np.negative))
    raised = replace(raised, kl_increase_bits=replace(raised.kl_increase_bits, low=-0.8 * own, high=-1.2 * own))
    assert raised.answer().finding is Finding.LARGEST_TERM and "most bits lost: embedding" in str(raised)


@pytest.mark.parametrize("name", each([own for own in FAMILIES if own != "rwkv"]))
def test_terms_of_every_family(name: str) -> None:
    assert_sums_to_the_logits(attached(tiny(name)))


def test_a_network_that_rescales_its_stream_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"updates of the layers of RwkvForCausalLM do not add up .* `ablate`"):
        bayesgeom.contributions(attached(tiny("rwkv")), TASK, n=9)


def test_bits_lost_by_hand() -> None:
    module, n = transformer(), 9
    report = bayesgeom.contributions(module, TASK, n=n)
    trials, others = (next(TASK.stream(k, seed=derived_seed(0, branch))) for k, branch in ((n, 0), (128, 3)))
    rest = list(TASK.stream(256, seed=derived_seed(0, 3)))[1]
    answers, head = trials.answers, ("blocks.1.attn.hook_z", module.get_parameter("blocks.1.attn.W_O.weight"))

    def term(tokens: torch.Tensor) -> torch.Tensor:
        """What head 0 of layer 1 adds to the logits, with the RMS of the last residual held fixed."""
        _, cache = module.run_with_cache(tokens)
        last = cache["blocks.2.hook_resid_post"]
        rms = (last.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        logits = (cache[head[0]][:, :, 0] @ head[1].T / rms * module.ln_final.w) @ module.embed.weight[answers].T
        return (logits - logits.mean(-1, keepdim=True))[:, ::2]

    with torch.no_grad():
        mean = torch.cat([term(own.tokens) for own in (others, rest)]).mean(0)
        logits = module(trials.tokens)[:, ::2, answers]
        exact = trials.at_scored(trials.predictive)
        changed, plain = (
            (own.double().log_softmax(-1) * exact).sum(-1) for own in (logits - term(trials.tokens) + mean, logits)
        )
    at = report.components.index("L1H0")
    expected = float((plain - changed).mean()) / np.log(2)
    assert float(report.kl_increase_bits.value[at]) == pytest.approx(expected, abs=1e-7)
    with torch.no_grad():
        toward = float((exact * term(trials.tokens)).sum(-1).mean()) / np.log(2)
    assert float(report.toward_exact_bits.value[at]) == pytest.approx(toward, abs=1e-7)


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_in_bfloat16(name: str) -> None:
    assert_sums_to_the_logits(attached(tiny(name).to(torch.bfloat16)), tolerance=0.05)


@pytest.mark.parametrize("kind", [LSTMConfig, MambaConfig])
def test_recurrent_networks_have_blocks(kind: Any) -> None:
    module = kind(d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, n_layers=2, d_model=22).build(seed=0)
    report = assert_sums_to_the_logits(as_model(module))
    assert report.components == ("embedding", "L0 block", "L1 block", "biases")


@pytest.mark.parametrize("order", ["pre", "parallel"])
def test_a_wrapped_module_has_heads_where_they_are_declared(order: str) -> None:
    report = assert_sums_to_the_logits(gpt(order)[1], NARROW)
    assert report.components == ("embedding", "L0H0", "L0H1", "L0 mlp", "L1H0", "L1H1", "L1 mlp", "biases")


def test_norms_of_the_stream_itself_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="do not add up to its last residual"):
        bayesgeom.contributions(gpt("post", norms=("ln_1", "ln_2"))[1], NARROW, n=9)


def test_refusals() -> None:
    model = as_model(transformer())
    with pytest.raises(InvalidArgument, match="n, the number of sequences to draw, must be a positive integer, got 0"):
        bayesgeom.contributions(model, TASK, n=0)
    with pytest.raises(MissingSite, match=r"contributions requires site 'logit_lens', which .* does not provide"):
        bayesgeom.contributions(lambda ids: torch.zeros(*ids.shape, 97), TASK)
