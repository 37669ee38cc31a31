"""`bayesgeom intervene`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, final

from bayesgeom.commands.base import Command, Of, TaskOption, check_target, conclude_report
from bayesgeom.core.errors import InvalidArgument, unknown_name
from bayesgeom.core.plugins import has_entry_points
from bayesgeom.core.text import is_whole, shown

if TYPE_CHECKING:
    from bayesgeom.interventions.joint_report import JointInterventionReport
    from bayesgeom.interventions.onwards_report import OnwardsReport
    from bayesgeom.interventions.report import InterventionReport
    from bayesgeom.subspaces.base import Fit
    from bayesgeom.subspaces.quantity import Quantity
    from bayesgeom.subspaces.site import InterventionSite


@final
@dataclass(frozen=True)
class Intervene(Command):
    """Intervene on a subspace of the activations, and report whether the model uses it.

    A shipped checkpoint takes 1 to 15 minutes on two CPU cores with --n 64, about 4 for most subspaces. Time grows with
    n.
    """

    name: ClassVar[str] = "intervene"
    order: ClassVar[int] = 30

    source: Of
    subspace: str = "frame"
    """covariance:QUANTITY, leace:QUANTITY (both also with ,given=position+answer+known), trained_swap:RANK,QUANTITY,
    decoder:QUANTITY, entropy_axis, entropy_axis:pc1, entropy_axis:pc1_standardized, frame, frame:keys,HEAD,
    frame:ov,HEAD, belief_readout, top_jacobian:RANK, random:RANK. QUANTITY: entropy, belief or log_odds:HYPOTHESIS."""
    kind: Literal["swap", "remove", "keep", "rotate", "add"] = "swap"
    """What to do with the subspace. A swap takes it from another sequence; only a swap can show use."""
    donors: Literal["auto", "paired", "independent"] = "auto"
    """Sequences to swap from. paired: the task's pairs; independent: independent sequences; auto: the pairs if they
    differ in the quantity, otherwise independent sequences."""
    positions: Literal["all", "scored"] | None = None
    """Positions to intervene at. Default: scored for subspaces of a quantity, all for others."""
    score_after: bool = False
    """Intervene at one scored position and score only later ones."""
    onwards: bool = False
    """Erase the quantity of --subspace in all layers from each of --layers to the last, at all positions, in one
    pass."""
    controls: int = 20
    """Number of random subspaces, and of random subspaces with the same share of variance. Fewer than 20 cannot show
    use."""
    n_fit: int = 1_024
    """Number of sequences that subspaces are fitted on. Fewer save time on a large model; erasure is then less
    complete."""
    n_untrained: int = 1
    """Number of untrained networks in which a swap is repeated."""
    layers: str | None = None
    """Layers to intervene in, one at a time: 1,3. Layers joined by + are intervened on together: 1+3, or 1,1+3.
    Default: all layers, one at a time."""
    site: str = "resid_pre"
    """Site: resid_pre, z, attn_out, resid_mid, mlp_out or resid_post; for several layers together also v; with
    --score-after also carried, the state (h, c) of an LSTM."""
    task: TaskOption = None
    n: int = 256
    """Number of sequences, or of pairs."""
    seed: int = 0
    """Seed of sequences, fits and intervals."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""

    def __call__(self) -> int:
        from bayesgeom.interventions.design import Design
        from bayesgeom.interventions.onwards import erase_onwards
        from bayesgeom.interventions.run import intervene
        from bayesgeom.subspaces.fits import fit_from_text

        check_target(self.out)
        places, counts = self._places(), {"n": self.n, "seed": self.seed}
        model, fit = self.source.load(), fit_from_text(self.subspace)
        report: InterventionReport | JointInterventionReport | OnwardsReport
        if self.onwards:
            quantity, oblique = _erased(fit)
            report = erase_onwards(model, self.task, quantity, sites=_alone(places), oblique=oblique, **counts)
        elif any(len(place.layers or ()) > 1 for place in places):
            report = intervene(model, self.task, fit, sites=places, kind=self.kind, **counts)
        else:
            at = replace(_alone(places), positions=self.positions, score_after=self.score_after)
            controls = {"n_random": self.controls, "n_matched": self.controls, "n_untrained": self.n_untrained}
            design = Design(self.kind, donors=self.donors, n_fit=self.n_fit, **controls)
            report = intervene(model, self.task, fit, sites=at, kind=design, **counts)
        return conclude_report(report, self.out)

    @classmethod
    def choices(cls) -> Mapping[str, Mapping[str, str]]:
        """Return the subspaces of plug-ins; the option's own help names the others, without loading torch."""
        if not has_entry_points("bayesgeom.subspaces"):
            return {}
        from bayesgeom.subspaces.base import named_fits

        forms = dict.fromkeys((kind.form() for kind in named_fits().values()), "")
        return {"Subspaces of plug-ins (--subspace):": forms} if forms else {}

    def _places(self) -> "list[InterventionSite]":
        """Return one site per set of layers, or one site for all layers if none is named."""
        from bayesgeom.interventions.joint import EDITABLE
        from bayesgeom.models.replay.carried import CARRIED
        from bayesgeom.subspaces.site import InterventionSite

        known = {site.name: site for site in (*EDITABLE, CARRIED)}
        if self.site not in known:
            raise unknown_name("site to act at", self.site, known)
        sets = [] if self.layers is None else [part.split("+") for part in self.layers.split(",")]
        if not all(is_whole(layer.strip()) for layers in sets for layer in layers):
            raise InvalidArgument(
                f"--layers takes whole numbers joined by , or +, such as 1,3 or 1+3; got {shown(self.layers)}."
            )
        return [InterventionSite(known[self.site], tuple(map(int, layers))) for layers in sets] or [
            InterventionSite(known[self.site])
        ]


def _erased(fit: "Fit") -> "tuple[Quantity, bool]":
    """Return the quantity that `--onwards` erases, and whether LEACE erases it; other fits raise `InvalidArgument`."""
    from bayesgeom.subspaces.quantity_fits import Eraser

    if not isinstance(fit, Eraser) or fit.given:
        raise InvalidArgument(f"--onwards takes covariance:QUANTITY or leace:QUANTITY, without given; got {fit.label}.")
    return fit.quantity, fit.oblique


def _alone(places: "list[InterventionSite]") -> "InterventionSite":
    """Return one site with the layers of all, one at a time; layers joined by + raise `InvalidArgument`."""
    from bayesgeom.subspaces.site import InterventionSite

    if any(len(place.layers or ()) > 1 for place in places):
        raise InvalidArgument("--onwards takes first layers joined by commas, as in --layers 1,3; not by +.")
    return InterventionSite(places[0].site, tuple(layer for place in places for layer in place.layers or ()) or None)
