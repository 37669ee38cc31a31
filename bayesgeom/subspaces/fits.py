"""Subspaces to intervene on, public as `bayesgeom.subspaces`: fitted layer by layer on sequences that are not scored.

    covariance("entropy")       the span of Cov(x, y), along which a quantity varies
    leace("entropy")            the least-change eraser of a quantity
    trained_swap(r, "belief")   the r directions whose swap moves the output to the donor's: an upper bound
    decoder("entropy")          the weights of a linear read-out: they predict y, but need not represent it
    entropy_axis("pc1")         the first principal component, signed by entropy
    frame("embedding")          the span of the hypothesis tokens' embeddings, pulled back through keys or written by OV
    top_jacobian(r)             the r directions to which current and later answer logits are most sensitive
    units(k, "belief")          the k single coordinates of the site that covary most with a quantity: a sparse probe
    random(r), basis(tensor)    a random subspace (chance level), and your own basis

References: Belrose et al. 2023, arXiv:2306.03819 (LEACE); Gurnee et al. 2023, arXiv:2305.01610 (sparse probes); Geiger
et al. 2024, arXiv:2303.02536 (trained swap); Agarwal, Dalal & Misra, *Geometric Scaling*, section 4.5 (entropy axis),
and the J-lens note (frame, Jacobian); Shai et al. 2024, arXiv:2405.15943 (belief decoder).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Literal, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import InvalidArgument, checked, unknown_name
from bayesgeom.core.errors import quoted
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.base import About, Fit, Sample, Setting, Subspace, check_rank, named_fits
from bayesgeom.subspaces.erasers import Decoder, Eraser, JointMoments, checked_points, checked_values
from bayesgeom.subspaces.frames import FrameKind, TokenFrame
from bayesgeom.subspaces.jacobian import TopJacobian
from bayesgeom.subspaces.quantity import ENTROPY, PosteriorQuantity
from bayesgeom.subspaces.trained import STEPS, TrainedSwap
from bayesgeom.tasks.base import derived_seed

AxisKind = Literal["readout", "pc1", "pc1_standardized"]


@checked()
def covariance(quantity: str | PosteriorQuantity = "entropy", *, given: Sequence[str] = ()) -> Fit:
    """Return the span of Cov(x, y), removed and swapped by its orthogonal projector.

    Args:
        quantity: "entropy", "belief", "log_odds:H" or "statistic:NAME".
        given: Correlated quantities to erase first: "position", "answer" (log answer probabilities), "known" (whether
            the exact posterior leaves a single answer), and codes: "category" (which exact posterior it is), "token"
            and "previous" (the token before).

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        UnknownName: There is no such quantity.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.covariance("belief").label
        'covariance (belief)'
    """
    return Eraser(PosteriorQuantity.of(quantity), oblique=False, given=tuple(given))


@checked()
def leace(quantity: str | PosteriorQuantity = "entropy", *, given: Sequence[str] = ()) -> Fit:
    """Return the component that LEACE, the least-change affine eraser of a quantity, removes.

    Args:
        quantity: As in `covariance`.
        given: As in `covariance`.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        UnknownName: There is no such quantity.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.leace("belief").label
        'LEACE (belief)'
    """
    return Eraser(PosteriorQuantity.of(quantity), oblique=True, given=tuple(given))


@checked()
def trained_swap(rank: int, quantity: str | PosteriorQuantity = "belief", *, steps: int = STEPS) -> Fit:
    """Return directions trained so that swapping them moves the model's own quantity to the donor's.

    It is an upper bound for subspaces of this rank, trained on separate sequences. It shows that the output can be
    moved through this site, not that the site holds the quantity along these directions.

    Args:
        rank: Dimensions of the subspace.
        quantity: As in `covariance`.
        steps: Training steps.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        UnknownName: There is no such quantity.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.trained_swap(2).label
        'trained swap (belief, rank 2)'
    """
    return TrainedSwap(rank, PosteriorQuantity.of(quantity), steps)


@checked()
def units(k: int, quantity: str | PosteriorQuantity = "belief") -> Fit:
    """Return the k single coordinates of the site that covary most with a quantity, by squared correlation.

    They are chosen on the sequences that fit. `intervene` then reports how well they predict the quantity on others.

    Args:
        k: Number of units.
        quantity: As in `covariance`.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        UnknownName: There is no such quantity.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.units(3).label
        '3 units (belief)'
    """
    return _Units(k, PosteriorQuantity.of(quantity))


@checked()
def decoder(quantity: str | PosteriorQuantity = "entropy") -> Fit:
    """Return the weights of a ridge map to the quantity; a read-out, which has no verdict.

    Args:
        quantity: "entropy", "belief", "log_odds:H", with H the index of a hypothesis, or "statistic:NAME".

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        UnknownName: There is no such quantity.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.decoder("entropy").label
        'decoder (entropy)'
    """
    return Decoder(PosteriorQuantity.of(quantity))


@checked()
def entropy_axis(by: AxisKind = "readout") -> Fit:
    """Return one direction, signed so that entropy increases along it.

    Args:
        by: "readout": the ridge map from vectors to the exact entropy, as in `decoder`; "pc1": the first principal
            component; "pc1_standardized": the first principal component of standardized vectors (Paper III), scaled
            back so that the coordinate along it is the component's score.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        InvalidArgument: `by` is none of these.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.entropy_axis().label
        'decoder (entropy)'
    """
    return Decoder(ENTROPY) if by == "readout" else _EntropyAxis(by)


@checked()
def frame(kind: FrameKind = "embedding", *, head: int | None = None, layer: int | None = None) -> Fit:
    """Return the span of the hypothesis tokens in the residual stream, of the inputs if the task has no hypotheses.

    Args:
        kind: "embedding": their embeddings; "keys": pulled back through W_K of `head`; "ov": as written by `head`.
        head: Query head; if heads share keys and values, those of its group are used. None for "embedding".
        layer: Layer of the head; by default the edited layer.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        InvalidArgument: An argument is none of these. When applied: the head is missing.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.frame().label
        'frame (embedding)'
    """
    return TokenFrame(kind, head, layer)


@checked()
def top_jacobian(r: int) -> Fit:
    """Return the top-r eigenspace of Σ g gᵀ, g the gradients of answer logits at the same or later positions.

    Args:
        r: Rank.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        InvalidArgument: `r` is not an integer. When applied: it exceeds the width.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.top_jacobian(16).label
        'top-16 Jacobian'
    """
    return TopJacobian(r)


@checked()
def random(r: int) -> Fit:
    """Return a uniformly drawn subspace of r dimensions, a different one in each layer.

    Args:
        r: Rank.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        InvalidArgument: `r` is not an integer. When applied: it exceeds the width.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.random(4).label
        'random (4)'
    """
    return _Random(r)


@checked()
def basis(vectors: Float[Tensor, "d r"], name: str = "own basis") -> Fit:
    """Return a subspace with your own columns, the same in every layer.

    Args:
        vectors: Orthonormal columns, shape (width of the site, r).
        name: Label in tables and plots.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        InvalidArgument: The columns are not orthonormal.

    Example:
        >>> import torch
        >>> from bayesgeom import subspaces
        >>> subspaces.basis(torch.eye(8)[:, :2]).label
        'own basis'
    """
    return _Fixed(Subspace(name, vectors))


def as_fit(subspace: object) -> Fit:
    """Return the fit for a name as on the command line or for a `Subspace`; return a fit unchanged.

    Raises:
        UnknownName: There is no subspace of this name.
        InvalidArgument: `subspace` has another type.
    """
    match subspace:
        case str():
            return fit_from_text(subspace)
        case Subspace():
            return _Fixed(subspace)
        case Fit():
            return subspace
    raise InvalidArgument(
        f"subspace must be a name such as 'frame' or 'leace:belief', one of bayesgeom.subspaces or a Subspace; got "
        f"{quoted(subspace)}."
    )


@checked()
def fit_from_text(text: str) -> Fit:
    """Return the fit that the command line writes as NAME or NAME:argument.

    Args:
        text: Such as "frame", "leace:belief" or "random:4".

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        UnknownName: There is no such subspace; the error lists the forms.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.fit_from_text("leace:belief").label
        'LEACE (belief)'
    """
    name, _, listed = text.partition(":")
    values = [part.strip() for part in listed.split(",") if part]
    written = ":".join([name, *([",".join(values)] if values else [])])
    for form, fit_of in _FORMS.items():
        pattern = reduce(lambda pattern, value: pattern.replace(*value), _VALUES.items(), form)
        if (given := re.fullmatch(pattern, _ALSO.get(written, written))) is not None:
            return fit_of(*given.groups())
    if name in (added := named_fits()):
        return added[name].of_text(values)
    raise unknown_name("subspace", text, (*_FORMS, *(kind.form() for kind in added.values())))


def _names(joined: str | None) -> tuple[str, ...]:
    return () if joined is None else tuple(joined.split("+"))


_FORMS: Mapping[str, Callable[..., Fit]] = {
    "covariance:QUANTITY[,given=NAME+NAME]": lambda quantity, given: covariance(quantity, given=_names(given)),
    "leace:QUANTITY[,given=NAME+NAME]": lambda quantity, given: leace(quantity, given=_names(given)),
    "trained_swap:RANK,QUANTITY": lambda rank, quantity: trained_swap(int(rank), quantity),
    "decoder:QUANTITY": decoder,
    "entropy_axis": entropy_axis,
    "entropy_axis:pc1": partial(entropy_axis, "pc1"),
    "entropy_axis:pc1_standardized": partial(entropy_axis, "pc1_standardized"),
    "frame": frame,
    "frame:keys,HEAD": lambda head: frame("keys", head=int(head)),
    "frame:ov,HEAD": lambda head: frame("ov", head=int(head)),
    "top_jacobian:RANK": lambda rank: top_jacobian(int(rank)),
    "units:K,QUANTITY": lambda k, quantity: units(int(k), quantity),
    "random:RANK": lambda rank: random(int(rank)),
}
_ALSO = {"entropy_axis:readout": "entropy_axis", "frame:embedding": "frame"}
_VALUES = {  # what stands in a form for a value, as a regular expression
    "[,given=NAME+NAME]": r"(?:,given=([^,]*))?",
    "QUANTITY": r"([^,]+)",
    **dict.fromkeys(("RANK", "HEAD", "K"), r"(\d+)"),
}


@final
@dataclass(frozen=True)
class _EntropyAxis(Fit):
    by: AxisKind

    @property
    def label(self) -> str:
        return "entropy axis (PC1)" if self.by == "pc1" else "entropy axis (standardized PC1)"

    @property
    def about(self) -> About:
        return About(quantity=ENTROPY, at_scored=True)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        entropies = checked_values(sample, ENTROPY)
        target, subspaces = entropies - entropies.mean(dim=0), dict[int, Subspace]()
        for layer in layers:
            points = checked_points(sample, layer, self.label)
            subspaces[layer] = Subspace(self.label, self._axis(points, target))
        return subspaces

    def _axis(self, points: Float64[Tensor, "point d"], target: Float64[Tensor, "point 1"]) -> Float64[Tensor, "d 1"]:
        centered = points - points.mean(dim=0)
        # The score of (x − x̄) / σ on a is the projection of x − x̄ on a / σ, so a / σ is the direction to edit.
        spread = centered.square().mean(dim=0).sqrt() if self.by == "pc1_standardized" else torch.ones_like(points[0])
        unit = torch.where(spread > 0, 1 / spread, 0.0)
        scaled = centered * unit
        first: Tensor = torch.linalg.eigh(scaled.T @ scaled).eigenvectors[:, -1:] * unit[:, None]
        first = first / first.norm()
        is_opposed = float((centered @ first * target).sum()) < 0
        return -first if is_opposed else first


@final
@dataclass(frozen=True)
class _Units(Fit):
    k: int
    quantity: PosteriorQuantity

    @property
    def label(self) -> str:
        return f"{self.k} units ({self.quantity.label})"

    @property
    def about(self) -> About:
        return About(quantity=self.quantity, at_scored=True)

    def check(self, setting: Setting) -> None:
        self.quantity.check(setting.trials)
        check_rank(self.k, setting, name="k")

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        values, subspaces = checked_values(sample, self.quantity), dict[int, Subspace]()
        for layer in layers:
            moments = JointMoments.of(checked_points(sample, layer, self.label), values)
            power = moments.within.diagonal()
            score = torch.where(power > 0, moments.cross.square().sum(dim=1) / power, 0.0)
            chosen = score.topk(self.k).indices.sort().values
            subspaces[layer] = Subspace(self.label, torch.eye(len(power)).to(power)[:, chosen])
        return subspaces


@final
@dataclass(frozen=True)
class _Random(Fit):
    r: int

    @property
    def label(self) -> str:
        return f"random ({self.r})"

    def check(self, setting: Setting) -> None:
        check_rank(self.r, setting, name="r")

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        width, seed = sample.place.width_in(sample.model.spec), derived_seed(sample.seed, 1)
        drawn = random_subspaces(width, self.r, draws=sample.model.spec.n_layers, seed=seed)
        return {layer: Subspace(self.label, drawn[layer]) for layer in layers}


@final
@dataclass(frozen=True, eq=False)
class _Fixed(Fit):
    subspace: Subspace

    @property
    def label(self) -> str:
        return self.subspace.name

    def check(self, setting: Setting) -> None:
        width, own, where = setting.place.width_in(setting.model.spec), self.subspace, setting.place.site.name
        if own.width != width:
            raise InvalidArgument(
                f"the basis of {own.name!r} is {own.width} wide; vectors at {where} are {width} wide."
            )

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        here = self.subspace.basis.to(sample.run.at(sample.place.site).device)
        return dict.fromkeys(layers, Subspace(self.subspace.name, here))
