"""`bayesgeom replicate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import HERE, Command, On, RecipeName, check_target, conclude, note
from bayesgeom.core.files import RUNS
from bayesgeom.results.tables import counted


@final
@dataclass(frozen=True)
class Replicate(Command):
    """Train a recipe with several seeds, and report mean, spread and curves.

    Existing runs are loaded and not trained again. Training takes as long as --seeds times `bayesgeom train RECIPE`;
    existing runs are scored in seconds each.
    """

    name: ClassVar[str] = "replicate"
    order: ClassVar[int] = 110

    recipe: RecipeName
    """Name of the recipe. An unknown name lists the available recipes."""
    seeds: int = 5
    """Number of seeds; the first is the recipe's own."""
    only_existing: bool = False
    """Train nothing: report the runs that are shipped or in --runs, and list the missing ones. An error if none is
    available."""
    runs: Path = RUNS
    """Directory of the trainings: existing ones are loaded, new ones are saved."""
    n: int = 2000
    """Number of sequences on which each run is scored."""
    seed: int = 0
    """Seed of these sequences and of the intervals."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.comparison.replication import plan_replication, replicate
        from bayesgeom.results.diagnosis import Diagnosis
        from bayesgeom.training.recipes import recipe
        from bayesgeom.training.scores import check_counts

        check_target(self.out)
        chosen = recipe(self.recipe)
        check_counts(seeds=self.seeds, n=self.n, seed=self.seed)
        if not self.only_existing:
            note(str(plan_replication(chosen, seeds=self.seeds, runs=self.runs)))
        with self.machines.executor() as executor:
            report = replicate(
                chosen,
                seeds=self.seeds,
                runs=self.runs,
                n=self.n,
                seed=self.seed,
                train_missing=not self.only_existing,
                executor=executor,
            )
        lines = [
            f"{report.recipe}, {counted(report.n, 'sequence')}\n\n{report.table()}\n",
            str(report),
        ]
        if report.missing:
            lines.append(f"missing: {', '.join(report.missing)}")
        absent = dict.fromkeys(report.missing, f"no checkpoint in {self.runs}")
        return conclude(Diagnosis.of(report, skipped=absent), self.out, *lines)
