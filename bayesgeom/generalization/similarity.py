"""Linear CKA between layers of two models, with the unbiased estimator of HSIC.

CKA = Σ_b HSIC(K_b, L_b) / √(Σ_b HSIC(K_b, K_b) · Σ_b HSIC(L_b, L_b)), where K_b and L_b are the inner products of the
samples of batch b in the two layers, with the diagonal set to 0:

    HSIC(K, L) = [tr KL + 1ᵀK1 · 1ᵀL1 / ((n−1)(n−2)) − 2 · 1ᵀKL1 / (n−2)] / (n(n−3))

It is 1 for layers that are equal up to rotation, scale and shift, and 0 in expectation for independent ones, however
wide they are. The usual estimator is far above 0 for these where there are fewer samples than dimensions.

A sample is a sequence at one of its scored positions. Positions of a sequence are not independent, so a batch holds
every sequence once, at a random position, and the next batch at another one. Intervals leave out whole sequences.

References:
    Song et al. 2012, JMLR 13 (equation 5, the estimator).
    Kornblith et al. 2019, arXiv:1905.00414 (CKA); Nguyen, Raghu & Kornblith 2021, arXiv:2010.15327 (over batches).
"""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import N_RECORDED, RESID_POST, MissingSite, NoCopy, phase
from bayesgeom.models.base import Model
from bayesgeom.report.estimate import Estimate, of_untrained, smooth_estimate, stacked
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

N_BATCHES = 32  # positions of each sequence that are used, at most
_MOST = 1 - 1e-12
FEWEST = 5  # sequences: an interval leaves out one, and the estimator needs four
Cloud = Float[Tensor, "layer sequence position d"]


def layers_alike(
    models: Sequence[Model],
    pairs: Sequence[tuple[int, int]],
    task: WindTunnel,
    *,
    n: int,
    seed: int,
    n_untrained: int,
) -> Estimate:
    """Return the CKA of every two layers of each pair of models, by pair and layers; NaN where a model has fewer.

    The baseline is that of untrained networks of the same two architectures with different weights.

    Args:
        models: The models.
        pairs: Places of two models in `models`.
        task: The task, whose first `n` sequences are used, at most `N_RECORDED`.
        n: Number of sequences.
        seed: Seed of the sequences, positions and intervals.
        n_untrained: Number of untrained pairs. There is no baseline without any, or if no copy
            with `resid_post` can be made.
    """
    n, n_layers = min(n, N_RECORDED), max(model.spec.n_layers for model in models)

    def replicates(these: Sequence[Model]) -> list[Float64[np.ndarray, "replicate layer other_layer"]]:
        clouds = [_cloud(model, task, n, seed) for model in these]
        return [_padded(cka_replicates(clouds[a], clouds[b], seed=seed), n_layers) for a, b in pairs]

    trained, levels = replicates(models), list[list[np.ndarray]]()
    for index in range(n_untrained):
        first = len(models) * index  # every network has a seed of its own: two of one architecture differ
        with suppress(NoCopy, MissingSite):
            copies = [model.untrained_copy(first + at) for at, model in enumerate(models)]
            levels.append([values[0] for values in replicates(copies)])
    resamples, estimates = derived_seed(seed, Branch.RESAMPLING), list[Estimate]()
    for rows, *untrained in zip(trained, *levels, strict=True):
        baselines = of_untrained(untrained)
        cka = smooth_estimate(rows, seed=resamples, n=len(rows) - 1, scale="correlation", baselines=baselines)
        estimates.append(cka)
    return stacked(estimates)


def cka_replicates(
    a: Cloud, b: Float[Tensor, "other_layer sequence position other_d"], *, seed: int
) -> Float64[np.ndarray, "replicate layer other_layer"]:
    """Return the CKA of every two layers: of all sequences, then with each sequence left out.

    Args:
        a: Activations of one model.
        b: Those of another one at the same positions of the same sequences.
        seed: Seed of the positions.
    """
    n, n_pos = min(len(cloud[0]) for cloud in (a, b)), a.shape[2]  # memory may hold fewer of the larger model
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permuted(np.tile(np.arange(n_pos), (n, 1)), axis=1)[:, :N_BATCHES])
    products = list[tuple[Tensor, Tensor, Tensor]]()
    for at in order.T:
        one, other = (_products(cloud[:, torch.arange(n), at]) for cloud in (a, b))
        products.append((_hsic(one, other, "ab"), _hsic(one, one, "a"), _hsic(other, other, "b")))
    both, of_a, of_b = (torch.stack(terms).sum(dim=0) for terms in zip(*products, strict=True))
    scale = (of_a[:, :, None] * of_b[:, None, :]).sqrt()
    is_known = (of_a[:, :, None] > 0) & (of_b[:, None, :] > 0)  # an estimate of a variance of 0 may be negative
    # Just below 1 for equal layers, because an interval of a correlation is infinite at 1.
    return np.asarray(torch.where(is_known, both / scale, torch.nan).clamp(-_MOST, _MOST).numpy())


def _products(x: Float[Tensor, "layer sequence d"]) -> Float64[Tensor, "layer sequence other"]:
    """Return the inner products of all sequences, 0 on the diagonal; the mean, which changes nothing, is removed."""
    centered = x.double() - x.double().mean(dim=1, keepdim=True)
    gram = centered @ centered.mT
    return gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))


def _hsic(
    one: Float64[Tensor, "a i j"], other: Float64[Tensor, "b i j"], axes: str
) -> Float64[Tensor, "replicate *layers"]:
    """Return the unbiased HSIC up to a factor of n: of all sequences, then with each one left out.

    `axes` are those of the result: "ab" for every two layers, "a" or "b" for each layer with itself.
    """
    b, n = axes[-1], one.shape[1]
    a = axes[0]
    within = torch.einsum(f"{a}ij,{b}ij->i{axes}", one, other)
    rows, other_rows = one.sum(dim=2), other.sum(dim=2)
    inner = torch.einsum(f"{a}i,{b}i->i{axes}", rows, other_rows)
    around = torch.einsum(f"{a}j,{b}ij->i{axes}", rows, other) + torch.einsum(f"{a}ij,{b}j->i{axes}", one, other_rows)
    total, other_total = rows.sum(dim=1), other_rows.sum(dim=1)

    def hsic(trace: Tensor, sums: Tensor, crossed: Tensor, n: int) -> Tensor:
        return trace + sums / ((n - 1) * (n - 2)) - 2 * crossed / (n - 2)

    sums = torch.einsum(f"{a},{b}->{axes}", total, other_total)[None]
    whole = hsic(within.sum(dim=0, keepdim=True), sums, inner.sum(dim=0, keepdim=True), n)
    # A sequence left out is a row and a column of the products.
    sums = torch.einsum(f"{a}i,{b}i->i{axes}", total[:, None] - 2 * rows, other_total[:, None] - 2 * other_rows)
    crossed = inner.sum(dim=0) - around + within - inner
    return torch.cat([whole, hsic(within.sum(dim=0) - 2 * within, sums, crossed, n - 1)])


def _cloud(model: Model, task: WindTunnel, n: int, seed: int) -> Cloud:
    """Return `resid_post` of every layer at the scored positions."""
    with phase(f"layers of {model.spec.name}", n, "sequence"):
        blocks = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)
        run = model.run(blocks, record=(RESID_POST,), n_recorded=n)
    return run.at(RESID_POST).cpu()


def _padded(
    values: Float64[np.ndarray, "*replicate layer other_layer"], n_layers: int
) -> Float64[np.ndarray, "*replicate layer other_layer"]:
    """Return the values, NaN in layers that a model lacks."""
    missing = [(0, n_layers - size) for size in values.shape[-2:]]
    return np.pad(values, [(0, 0)] * (values.ndim - 2) + missing, constant_values=np.nan)
