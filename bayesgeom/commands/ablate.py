"""`bayesgeom ablate`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, final

from bayesgeom.commands.base import HERE, Command, Of, On, TaskOption, check_target, conclude_report
from bayesgeom.core.plugins import has_entry_points


@final
@dataclass(frozen=True)
class Ablate(Command):
    """Ablate components one by one, and rank them by the KL increase in bits.

    It also decides the claims on layers and heads. A shipped checkpoint takes 3 to 6 minutes on two CPU cores at 512
    sequences.
    """

    name: ClassVar[str] = "ablate"
    order: ClassVar[int] = 20

    source: Of
    battery: str = "all"
    """heads, attention, mlps, layers, pairs, or all (the first four)."""
    mode: str = "mean"
    """Replacement for the ablated activation: zero; mean, the mean over sequences at each position; resample, the
    activation of another sequence; or a mode of an installed plug-in."""
    method: Literal["exact", "attribution", "both"] = "exact"
    """exact replays every ablation; attribution is a first-order preview from one backward pass."""
    task: TaskOption = None
    n: int = 512
    """Sequences to draw."""
    seed: int = 0
    """Seed of sequences, means and intervals."""
    out: Path | None = None
    """Directory for the report. An interrupted run continues from the results in it. Default: the report is not
    saved."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.ablations.batteries import battery
        from bayesgeom.ablations.run import ablate, attribution_preview

        check_target(self.out)
        model = self.source.load()
        chosen = battery(self.battery, model)
        report = None
        if self.method != "attribution":
            with self.machines.executor() as executor:
                report = ablate(
                    model if executor is None else self.source.name_alone(),
                    self.task,
                    chosen if executor is None else self.battery,
                    mode=self.mode,
                    n=self.n,
                    seed=self.seed,
                    out=self.out,
                    executor=executor,
                )
        if report is None or self.method == "both":
            report = attribution_preview(
                model, self.task, chosen, mode=self.mode, n=self.n, seed=self.seed, exact=report
            )
        return conclude_report(report, self.out)

    @classmethod
    def choices(cls) -> Mapping[str, Mapping[str, str]]:
        """Return the modes, if there are plug-ins; the options' own help names the others, without loading torch."""
        if not has_entry_points("bayesgeom.ablations"):
            return {}
        from bayesgeom.ablations.modes import mode_names

        return {f"Modes (--mode): {', '.join(mode_names())}": {}}
