"""`bayesgeom diagnose`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import Command, Of, check_target, save, task_from


@final
@dataclass(frozen=True)
class Diagnose(Command):
    """Compare a checkpoint with the exact posterior of its task, and look at its geometry."""

    name: ClassVar[str] = "diagnose"

    source: Of
    task: str | None = None
    """Another task, as NAME or NAME:key=value,key=value: hmm:length=10, prompts:domain=code, evidence,
    bijection-in-context:n_values=5. Default: the one it was trained on."""
    domain: str | None = None
    """Of the task prompts, one domain: mixed, mathematics, code, philosophy, or two joined: mathematics+code."""
    n: int = 512
    """Sequences to draw; of prompts, at most all."""
    seed: int = 0
    """Seed of trials, nulls and intervals."""
    nulls: int = 3
    """Freshly initialised copies of the architecture to compare with."""
    probes: tuple[str, ...] | None = None
    """Only these probes, as NAME or NAME:option (value_manifold:standardised). Default: all that can be served."""
    out: Path | None = None
    """Directory for report.html, report.json, arrays.safetensors and metrics.parquet."""
    ablations: bool = False
    """Run the default ablation battery as well."""

    def __call__(self) -> int:
        from bayesgeom.diagnose import diagnose

        check_target(self.out)
        model = self.source.load()
        task = task_from(self.task, domain=self.domain)
        diagnosis = diagnose(
            model, task, probes=self.probes, n=self.n, seed=self.seed, nulls=self.nulls, ablations=self.ablations
        )
        print(diagnosis.summary())
        save(diagnosis, self.out)
        return 0
