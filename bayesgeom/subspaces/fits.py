"""Subspaces to intervene on, public as `bayesgeom.subspaces`: fitted layer by layer on sequences that are not scored.

    covariance("entropy")       the span of Cov(x, y), along which a quantity varies
    leace("entropy")            the least-change eraser of a quantity
    trained_swap(r, "belief")   the r directions whose swap moves the output to the donor's: an upper bound
    decoder("entropy")          the weights of a linear read-out: they predict y, but need not represent it
    entropy_axis("pc1")         the first principal component, signed by entropy
    frame("embedding")          the span of the hypothesis tokens' embeddings, pulled back through keys or written by OV
    top_jacobian(r)             the r directions to which current and later answer logits are most sensitive
    random(r), basis(tensor)    a random subspace (chance level), and your own basis

References: Belrose et al. 2023, arXiv:2306.03819 (LEACE); Geiger et al. 2024, arXiv:2303.02536 (trained swap); Agarwal,
Dalal & Misra, *Geometric Scaling*, section 4.5 (entropy axis), and the J-lens note (frame, Jacobian); Shai et al. 2024,
arXiv:2405.15943 (belief decoder).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, checked, shown, unknown_name
from bayesgeom.core.run import Trials
from bayesgeom.models.base import Model
from bayesgeom.models.replay.carried import CARRIED
from bayesgeom.stats.regression import ridge
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.anatomy import frame_sites, key_pullbacks, token_embeddings, written_values
from bayesgeom.subspaces.base import About, Fit, Sample, Setting, named_fits
from bayesgeom.subspaces.jacobian import jacobian_grams
from bayesgeom.subspaces.quantity import Quantity
from bayesgeom.subspaces.quantity_fits import Decoder, Eraser
from bayesgeom.subspaces.subspace import RANK_TOLERANCE, Subspace, span
from bayesgeom.subspaces.trained import STEPS, TrainedSwap
from bayesgeom.tasks.base import derived_seed

FrameKind = Literal["embedding", "keys", "ov"]
FRAMES = ("embedding", "keys", "ov")
AxisKind = Literal["readout", "pc1", "pc1_standardized"]
AXES = ("readout", "pc1", "pc1_standardized")
FORMS = (
    "covariance:QUANTITY[,given=NAME+NAME]",
    "leace:QUANTITY[,given=NAME+NAME]",
    "trained_swap:RANK,QUANTITY",
    "decoder:QUANTITY",
    "entropy_axis",
    "entropy_axis:pc1",
    "entropy_axis:pc1_standardized",
    "frame",
    "frame:keys,HEAD",
    "frame:ov,HEAD",
    "belief_readout",
    "top_jacobian:RANK",
    "random:RANK",
)


@checked()
def covariance(quantity: str | Quantity = "entropy", *, given: Sequence[str] = ()) -> Fit:
    """Return the span of Cov(x, y), removed and swapped by its orthogonal projector.

    Args:
        quantity: "entropy", "belief" or "log_odds:H".
        given: Correlated quantities to erase first: "position", "answer" (log answer probabilities) and "known"
            (whether the exact posterior leaves a single answer).

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        UnknownName: There is no such quantity.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.covariance("belief").label
        'covariance (belief)'
    """
    return Eraser(Quantity.of(quantity), oblique=False, given=tuple(given))


@checked()
def leace(quantity: str | Quantity = "entropy", *, given: Sequence[str] = ()) -> Fit:
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
    return Eraser(Quantity.of(quantity), oblique=True, given=tuple(given))


@checked()
def trained_swap(rank: int, quantity: str | Quantity = "belief", *, steps: int = STEPS) -> Fit:
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
    return TrainedSwap(rank, Quantity.of(quantity), steps)


@checked()
def decoder(quantity: str | Quantity = "entropy") -> Fit:
    """Return the weights of a ridge map to the quantity; a read-out, so its removal can never show "not used".

    Args:
        quantity: "entropy", "belief" or "log_odds:H", with H the index of a hypothesis.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        UnknownName: There is no such quantity.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.decoder("entropy").label
        'decoder (entropy)'
    """
    return Decoder(Quantity.of(quantity))


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
    return _EntropyAxis(by)


@checked()
def frame(
    kind: FrameKind = "embedding", *, head: int | None = None, layer: int | None = None, tokens: str | None = None
) -> Fit:
    """Return the span of the hypothesis tokens in the residual stream.

    Args:
        kind: "embedding": their embeddings; "keys": pulled back through W_K of `head`; "ov": as written by `head`.
        head: Query head; if heads share keys and values, those of its group are used. None for "embedding".
        layer: Layer of the head; by default the edited layer.
        tokens: A token set of the task; by default "hypotheses" or, if the task has none, "inputs".

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        InvalidArgument: An argument is none of these. When applied: the head is missing.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.frame().label
        'frame (embedding)'
    """
    return _Frame(kind, head, layer, tokens)


def belief_readout() -> Fit:
    """Return the row space of the ridge map from vectors to the exact belief, as `decoder("belief")`.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        InvalidArgument: When applied: the task has no belief.

    Example:
        >>> from bayesgeom import subspaces
        >>> subspaces.belief_readout().label
        'decoder (belief)'
    """
    return Decoder(Quantity("belief"))


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
    return _TopJacobian(r)


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
    return fixed(Subspace(name, vectors))


@checked()
def fixed(subspace: Subspace) -> Fit:
    """Return a fit that uses the same subspace in every layer.

    Args:
        subspace: The subspace.

    Returns:
        A fit for `intervene` and `fit_subspace`; it is applied to a model there.

    Raises:
        InvalidArgument: `subspace` is no `bayesgeom.subspaces.Subspace`.

    Example:
        >>> import bayesgeom, torch
        >>> bayesgeom.subspaces.fixed(bayesgeom.subspaces.Subspace("first two", torch.eye(8)[:, :2])).label
        'first two'
    """
    return _Fixed(subspace)


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
            return fixed(subspace)
        case Fit():
            return subspace
    raise InvalidArgument(
        f"subspace must be a name such as 'frame' or 'leace:belief', one of bayesgeom.subspaces or a Subspace; got "
        f"{shown(subspace)}."
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
    parts = [part.strip() for part in listed.split(",") if part]
    fit = _of_quantity(name, parts) or _of_place(name, parts)
    if fit is not None:
        return fit
    added = named_fits()
    if name in added:
        return added[name].of_text(parts)
    raise unknown_name("subspace", text, (*FORMS, *(kind.form() for kind in added.values())))


def _of_place(name: str, parts: Sequence[str]) -> Fit | None:
    """Return a fit without a quantity, or None if the text names none."""
    match name, parts:
        case "entropy_axis", [] | ["readout"]:
            return entropy_axis()
        case "entropy_axis", ["pc1"]:
            return entropy_axis("pc1")
        case "entropy_axis", ["pc1_standardized"]:
            return entropy_axis("pc1_standardized")
        case "frame", [] | ["embedding"]:
            return frame()
        case "frame", ["keys", head] if head.isdecimal():
            return frame("keys", head=int(head))
        case "frame", ["ov", head] if head.isdecimal():
            return frame("ov", head=int(head))
        case "belief_readout", []:
            return belief_readout()
        case "top_jacobian", [r] if r.isdecimal():
            return top_jacobian(int(r))
        case "random", [r] if r.isdecimal():
            return random(int(r))
    return None


def _of_quantity(name: str, parts: Sequence[str]) -> Fit | None:
    """Return a fit with a quantity, or None if the text names none."""
    match name, parts:
        case ("covariance" | "leace") as kind, [quantity, *rest] if (given := _given(rest)) is not None:
            return Eraser(Quantity.of(quantity), oblique=kind == "leace", given=given)
        case "trained_swap", [r, quantity] if r.isdecimal():
            return trained_swap(int(r), quantity)
        case "decoder", [quantity]:
            return decoder(quantity)
    return None


def _given(rest: Sequence[str]) -> tuple[str, ...] | None:
    """Return the names after given=, () without arguments, and None for any other text."""
    match rest:
        case []:
            return ()
        case [only] if only.startswith("given="):
            return tuple(only.removeprefix("given=").split("+"))
    return None


@final
@dataclass(frozen=True)
class _EntropyAxis(Fit):
    by: AxisKind

    def __post_init__(self) -> None:
        if self.by not in AXES:
            raise InvalidArgument(f"the entropy axis must be one of {', '.join(AXES)}; got {self.by!r}.")

    @property
    def label(self) -> str:
        return {"readout": "decoder (entropy)", "pc1": "entropy axis (PC1)"}.get(
            self.by, "entropy axis (standardized PC1)"
        )

    @property
    def about(self) -> About:
        return About(quantity=Quantity("entropy"), is_readout=self.by == "readout", at_scored=True)

    def check(self, setting: Setting) -> None:
        """Accept every setting."""

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        entropies = sample.entropies()
        target = (entropies - entropies.mean())[:, None]
        if float(target.abs().max()) < 1e-9:
            raise InvalidArgument(
                f"the exact entropy is {entropies[0]:.4g} bits at every scored position: fit belief or change the task."
            )
        return {layer: Subspace(self.label, self._axis(sample.points(layer), target, layer)) for layer in layers}

    def _axis(
        self, points: Float64[Tensor, "point d"], target: Float64[Tensor, "point 1"], layer: int
    ) -> Float64[Tensor, "d 1"]:
        centered = points - points.mean(dim=0)
        if float(centered.abs().max()) <= RANK_TOLERANCE * float(points.abs().max()):
            raise InvalidArgument(
                f"layer {layer} holds the same vector at every scored position, so there is no {self.label}; this "
                f"happens if every query is the same token. Choose later layers."
            )
        if self.by == "readout":
            axis: Tensor = ridge(centered.T @ centered, centered.T @ target)
            return axis.div(axis.norm())
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
class _Frame(Fit):
    kind: FrameKind
    head: int | None
    layer: int | None
    tokens: str | None

    @property
    def label(self) -> str:
        if self.kind == "embedding":
            return "frame (embedding)"
        return f"frame ({self.kind} of {'' if self.layer is None else f'L{self.layer}'}H{self.head})"

    @property
    def about(self) -> About:
        return About()

    def check(self, setting: Setting) -> None:
        spec, place = setting.model.spec, setting.place
        if self.kind not in FRAMES:
            raise InvalidArgument(f"the kind of a frame must be one of {', '.join(FRAMES)}; got {self.kind!r}.")
        if not place.is_residual and (self.kind != "embedding" or place.site != CARRIED):
            raise InvalidArgument(
                f"a frame ({self.kind}) lies in the residual stream; {place.site.name!r} has other coordinates."
            )
        setting.model.require(frame_sites(self.kind), by=self.label)
        if (self.kind == "embedding") != (self.head is None):
            raise InvalidArgument(
                f"frame kind {self.kind!r}: keys and ov require head=…, embedding requires no head; got {self.head}."
            )
        if self.head is not None and not 0 <= self.head < spec.n_heads:
            raise InvalidArgument(f"head {self.head}: {spec.name} has heads 0 … {spec.n_heads - 1} in a layer.")
        if self.layer is not None and not 0 <= self.layer < spec.n_layers:
            raise InvalidArgument(f"layer {self.layer}: {spec.name} has layers 0 … {spec.n_layers - 1}.")
        self._tokens(setting.trials)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        tokens = self._tokens(sample.run.trials)
        found = {layer: self._vectors(sample.model, tokens, layer) for layer in layers}
        if sample.place.site == CARRIED:  # (h, c): only h has the coordinates of the residual stream
            found = {layer: torch.nn.functional.pad(own, (0, own.shape[1])) for layer, own in found.items()}
        return {layer: span(self.label, own.T) for layer, own in found.items()}

    def _vectors(self, model: Model, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "token d_model"]:
        if self.head is None:
            return token_embeddings(model, tokens)
        through = key_pullbacks if self.kind == "keys" else written_values
        return through(model, tokens, layer if self.layer is None else self.layer, self.head)

    def _tokens(self, trials: Trials) -> Int64[Tensor, " token"]:
        wanted = ("hypotheses", "inputs") if self.tokens is None else (self.tokens,)
        for name in wanted:
            if name in trials.token_sets:
                return trials.token_sets[name]
        named = ", ".join(trials.token_sets) or "(none)"
        raise InvalidArgument(f"a frame needs a token set {' or '.join(wanted)}; this task has: {named}.")


@final
@dataclass(frozen=True)
class _TopJacobian(Fit):
    r: int

    @property
    def label(self) -> str:
        return f"top-{self.r} Jacobian"

    @property
    def about(self) -> About:
        return About()

    def check(self, setting: Setting) -> None:
        if setting.place.site != CARRIED:  # `InterventionSite` checks CARRIED
            setting.model.require((setting.place.site,), by=self.label, layers=setting.place.layers)
        _check_rank(self.r, setting)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        trials, site = sample.run.trials, sample.place.site
        grams = jacobian_grams(sample.model, trials, site, layers, seed=sample.seed)
        return {at: self._top(gram) for at, gram in grams.items()}

    def _top(self, gram: Float64[Tensor, "d d"]) -> Subspace:
        # eigh sorts eigenvalues in ascending order.
        return Subspace(self.label, torch.linalg.eigh(gram).eigenvectors[:, -self.r :])


@final
@dataclass(frozen=True)
class _Random(Fit):
    r: int

    @property
    def label(self) -> str:
        return f"random ({self.r})"

    @property
    def about(self) -> About:
        return About()

    def check(self, setting: Setting) -> None:
        _check_rank(self.r, setting)

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

    @property
    def about(self) -> About:
        return About()

    def check(self, setting: Setting) -> None:
        self.subspace.check_width(setting.place.width_in(setting.model.spec), setting.place.site.name)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        here = self.subspace.basis.to(sample.run.at(sample.place.site).device)
        return dict.fromkeys(layers, Subspace(self.subspace.name, here))


def _check_rank(r: int, setting: Setting) -> None:
    width, name = setting.place.width_in(setting.model.spec), setting.model.spec.name
    if not 1 <= r <= width:
        raise InvalidArgument(
            f"r = {r}: {setting.place.site.name!r} of {name} has {width} dimensions; use 1 … {width}."
        )
