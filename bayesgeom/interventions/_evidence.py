"""Evidence reported with an effect: what is decodable from the site and the coordinates, and which tokens they span.

Decodability: R² of a linear map from a site to a quantity before and after an edit, with the level of shuffled values.
The map is fitted on one set of sequences and scored on another; the subspace was fitted on a third. On the sequences
that fitted the eraser, a map would find exactly nothing, whatever the eraser leaves on others.

Overlap: the share of a subspace that lies in the span of the hypothesis tokens' embeddings.

    overlap = ‖Fᵀ B‖² / r        B, F: orthonormal bases of the subspace (rank r) and of the span

This is the mean squared cosine of the principal angles: 1 inside the span, and k / d on average for a random subspace
if the span has k of d dimensions. If embeddings are tied to the output, logits are products with them, so the sensitive
directions of a late layer lie in their span by construction.

The overlap of a fitted subspace has no interval. At 32 sequences, as in a fit, the jackknife covers 58 to 87 % on
planted data (`benchmarks/interval_coverage.py --rows "before: overlap"`).

Reference: the J-lens note of Agarwal, Dalal & Misra's repository (overlap of J-space and embeddings).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core import BayesGeomError, phase
from bayesgeom.stats.regression import ridge, split_moments, squared_error
from bayesgeom.stats.subspace import random_subspaces, restricted
from bayesgeom.subspaces.base import Sample, Setting, Subspace
from bayesgeom.subspaces.fits import frame
from bayesgeom.subspaces.quantity import BELIEF, ENTROPY, PosteriorQuantity

STRENGTH, _TINY = 1e-9, 1e-60  # ridge penalty: small, so that directions of small variance are read, too
_VARIES = 1e-9  # a target with less variance than this, per point, does not vary
PERMUTATIONS, LEVEL = 40, 0.975
SLACK = 0.01  # share of the variance: the eraser is itself estimated, and leaves about 1 / n of it
FLOOR = 0.1  # ten times `SLACK`, so that complete erasure removes at least nine tenths of what was decodable


@final
@dataclass(frozen=True, kw_only=True)
class Erasure:
    """Held-out R² of the quantity from the whole site: unedited, edited, and edited with shuffled values."""

    before: float
    after: float
    permuted: float

    @property
    def is_complete(self) -> bool:
        """Whether R² after the edit is at most 0.01 above that of shuffled values (or above 0)."""
        return self.after <= max(self.permuted, 0.0) + SLACK

    @property
    def has_quantity(self) -> bool:
        """Whether the quantity is decodable before the edit; otherwise there is nothing to erase."""
        return self.before > max(self.permuted, 0.0) + SLACK

    @property
    def is_clearly_decodable(self) -> bool:
        """Whether R² before the edit is so high that erasing the quantity removes most of what was decodable."""
        return self.before >= max(self.permuted, 0.0) + FLOOR


def erasure(
    points: Float64[Tensor, "sequence position d"],
    values: Float64[Tensor, "sequence position component"],
    eraser: Subspace,
    *,
    n_fit: int,
    seed: int,
) -> Erasure:
    """Return R² before and after x − P (x − mean), and the 97.5 % quantile over `PERMUTATIONS` shuffles after it.

    The first `n_fit` sequences fit the read-out; the others score it.
    """
    generator = torch.Generator().manual_seed(seed)
    halves = values[:n_fit], values[n_fit:]
    shuffles = [tuple(_shuffled(part, generator) for part in halves) for _ in range(PERMUTATIONS)]
    before = _r2(points, None, [halves], n_fit)
    after = _r2(points, eraser, [halves, *shuffles], n_fit)
    return Erasure(before=float(before[0]), after=float(after[0]), permuted=float(after[1:].quantile(LEVEL)))


def _r2(
    points: Float64[Tensor, "sequence position d"],
    eraser: Subspace | None,
    targets: Sequence[tuple[Tensor, ...]],
    n_fit: int,
) -> Float64[Tensor, " target"]:
    """Return held-out R² for each pair of values; predicting the mean scores 0. NaN if held-out values never vary."""
    x, held_out_x = (part.flatten(0, 1) - points[:n_fit].mean(dim=(0, 1)) for part in (points[:n_fit], points[n_fit:]))
    if eraser is not None:
        x, held_out_x = (part - part @ eraser.reads.to(x) @ eraser.basis.to(x).T for part in (x, held_out_x))
    y, held_out_y = (torch.cat([values.flatten(0, 1) for values in part], dim=1) for part in zip(*targets, strict=True))
    errors = (held_out_y.cpu() - _predicted(x, y, held_out_x)).square()
    power = (held_out_y - y.mean(dim=0)).square().cpu()
    (error, spread) = (terms.unflatten(1, (len(targets), -1)).sum(dim=(0, 2)) for terms in (errors, power))
    return torch.where(spread > _VARIES * held_out_y.numel() / len(targets), 1 - error / spread, torch.nan)


def _predicted(
    x: Float64[Tensor, "fit_point d"], y: Float64[Tensor, "fit_point target"], held_out_x: Float64[Tensor, "point d"]
) -> Float64[Tensor, "point target"]:
    """Return the predictions of a ridge map with an intercept; NaN if an activation or a value is not finite."""
    from sklearn.linear_model import Ridge  # takes a second to load

    if not all(bool(values.isfinite().all()) for values in (x, y, held_out_x)):
        return torch.full((len(held_out_x), y.shape[1]), torch.nan, dtype=y.dtype)
    penalty = STRENGTH * float(x.square().sum()) / x.shape[1]  # a share of the mean eigenvalue of XᵀX
    fitted = Ridge(alpha=max(penalty, _TINY)).fit(x.cpu().numpy(), y.cpu().numpy())
    return torch.from_numpy(fitted.predict(held_out_x.cpu().numpy())).reshape(len(held_out_x), -1)


def _shuffled(
    values: Float64[Tensor, "sequence position component"], generator: torch.Generator
) -> Float64[Tensor, "sequence position component"]:
    """Permute whole sequences and rotate each by a random number of positions, so that position is no cue."""
    n, p, _ = values.shape
    turned = (torch.arange(p) + torch.randint(p, (n, 1), generator=generator)) % p
    order = torch.randperm(n, generator=generator)
    return values[order.to(values.device)[:, None], turned.to(values.device)]


_SCORED = 256  # sequences of the fitting sample used for the coordinates


@phase("read-outs after removal")
def erasures(
    sample: Sample, quantity: PosteriorQuantity, subspaces: Mapping[int, Subspace], *, n_held_out: int, seed: int
) -> dict[int, Erasure]:
    """Return R² of the quantity before and after each subspace is removed; the last sequences are held out."""
    values, by_layer, n_fit = quantity.exact(sample.run.trials), {}, len(sample.run.trials) - n_held_out
    for layer, subspace in subspaces.items():
        points = sample.points(layer).unflatten(0, tuple(values.shape[:2]))
        by_layer[layer] = erasure(points, values, subspace, n_fit=n_fit, seed=seed + layer)
    return by_layer


@phase("read-outs of the subspace")
def coordinate_r2(
    sample: Sample,
    read: Sample,
    subspaces: Mapping[int, Subspace],
    random: Mapping[int, Float64[Tensor, "draw d r"]],
    *,
    n_held_out: int,
) -> dict[int, dict[str, Float64[np.ndarray, " subspace"]]]:
    """Return held-out R² of entropy and belief from coordinates, of the subspace first, then of the random ones."""
    by_layer, n_scored = dict[int, dict[str, np.ndarray]](), read.run.trials.n_scored
    first, last = slice(min(_SCORED, sample.run.n_recorded) * n_scored), slice(-n_held_out * n_scored, None)
    targets = {
        name: (sample.values(quantity)[first], read.values(quantity)[last])
        for name, quantity in (("entropy", ENTROPY), ("belief", BELIEF))
    }
    for layer, subspace in subspaces.items():
        points, held_out = sample.points(layer)[first], read.points(layer)[last]
        frame = torch.linalg.qr(subspace.reads.to(random[layer])).Q  # orthonormal
        bases = torch.cat([frame[None], random[layer]])
        by_layer[layer] = {
            name: decoded_r2((points, fit_target), (held_out, held_out_target), bases).numpy()
            for name, (fit_target, held_out_target) in targets.items()
        }
    return by_layer


def decoded_r2(
    fit: tuple[Float64[Tensor, "fit_point d"], Float64[Tensor, "fit_point target"]],
    held_out: tuple[Float64[Tensor, "held_point d"], Float64[Tensor, "held_point target"]],
    bases: Float64[Tensor, "draw d rank"],
) -> Float64[Tensor, " draw"]:
    """Return R² = 1 − Σ (y − ŷ)² / Σ (y − ȳ)² on the held-out points, with ŷ a ridge map of each basis's coordinates.

    ȳ is the mean of the fitting points, so predicting the mean scores 0. NaN if the target does not vary.
    """
    (points, targets), (held_out_points, held_out_targets) = fit, held_out
    moments = split_moments(
        torch.cat([points, held_out_points]) - points.mean(dim=0),
        torch.cat([targets, held_out_targets]) - targets.mean(dim=0),
        len(points),
    )
    power = float(moments.score_power.sum())
    if power < _VARIES * held_out_targets.numel():
        return torch.full((len(bases),), torch.nan, dtype=torch.float64)
    bases = bases.to(points)
    weights = ridge(restricted(moments.fit_gram, bases), bases.mT @ moments.fit_cross)
    errors = squared_error(
        weights, restricted(moments.score_gram, bases), bases.mT @ moments.score_cross, moments.score_power
    )
    return 1 - errors.sum(dim=-1).cpu() / power


DRAWS = 1_000


def overlaps(
    setting: Setting, sample: Sample, subspaces: Mapping[int, Subspace], *, seed: int
) -> dict[int, tuple[float, float, float]]:
    """Return the overlap in each layer, then mean and maximum over `DRAWS` random subspaces of the same rank.

    Empty if the site or the task has no such span.
    """
    embedding = frame()
    try:
        embedding.check(setting)
    except BayesGeomError:
        return {}
    by_layer = {}
    for layer, span in embedding.fitted(sample, tuple(subspaces)).items():
        inside, subspace = span.basis.double(), subspaces[layer]
        random = random_subspaces(subspace.width, subspace.rank, draws=DRAWS, seed=seed)
        chance = (inside.cpu().T @ random).square().sum(dim=(1, 2)) / subspace.rank
        overlap = float((inside.T @ subspace.basis.to(inside)).square().sum()) / subspace.rank
        by_layer[layer] = overlap, float(chance.mean()), float(chance.max())
    return by_layer
