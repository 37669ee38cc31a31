"""R² of a linear map from a site to a quantity before and after an edit, with the level of shuffled values.

The map is fitted on one set of sequences and scored on another; the subspace was fitted on a third. On the sequences
that fitted the eraser, a map would find exactly nothing, whatever the eraser leaves on others.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.stats.regression import ridge
from bayesgeom.subspaces.subspace import Subspace

STRENGTH = 1e-9  # ridge penalty: small, so that directions of small variance are read, too
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
    y = torch.stack([values.flatten(0, 1) for values, _ in targets])
    held_out_y = torch.stack([values.flatten(0, 1) for _, values in targets])
    center = y.mean(dim=1, keepdim=True)
    cross = torch.cat(list(x.T @ (y - center)), dim=1)
    predicted = (held_out_x @ ridge(x.T @ x, cross, strength=STRENGTH)).unflatten(1, (len(targets), -1)).movedim(1, 0)
    power = (held_out_y - center).square().sum(dim=(1, 2))
    errors = (held_out_y - center - predicted).square().sum(dim=(1, 2))
    return torch.where(power > 1e-9 * held_out_y[0].numel(), 1 - errors / power, torch.nan).cpu()


def _shuffled(
    values: Float64[Tensor, "sequence position component"], generator: torch.Generator
) -> Float64[Tensor, "sequence position component"]:
    """Permute whole sequences and rotate each by a random number of positions, so that position is no cue."""
    n, p, _ = values.shape
    turned = (torch.arange(p) + torch.randint(p, (n, 1), generator=generator)) % p
    order = torch.randperm(n, generator=generator)
    return values[order.to(values.device)[:, None], turned.to(values.device)]
