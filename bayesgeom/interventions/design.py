"""The design of an intervention: the kind of edit, donors and controls, edited positions, and each layer's edits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from bayesgeom.core import Edit, InSubspace, InvalidArgument, Replace, Site, SubspaceKind, Trials, check_types
from bayesgeom.report.tables import MOST
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.base import InterventionSite, Subspace

Donors = Literal["auto", "paired", "independent"]
RANDOM, MATCHED = "random subspaces", "variance-matched subspaces"
RANDOM_MOST, MATCHED_MOST = f"{RANDOM}{MOST}", f"{MATCHED}{MOST}"  # where only the largest effect is stored
ARBITRARY = "training toward random labels"  # of a trained swap, which is then scored on these labels
ERASED = "random erasures"  # of the same rank; its value is their median
LEAST_CONTROLS = 20  # fewer random or matched subspaces cannot support "causal"


class _Options(TypedDict, total=False):
    """The keywords of `intervene`."""

    kind: "SubspaceKind | Design"
    n_fit: int
    n: int
    seed: int


class SiteOptions(_Options, total=False):
    """Those of an intervention at one site."""

    sites: InterventionSite | None


@final
class LagOptions(SiteOptions):
    """Those of a swap that is scored by lag."""

    lags: Sequence[int]


@final
class DoseOptions(SiteOptions):
    """Those of an addition in doses."""

    doses: Sequence[float]


@final
class JointOptions(_Options):
    """Those of an intervention in several layers at once."""

    sites: Sequence[InterventionSite]


@final
@dataclass(frozen=True)
class Design:
    """The edit of the subspace, and the controls.

    Args:
        kind: "swap", "remove", "keep", "rotate" or "add".
        donors: "paired": pairs of the task, which share their prompts; "independent": other sequences at the same
            positions; "auto": pairs if the quantity differs within them, else independent sequences.
        n_random, n_matched: random subspaces of the same rank, and subspaces with the same share of variance.
        n_control: number of pairs on which controls are scored.
        n_untrained: number of untrained networks in which the swap is repeated; with fewer than 2 none is "causal".
        n_fit: number of sequences on which subspaces are fitted.
        lags: numbers of scored positions after the last edited one at which a swap is scored; none: at all positions.
        doses: multiples of a direction's standard deviation that "add" adds; none: one to each coordinate.

    Raises:
        InvalidArgument: The kind or the donors are unknown, a number is too small, or lags or doses do not fit.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom.interventions.design import Design
        >>> Design("remove").n_random
        20
    """

    kind: SubspaceKind = "swap"
    donors: Donors = "auto"
    n_random: int = 20
    n_matched: int = 20
    n_control: int = 32
    n_untrained: int = 3
    n_fit: int = 1_024
    lags: tuple[int, ...] = ()
    doses: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_types(self)
        if min(self.n_random, self.n_matched, self.n_control) < 1 or self.n_untrained < 0 or self.n_fit < 2:
            raise InvalidArgument(
                f"n_random, n_matched and n_control must be at least 1, n_fit at least 2 and n_untrained at least 0; "
                f"got {self}."
            )
        if self.lags and (self.kind != "swap" or min(self.lags) < 0 or len({*self.lags}) < len(self.lags)):
            raise InvalidArgument(f"lags of a swap are different whole numbers from 0 on; {self.kind} got {self.lags}.")
        if self.doses and (self.kind != "add" or not np.isfinite(self.doses).all() or len({*self.doses}) < 2):
            raise InvalidArgument(
                f"doses of add are two or more different finite numbers; {self.kind} got {self.doses}."
            )

    @classmethod
    def of(cls, kind: "SubspaceKind | Design" = "swap", **changed: Any) -> "Design":
        """Return a design of this kind, or this design, with other values of some fields."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in changed.items()
        }
        return replace(kind if isinstance(kind, Design) else cls(kind), **plain)


LEAST_SCORED = 5  # for editing at one position and scoring at later ones
_QUARTERS = (1, 2, 3)


@final
@dataclass(frozen=True, kw_only=True)
class Positions:
    """Edited positions: all or the scored ones; with `score_after` one, and only later positions are scored.

    With `score_after`, batches take turns to edit the scored position at one, two and three quarters of the sequence.
    With `lags`, positions up to `last` are edited, or that one alone.
    """

    are_scored: bool
    score_after: bool = False
    lags: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """Label in reports."""
        if self.lags:
            return "one scored position" if self.score_after else f"{'scored ' * self.are_scored}positions up to one"
        if self.score_after:
            return "one scored position, scored at later ones"
        return "scored positions" if self.are_scored else "all positions"

    def check(self, trials: Trials) -> None:
        """Check that enough positions are scored.

        Raises:
            InvalidArgument: `score_after` is set and fewer than `LEAST_SCORED` positions are scored, a lag lies beyond
                the sequence, or lags are given for a task whose posterior cannot be continued from a belief.
        """
        if self.lags and trials.observers is None:
            raise InvalidArgument("lags need a task whose posterior continues from any belief, such as mess3 or hmm.")
        if self.lags and self.last(trials) < 0:
            raise InvalidArgument(
                f"lag {max(self.lags)} lies beyond the sequence, which scores {trials.n_scored} positions."
            )
        if self.score_after and not self.lags and trials.n_scored < LEAST_SCORED:
            raise InvalidArgument(
                f"score_after edits one scored position and scores later ones, so the task must have at least "
                f"{LEAST_SCORED} scored positions; this one has {trials.n_scored}."
            )

    def last(self, trials: Trials) -> int:
        """Return the index of the last edited scored position: the largest lag after it is the end of the sequence."""
        return trials.n_scored - 1 - max(self.lags)

    def bands(self, n_scored: int) -> tuple[str, ...]:
        """Return the names of the bands of positions over which scores are averaged, all positions first."""
        if self.score_after:
            return ("all later", "next scored", "second next")
        return ("all", "first third", "middle third", "last third")[: 4 if n_scored >= 3 else 1]

    def mask(self, trials: Trials, batch: int) -> Bool[Tensor, "*batch pos"] | None:
        """Return the positions to edit in this batch, by sequence if these score different ones; None means all."""
        if not self.are_scored and not self.score_after and not self.lags:
            return None
        mask = trials.scored
        if self.lags:
            at = trials.scored_positions()[:, [self.last(trials)]]
            places = torch.arange(mask.shape[1], device=mask.device)
            mask = places == at if self.score_after else (places <= at) & (mask if self.are_scored else True)
        elif self.score_after:
            at = trials.scored_positions()[:, [_index(trials.n_scored, batch)]]
            mask = torch.zeros_like(mask).scatter(1, at, True)
        return mask[0].clone() if torch.equal(mask, mask[:1].expand_as(mask)) else mask

    def weights(self, n_scored: int, batch: int) -> Float64[np.ndarray, "position band"]:
        """Return the weights that average over each band."""
        if self.score_after:
            at = _index(n_scored, batch)
            members = [np.arange(at + 1, n_scored), np.array([at + 1]), np.array([at + 2])]
        else:
            thirds = np.array_split(np.arange(n_scored), 3) if n_scored >= 3 else []
            members = [np.arange(n_scored), *thirds]
        weights = np.zeros((n_scored, len(members)))
        for band, positions in enumerate(members):
            weights[positions, band] = 1 / len(positions)
        return weights


def _index(n_scored: int, batch: int) -> int:
    """Return the index of the scored position to edit in this batch; at least two scored positions follow it."""
    quarter = _QUARTERS[batch % len(_QUARTERS)]
    return min(quarter * (n_scored - 1) // 4, n_scored - 3)


@final
@dataclass(frozen=True, kw_only=True)
class LayerEdits:
    """The edits of one kind in one layer; `like` gives device and precision, `points` the spread of coordinates."""

    site: Site
    layer: int
    kind: SubspaceKind
    like: Tensor
    points: Float64[Tensor, "point d"]
    seed: int

    def own(self, subspace: Subspace) -> Edit:
        """Return the edit of the subspace; "add" shifts each coordinate by one standard deviation."""
        return self._edit(subspace, self._spread(subspace.reads))

    def doses(self, subspace: Subspace, doses: Iterable[float], like: Subspace) -> list[Edit]:
        """Return edits that add multiples of the standard deviation along `like` to the coordinates of a subspace."""
        spread = self._spread(like.reads)
        assert spread is not None, "doses are of kind add"
        return [self._edit(subspace, dose * spread) for dose in doses]

    def ceiling(self) -> Edit:
        """Return the edit of the whole activation: replaced by the donor's under a swap, else by its mean."""
        return Replace(site=self.site, layer=self.layer, mode="resample" if self.kind == "swap" else "mean")

    def controls(self, bases: Iterable[Float64[Tensor, "d _"]], like_own: Subspace | None = None) -> list[Edit]:
        """Return the edits of control subspaces; "add" shifts them as `like_own` if given, else by their own spread."""
        of_own = None if like_own is None else like_own.reads
        return [
            self._edit(Subspace("a random subspace", basis), self._spread(basis if of_own is None else of_own))
            for basis in bases
        ]

    def filling(self, bases: Sequence[Float64[Tensor, "d _"]], n: int) -> list[Edit]:
        """Return the edits of `n` controls: a single one fills the conditions of all, and verdicts count it once."""
        return self.controls(bases) * (n // len(bases))

    def _edit(self, subspace: Subspace, shift: Float[Tensor, " r"] | None) -> Edit:
        return InSubspace(
            site=self.site,
            layer=self.layer,
            kind=self.kind,
            basis=subspace.basis.to(self.like),
            dual=None if subspace.dual is None else subspace.dual.to(self.like),
            turn=self._turn(subspace.rank) if self.kind == "rotate" else None,
            shift=shift,
            name=subspace.name,
        )

    def _spread(self, reads: Float[Tensor, "d r"]) -> Float[Tensor, " r"] | None:
        """Return one standard deviation of each coordinate for "add", else None."""
        if self.kind != "add":
            return None
        return (self.points @ reads.to(self.points)).std(dim=0).to(self.like)

    def _turn(self, rank: int) -> Float[Tensor, "rank rank"]:
        """Return a random rotation of the coordinates; a single coordinate is negated."""
        turn = -torch.ones(1, 1) if rank == 1 else random_subspaces(rank, rank, draws=1, seed=self.seed)[0]
        return turn.to(self.like)
