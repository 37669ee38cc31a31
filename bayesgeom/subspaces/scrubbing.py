"""Concept scrubbing: erasers of a quantity, fitted layer after layer on the residual stream with all earlier edits.

At a scored position the erased quantity is that of the position. At other positions it is that of the next and of the
previous scored position, because either may be stored there.

Reference: Belrose et al. 2023, arXiv:2306.03819, section 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from bayesgeom.core.edits import Edit, Reference
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Site, Trials
from bayesgeom.core.torch_state import Change, alone
from bayesgeom.models.base import Model, hooked_sites
from bayesgeom.stats.subspace import covariance, random_subspaces
from bayesgeom.subspaces.erasers import JointMoments, covariance_subspace, leace_subspace
from bayesgeom.subspaces.matching import matched_subspaces
from bayesgeom.subspaces.quantity import Quantity
from bayesgeom.subspaces.readout import Erasure, Read, erasure
from bayesgeom.subspaces.subspace import Subspace
from bayesgeom.tasks.base import derived_seed


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class EraseByRole(Edit):
    """x − P (x − mean), with one eraser P and mean for scored positions and, optionally, another for the rest."""

    site: Site
    layer: int
    scored: tuple[Subspace, Float64[Tensor, " d"]]
    others: tuple[Subspace, Float64[Tensor, " d"]] | None
    mask: Bool[Tensor, " pos"]
    name: str

    @property
    def label(self) -> str:
        return f"erase {self.name} at L{self.layer} {self.site.name}"

    def applied(self, values: Shaped[Tensor, "..."], reference: Reference) -> Shaped[Tensor, "..."]:
        edited, mask = values.clone(), self.mask.to(values.device)
        if values.shape[1] != len(mask):  # values hold the scored positions only
            mask = mask[mask]
        for role, eraser in ((mask, self.scored), (~mask, self.others)):
            if eraser is not None and bool(role.any()):
                subspace, mean = eraser
                part = values[:, role]
                away = (part - mean.to(part)) @ subspace.reads.to(part) @ subspace.basis.to(part).T
                edited[:, role] = part - away
        return edited


@final
@dataclass(frozen=True, kw_only=True)
class Targets:
    """The quantity for each role: at scored positions its value, at the others the next and the previous value."""

    scored: Float64[Tensor, "point component"]
    others: Float64[Tensor, "other_point both"]

    @classmethod
    def of(cls, trials: Trials, quantity: Quantity) -> "Targets":
        """Return the targets; before the first and after the last scored position, missing values are the mean."""
        exact, positions = quantity.exact(trials), trials.scored_positions()[0].contiguous()
        elsewhere = (~trials.scored[0]).nonzero()[:, 0].contiguous()
        upcoming = torch.searchsorted(positions, elsewhere)
        parts = [_taken(exact, upcoming), _taken(exact, upcoming - 1)]
        return cls(scored=exact.flatten(0, 1), others=torch.cat(parts, dim=-1).flatten(0, 1))


def _taken(
    exact: Float64[Tensor, "batch query_pos component"], index: Int64[Tensor, " other"]
) -> Float64[Tensor, "batch other component"]:
    there = (index >= 0) & (index < exact.shape[1])
    mean = exact.mean(dim=(0, 1))
    return torch.where(there[:, None], exact[:, index.clamp(0, exact.shape[1] - 1)], mean)


@final
@dataclass(frozen=True, kw_only=True)
class Scrubbed:
    """Erasers by layer, the R² of a linear read-out before and after each, and covariances.

    Args:
        covariances: by layer, of the layer's input: at scored positions and at the others.
    """

    edits: Mapping[int, EraseByRole]
    erasures: Mapping[int, Erasure]
    covariances: Mapping[int, tuple[Float64[Tensor, "d d"], Float64[Tensor, "d d"] | None]]


@final
@dataclass(frozen=True, kw_only=True)
class Scrubber:
    """Fits the erasers of a quantity in one pass, each on the residual stream with all earlier edits.

    The first `n_fit` sequences fit the erasers, the next `n_read` fit the read-out, and the rest score it.
    """

    model: Model
    site: Site
    quantity: Quantity
    oblique: bool
    n_fit: int
    n_read: int

    @property
    def name(self) -> str:
        """Label of the eraser in reports."""
        return f"{'LEACE' if self.oblique else 'covariance'} ({self.quantity.label})"

    @alone("model.module")
    @torch.no_grad()
    def from_layer(self, trials: Trials, first: int, *, seed: int) -> Scrubbed:
        """Erase in every layer from `first` on.

        Raises:
            InvalidArgument: The activations of a layer do not vary with the quantity.
        """
        edits, erasures = dict[int, EraseByRole](), dict[int, Erasure]()
        covariances = dict[int, tuple[Tensor, Tensor | None]]()
        values = self.quantity.exact(trials)

        def acting(layer: int) -> Change:
            def act(output: Tensor) -> Tensor:
                edits[layer] = edit = self._eraser(trials, output, layer)
                few, mask = output[: self.n_fit], trials.scored[0]
                covariances[layer] = (_spread(few[:, mask]), None if mask.all() else _spread(few[:, ~mask]))
                points = trials.at_scored(output).double()
                fit, held_out = (
                    Read(points=points[rows], values=values[rows])
                    for rows in (slice(self.n_fit, self.n_fit + self.n_read), slice(self.n_fit + self.n_read, None))
                )
                erasures[layer] = erasure(fit, held_out, edit.scored[0], seed=seed + layer)
                return edit.applied(output, _NOTHING)

            return act

        layers = range(first, self.model.spec.n_layers)
        with hooked_sites(self.model, {(self.site, layer): acting(layer) for layer in layers}):
            self.model.logits(trials)
        return Scrubbed(edits=edits, erasures=erasures, covariances=covariances)

    def _eraser(self, trials: Trials, output: Float[Tensor, "batch pos d"], layer: int) -> EraseByRole:
        few, mask = trials.rows(slice(0, self.n_fit)), trials.scored[0]
        values, targets = output[: self.n_fit], Targets.of(few, self.quantity)
        own = self._one(values[:, mask], targets.scored)
        if own is None:
            raise InvalidArgument(
                f"nothing in layer {layer} varies with the {self.quantity.label}. Start from a later layer."
            )
        others = self._one(values[:, ~mask], targets.others)
        return EraseByRole(site=self.site, layer=layer, scored=own, others=others, mask=mask, name=self.name)

    def _one(
        self, values: Float[Tensor, "batch pos d"], target: Float64[Tensor, "point component"]
    ) -> tuple[Subspace, Float64[Tensor, " d"]] | None:
        """Return the eraser and the mean of one role; None if there is nothing to erase."""
        points = values.flatten(0, 1).double()
        if not len(points) or float((points - points.mean(dim=0)).abs().max()) < 1e-6 * float(points.abs().max()):
            return None
        if float((target - target.mean(dim=0)).abs().max()) < 1e-9:
            return None
        make = leace_subspace if self.oblique else covariance_subspace
        return make(self.name, JointMoments.of(points, target)), points.mean(dim=0)


def like_erasers(scrubbed: Scrubbed, *, seed: int) -> list[EraseByRole]:
    """Return erasers of random subspaces of the same ranks, at the same layers and about the same means."""
    found = []
    for layer, edit in scrubbed.edits.items():
        roles = [
            None if role is None else (_random_like(role[0], derived_seed(seed, layer, index)), role[1])
            for index, role in enumerate((edit.scored, edit.others))
        ]
        assert roles[0] is not None, "scored positions always have an eraser"
        found.append(replace(edit, scored=roles[0], others=roles[1], name="a random subspace"))
    return found


def matched_erasers(scrubbed: Scrubbed, *, draws: int, seed: int) -> tuple[list[list[EraseByRole]], bool]:
    """Return `draws` sets of erasers of subspaces with the same share of variance, with the same layers and means.

    Returns:
        The sets, and whether the shares agree in every layer at scored positions. If no distinct subspaces have as
        much variance as the eraser's own subspace, every set uses the whole complement.
    """
    sets: list[list[EraseByRole]] = [[] for _ in range(draws)]
    is_matched = True
    for layer, edit in scrubbed.edits.items():
        roles: list[list[tuple[Subspace, Float64[Tensor, " d"]] | None]] = []
        for index, (role, spread) in enumerate(
            zip((edit.scored, edit.others), scrubbed.covariances[layer], strict=True)
        ):
            if role is None or spread is None:
                roles.append([None] * draws)
                continue
            found = matched_subspaces(role[0], spread, draws=draws, seed=derived_seed(seed, layer, index))
            is_matched &= found.is_matched or index > 0
            bases = [found.bases[number % len(found.bases)] for number in range(draws)]
            roles.append([(Subspace("a matched subspace", basis), role[1]) for basis in bases])
        for own, at_scored, others in zip(sets, *roles, strict=True):
            assert at_scored is not None, "scored positions always have an eraser"
            own.append(replace(edit, scored=at_scored, others=others, name="a matched subspace"))
    return sets, is_matched


def _spread(values: Float[Tensor, "batch pos d"]) -> Float64[Tensor, "d d"]:
    return covariance(values.flatten(0, 1).double())


def replaced_by_mean(edit: EraseByRole) -> EraseByRole:
    """Return the edit that replaces the whole activation by its mean in each role: the ceiling of erasure."""
    d = edit.scored[0].width
    whole = Subspace("whole activation", torch.eye(d, dtype=torch.float64, device=edit.scored[1].device))
    others = None if edit.others is None else (whole, edit.others[1])
    return replace(edit, scored=(whole, edit.scored[1]), others=others, name="whole activation")


def _random_like(own: Subspace, seed: int) -> Subspace:
    return Subspace("a random subspace", random_subspaces(own.width, own.rank, draws=1, seed=seed)[0])


@final
class _Nothing:
    """A reference for edits that need none."""

    def mean(self, site: Site, layer: int) -> Tensor:
        raise AssertionError(f"nothing refers to the mean of {site.name} in layer {layer}")

    def donor(self, site: Site, layer: int) -> Tensor:
        raise AssertionError(f"nothing refers to donors of {site.name} in layer {layer}")


_NOTHING = _Nothing()
