"""`bayesgeom intervene`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

from bayesgeom.commands.base import Command, Of, check_target, save, task_from


@final
@dataclass(frozen=True)
class Intervene(Command):
    """Act on a subspace of the activations, layer by layer, and see whether the answer follows."""

    name: ClassVar[str] = "intervene"

    source: Of
    subspace: str = "frame"
    """entropy_axis, frame, frame:keys,HEAD, frame:ov,HEAD, belief_readout, top_jacobian:RANK, random:RANK."""
    kind: Literal["swap", "remove", "keep", "rotate", "add"] = "swap"
    """What is done to it; a swap takes it from a paired trial that differs in the latent."""
    task: str | None = None
    """Another task, as NAME or NAME:key=value,key=value. Default: the one it was trained on."""
    n: int = 256
    """Trials, or pairs of them."""
    seed: int = 0
    """Seed of trials, fits and intervals."""
    out: Path | None = None
    """Directory for the report."""

    def __call__(self) -> int:
        from bayesgeom.diagnosis import Diagnosis, provenance
        from bayesgeom.intervene import InterventionJob
        from bayesgeom.interventions.fits import fit_from_text

        check_target(self.out)
        model = self.source.load()
        task = task_from(self.task)
        fit = fit_from_text(self.subspace)
        job = InterventionJob.of(model, task, fit, kind=self.kind, at=None, n=self.n, seed=self.seed)
        report = job.run()
        arguments = {"n": self.n, "seed": self.seed, "kind": self.kind, "subspace": self.subspace}
        where = provenance(model.spec, job.task, arguments)
        diagnosis = Diagnosis(reports={report.name: report}, skipped={}, provenance=where)
        print(f"{diagnosis.title}\n\n{report.table()}")
        save(diagnosis, self.out)
        return 0
