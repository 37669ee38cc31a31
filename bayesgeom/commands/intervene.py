"""`bayesgeom intervene`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, final

from bayesgeom.commands.base import AskedTask, Command, Of, check_target, conclude
from bayesgeom.errors import InvalidArgument, unknown_name

if TYPE_CHECKING:
    from bayesgeom.interventions.place import Place


@final
@dataclass(frozen=True)
class Intervene(Command):
    """Act on a subspace of the activations and see whether the answer follows: layer by layer, or in several."""

    name: ClassVar[str] = "intervene"

    source: Of
    subspace: str = "frame"
    """entropy_axis, entropy_axis:pc1, entropy_axis:pc1_standardised, frame, frame:keys,HEAD, frame:ov,HEAD,
    belief_readout, top_jacobian:RANK, random:RANK."""
    kind: Literal["swap", "remove", "keep", "rotate", "add"] = "swap"
    """What is done to it; a swap takes it from a paired trial that differs in the latent."""
    layers: str | None = None
    """Layers to act in, each alone: 1,3. Joined by + they are acted on at once: 1+3, or 1,1+3. Default: all, alone."""
    site: str = "resid_pre"
    """Where: resid_pre, z, attn_out, resid_mid, mlp_out, resid_post; in several layers at once also v."""
    task: AskedTask = None
    n: int = 256
    """Trials, or pairs of them."""
    seed: int = 0
    """Seed of trials, fits and intervals."""
    out: Path | None = None
    """Directory for the report."""

    def __call__(self) -> int:
        from bayesgeom.diagnosis import Diagnosis, provenance
        from bayesgeom.intervene import InterventionJob
        from bayesgeom.intervene_together import JointJob
        from bayesgeom.interventions.fits import fit_from_text
        from bayesgeom.interventions.place import Place

        check_target(self.out)
        places = self._places()
        model, fit = self.source.load(), fit_from_text(self.subspace)
        job: JointJob | InterventionJob
        if any(len(place.layers or ()) > 1 for place in places):
            job = JointJob.of(model, self.task, fit, at=places, kind=self.kind, n=self.n, seed=self.seed)
        else:
            alone = [layer for place in places for layer in place.layers or ()]
            at = Place(places[0].site, alone or None)
            job = InterventionJob.of(model, self.task, fit, kind=self.kind, at=at, n=self.n, seed=self.seed)
        report = job.run()
        arguments = {"n": self.n, "seed": self.seed, "kind": self.kind, "subspace": self.subspace}
        arguments |= {"layers": self.layers or "all", "site": self.site}
        where = provenance(model, job.task, arguments)
        diagnosis = Diagnosis.of(report, where)
        return conclude(diagnosis, self.out, f"{diagnosis.title}\n\n{report.table()}")

    def _places(self) -> "list[Place]":
        """One place for every set of layers; one for all of them where none is named."""
        from bayesgeom.intervene_together import EDITABLE
        from bayesgeom.interventions.place import Place

        known = {site.name: site for site in EDITABLE}
        if self.site not in known:
            raise unknown_name("site to act at", self.site, known)
        sets = [] if self.layers is None else [part.split("+") for part in self.layers.split(",")]
        if not all(layer.strip().isdecimal() for layers in sets for layer in layers):
            raise InvalidArgument(
                f"--layers takes whole numbers joined by , or +, such as 1,3 or 1+3; got {self.layers!r}."
            )
        return [Place(known[self.site], tuple(map(int, layers))) for layers in sets] or [Place(known[self.site])]
