"""Interventions through the Hugging Face path, on a tiny Llama with grouped keys: against formulas and plain hooks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom.core.errors import MissingSite
from bayesgeom.core.run import RESID_PRE, Site, Trials, Z
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.run import fit_subspace, intervene
from bayesgeom.models.base import Model
from bayesgeom.models.native.wrapped import LlamaConfig
from bayesgeom.models.resolve import as_model
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import kl_bits
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.base import Fit, InterventionSite, Subspace, span
from bayesgeom.subspaces.jacobian import N_LOGITS, N_SEQUENCES, jacobian_grams
from bayesgeom.tasks.base import derived_seed
from tests.families import ATTENTION, lively
from tests.interventions.worlds import TASK

N_LAYERS, N_HEADS, N_KV, D_HEAD, D_MODEL = 2, 6, 3, 10, 60
N = 13
FEW = Design(n_random=3, n_matched=2, n_control=5, n_untrained=0, n_fit=101)


def llama(dtype: torch.dtype = torch.float32) -> Any:
    """A Llama as transformers would load it, untrained, with weights large enough for every term to show."""
    sizes = {"n_layers": N_LAYERS, "n_heads": N_HEADS, "n_kv_heads": N_KV, "d_model": D_MODEL, "d_mlp": 29}
    hf = LlamaConfig(d_vocab=TASK.d_vocab, n_ctx=TASK.n_pos, **sizes).build(seed=0).whole
    return lively(hf).to(dtype).eval()


@pytest.fixture(scope="module")
def hf() -> Any:
    return llama()


@pytest.fixture(scope="module")
def model(hf: Any) -> Model:
    return as_model(hf)


def projector(subspace: Subspace) -> Tensor:
    return (subspace.basis @ subspace.basis.T).float()


@pytest.mark.parametrize("head", [0, 3, 5])
def test_frames_are_the_weights_own(hf: Any, model: Model, head: int) -> None:
    block, embed = hf.model.layers[1], hf.model.embed_tokens.weight.detach()[TASK.n_values :]
    attention, norm, kv = block.self_attn, block.input_layernorm.weight.detach(), head // (N_HEADS // N_KV)
    k, v = (p.weight.detach()[D_HEAD * kv : D_HEAD * (kv + 1)] for p in (attention.k_proj, attention.v_proj))
    o = attention.o_proj.weight.detach()[:, D_HEAD * head : D_HEAD * (head + 1)]
    normed = [norm * e / (e.square().mean() + 1e-5).sqrt() for e in embed]
    expected = {
        "embedding": embed,
        "keys": torch.stack([norm * (k.T @ (k @ e)) for e in normed]),
        "ov": torch.stack([o @ (v @ e) for e in normed]),
    }
    for kind, vectors in expected.items():
        place = {} if kind == "embedding" else {"head": head, "layer": 1}
        fit = fits.frame(kind, **place)  # type: ignore[arg-type]
        job = Intervention.of(model, TASK, fit, design=FEW, place=InterventionSite(), n=1, seed=0)
        found = fit.fitted(job.sample(), (0,))[0]
        own = span("own", vectors.T)
        assert found.rank == own.rank == (11 if kind == "embedding" else D_HEAD)
        torch.testing.assert_close(projector(found), projector(own), atol=1e-4, rtol=0)


def site_hook(hf: Any, site: Site, layer: int, change: Callable[[Tensor], Tensor]) -> Any:
    """A plain PyTorch hook where this Llama has `site`; `change` is given vectors, heads side by side."""
    block = hf.model.layers[layer]
    part = block if site == RESID_PRE else block.self_attn.o_proj
    return part.register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:]))


def plain_logits(hf: Any, trials: Trials, hook: Callable[[], Any] | None = None) -> Tensor:
    handle = None if hook is None else hook()
    with torch.no_grad():
        logits = hf(input_ids=trials.tokens, use_cache=False).logits
    if handle is not None:
        handle.remove()
    return trials.at_scored(logits)


def kept(hf: Any, trials: Trials, site: Site, layer: int) -> Tensor:
    """Vectors of every position."""
    found: list[Tensor] = []
    plain_logits(hf, trials, lambda: site_hook(hf, site, layer, lambda x: found.append(x) or x))
    return found[0]


def pooled_mean(hf: Any, job: Intervention, site: Site, layer: int) -> Tensor:
    """Mean over the fitting trials: one vector for scored positions, one for the others."""
    blocks = list(TASK.stream(256, seed=derived_seed(job.seed, 5)))
    mean = torch.cat([kept(hf, trials, site, layer) for trials in blocks]).mean(dim=0)
    is_scored = blocks[0].scored[0]
    rows = [mean[is_scored].mean(0) if scored else mean[~is_scored].mean(0) for scored in is_scored]
    return torch.stack(rows)


def mean_kl(logits: Tensor, trials: Trials, exact: Trials) -> float:
    log_answers, _ = answer_log_probabilities(logits, trials)
    return float(kl_bits(exact.at_scored(exact.predictive), log_answers).mean())


@pytest.mark.parametrize("site", [RESID_PRE, Z], ids=lambda site: site.name)
@pytest.mark.parametrize("kind", ["swap", "remove"])
def test_numbers_are_those_of_plain_hooks(hf: Any, model: Model, site: Site, kind: Any) -> None:
    fit, at, design = fits.decoder("belief"), InterventionSite(site, positions="all"), replace(FEW, kind=kind)
    report = intervene(model, TASK, fit, kind=design, sites=at, n=N)
    job = Intervention.of(model, TASK, fit, design=design, place=at, n=N, seed=0)
    ((originals, donors),) = job.pairs(N)
    for layer, subspace in fit.fitted(job.sample(), job.layers).items():
        p = projector(subspace)
        target = pooled_mean(hf, job, site, layer) if donors is None else kept(hf, donors, site, layer)
        conditions = (lambda x, p=p, t=target: x + (t - x) @ p), (lambda x, t=target: t.expand_as(x))
        found = [
            plain_logits(hf, originals, lambda c=change, i=layer: site_hook(hf, site, i, c)) for change in conditions
        ]
        before = mean_kl(plain_logits(hf, originals), originals, originals)
        increase, ceiling = (mean_kl(logits, originals, originals) - before for logits in found)
        assert report.kl_increase_bits.value[layer, 0] == pytest.approx(increase, abs=1e-5)
        assert report.kl_increase_bits.ceiling[layer, 0] == pytest.approx(ceiling, abs=1e-5)
        if donors is not None:
            level = mean_kl(found[0], originals, originals) - mean_kl(found[0], originals, donors)
            shift = report.answer_shift_bits.value[layer, 0] + report.unedited_answer_shift_bits[0]
            assert shift == pytest.approx(level, abs=1e-5)
    assert np.abs(report.kl_increase_bits.value).max() > 1e-3, "something changed"


def test_the_jacobian_is_autograds_from_the_embeddings_on(hf: Any, model: Model) -> None:
    """Of layer 0 the residual stream is what `inputs_embeds` gives: no hook is needed to know it."""
    trials = next(TASK.stream(3, seed=0))
    (gram,) = jacobian_grams(model, trials, RESID_PRE, (0,), seed=5).values()
    embeds = hf.model.embed_tokens(trials.tokens).detach().requires_grad_()
    logits = trials.at_scored(hf(inputs_embeds=embeds, use_cache=False).logits)[:, :, trials.answers]
    n_pairs = logits.shape[1] * logits.shape[2]
    assert n_pairs > N_LOGITS and len(trials) < N_SEQUENCES
    chosen = torch.randperm(n_pairs, generator=torch.Generator().manual_seed(5))[:N_LOGITS].tolist()
    expected = torch.zeros(D_MODEL, D_MODEL, dtype=torch.float64)
    for row in range(len(trials)):
        for pair in chosen:
            logit = logits[row, pair // logits.shape[2], pair % logits.shape[2]]
            (gradient,) = torch.autograd.grad(logit, embeds, retain_graph=True)
            expected += gradient[row].double().T @ gradient[row].double()
    torch.testing.assert_close(gram, expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


def test_frozen_weights_have_a_jacobian_too(hf: Any) -> None:
    trials = next(TASK.stream(3, seed=0))
    frozen, places = as_model(llama().requires_grad_(False)), (0, 1)
    expected = jacobian_grams(as_model(hf), trials, RESID_PRE, places, seed=5)
    found = jacobian_grams(frozen, trials, RESID_PRE, places, seed=5)
    for layer in places:
        torch.testing.assert_close(found[layer], expected[layer], atol=1e-6, rtol=1e-4)


FITS: list[Fit] = [
    fits.frame(),
    fits.frame("keys", head=4),
    fits.frame("ov", head=5),
    fits.entropy_axis(),
    fits.decoder("belief"),
    fits.top_jacobian(5),
    fits.random(3),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("fit", FITS, ids=lambda fit: fit.label)
def test_bfloat16_gives_what_float32_gives_to_its_rounding(model: Model, half: Model, fit: Fit) -> None:
    for kind in ("swap", "rotate"):
        exact, rough = (intervene(each, TASK, fit, kind=kind, n=7) for each in (model, half))  # type: ignore[arg-type]
        assert np.isfinite(rough.kl_increase_bits.value).all() and (exact.rank == rough.rank).all()
        np.testing.assert_allclose(rough.kl_increase_bits.ceiling, exact.kl_increase_bits.ceiling, atol=0.3)


@pytest.fixture(scope="module")
def half() -> Model:
    return as_model(llama(torch.bfloat16))


def attached(name: str) -> Model:
    import transformers

    torch.manual_seed(0)
    return as_model(lively(ATTENTION[name].build(transformers)))


@pytest.mark.parametrize(
    ("name", "fit", "message"),
    [
        ("gemma2", fits.frame("ov", head=1), r"frame \(ov of H1\) requires site 'W_O', .* \(norm after W_O"),
        (
            "bloom",
            fits.frame(),
            r"frame \(embedding\) requires site 'token_embeddings', .* \(resid_pre of layer 0 is no embedding\)",
        ),
        (
            "bloom",
            fits.frame("keys", head=1),
            r"requires site 'token_inputs', which BloomForCausalLM does not provide \(resid_pre",
        ),
    ],
)
def test_a_family_without_the_part_says_which(name: str, fit: Fit, message: str) -> None:
    with pytest.raises(MissingSite, match=message):
        fit_subspace(attached(name), TASK, fit)
