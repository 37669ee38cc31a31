"""R² of a linear map from a site to a quantity before and after an edit, with the level of shuffled values.

The map is fitted on one set of sequences and scored on another; the subspace was fitted on a third. On the sequences
that fitted the eraser, a map would find exactly nothing, whatever the eraser leaves on others.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.subspaces.subspace import Subspace

STRENGTH, _TINY = 1e-9, 1e-60  # ridge penalty: small, so that directions of small variance are read, too
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


@final
@dataclass(frozen=True, kw_only=True)
class Read:
    """Activations and the quantity of some sequences."""

    points: Float64[Tensor, "sequence position d"]
    values: Float64[Tensor, "sequence position component"]


def erasure(fit: Read, held_out: Read, eraser: Subspace, *, seed: int) -> Erasure:
    """Return R² before and after x − P (x − mean), and the 97.5 % quantile over `PERMUTATIONS` shuffles after it."""
    generator = torch.Generator().manual_seed(seed)
    before = _r2(fit, held_out, None, [(fit.values, held_out.values)])
    shuffles = [(_shuffled(fit.values, generator), _shuffled(held_out.values, generator)) for _ in range(PERMUTATIONS)]
    after = _r2(fit, held_out, eraser, [(fit.values, held_out.values), *shuffles])
    return Erasure(before=float(before[0]), after=float(after[0]), permuted=float(after[1:].quantile(LEVEL)))


def _r2(
    fit: Read, held_out: Read, eraser: Subspace | None, targets: list[tuple[Tensor, Tensor]]
) -> Float64[Tensor, " target"]:
    """Return held-out R² for each pair of values; predicting the mean scores 0. NaN if held-out values never vary."""
    mean = fit.points.mean(dim=(0, 1))
    x, held_out_x = (read.points.flatten(0, 1) - mean for read in (fit, held_out))
    if eraser is not None:
        reads, basis = eraser.reads.to(x), eraser.basis.to(x)
        x, held_out_x = x - x @ reads @ basis.T, held_out_x - held_out_x @ reads @ basis.T
    y = torch.cat([values.flatten(0, 1) for values, _ in targets], dim=1)
    held_out_y = torch.cat([values.flatten(0, 1) for _, values in targets], dim=1)
    errors = (held_out_y.cpu() - _predicted(x, y, held_out_x)).square()
    power = (held_out_y - y.mean(dim=0)).square().cpu()
    (error, spread) = (terms.unflatten(1, (len(targets), -1)).sum(dim=(0, 2)) for terms in (errors, power))
    return torch.where(spread > 1e-9 * held_out_y.numel() / len(targets), 1 - error / spread, torch.nan)


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
