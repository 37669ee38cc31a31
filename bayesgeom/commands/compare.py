"""`bayesgeom compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import HERE, Command, On, check_target, conclude, note
from bayesgeom.core.files import RUNS


@final
@dataclass(frozen=True)
class Compare(Command):
    """Compare architectures: who closes the gap to the exact posterior, on which task, at which budget."""

    name: ClassVar[str] = "compare"

    architectures: tuple[str, ...] = ("transformer", "mamba", "lstm", "mlp")
    """Architectures to compare; mlp-prefix, mamba2 and rwkv can be asked for too."""
    tasks: tuple[str, ...] = ("bijection", "repeats", "recall", "hmm")
    """Tasks to compare them on; slow-hmm, hmm-sampled, recall-16 and recall-64 can be requested too."""
    seeds: int = 1
    """Trainings of each at the same budget, the first is the shipped one; one seed gives no verdict."""
    n: int = 2000
    """Sequences that score each model."""
    seed: int = 0
    """Seed of these sequences and of intervals."""
    only_existing: bool = False
    """Train nothing: report what is there, shipped or in --runs, and name the rest; an error where nothing is."""
    runs: Path = RUNS
    """Directory where missing models are trained and kept."""
    from_report: Path | None = None
    """A saved comparison: state its terms, baselines and verdicts by the present rules; no model is scored."""
    out: Path | None = None
    """Directory for the report."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.comparison.again import restated
        from bayesgeom.comparison.report import ComparisonReport
        from bayesgeom.comparison.run import compare, plan_comparison
        from bayesgeom.results.diagnosis import Diagnosis
        from bayesgeom.training.scores import check_counts

        check_target(self.out)
        if self.from_report is not None:
            diagnosis = restated(self.from_report)
            return conclude(diagnosis, self.out, diagnosis[ComparisonReport].table())
        check_counts(seeds=self.seeds, n=self.n, seed=self.seed)
        if not self.only_existing:
            note(str(plan_comparison(self.architectures, self.tasks, seeds=self.seeds, runs=self.runs)))
        with self.machines.executor() as executor:
            report = compare(
                self.architectures,
                self.tasks,
                seeds=self.seeds,
                n=self.n,
                seed=self.seed,
                runs=self.runs,
                train_missing=not self.only_existing,
                executor=executor,
            )
        return conclude(Diagnosis.of(report), self.out, report.table())
