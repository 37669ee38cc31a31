"""`bayesgeom compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import HERE, Command, On, check_target, conclude, left_out_at, note
from bayesgeom.core.files import RUNS


@final
@dataclass(frozen=True)
class Compare(Command):
    """Compare architectures: which one reaches the exact posterior on which task.

    Verdicts are stated for each training budget. Shipped checkpoints take 1 to 2 minutes a task on two CPU cores.
    Missing ones are trained first, which takes hours: see --only-existing.
    """

    name: ClassVar[str] = "compare"
    order: ClassVar[int] = 100
    hint: ClassVar[str] = "For two models or two saved diagnoses, use `bayesgeom diff A B`."

    architectures: tuple[str, ...] = ("transformer", "mamba", "lstm", "mlp")
    """Architectures to compare; mlp-prefix, mamba2 and rwkv are also available."""
    tasks: tuple[str, ...] = ("bijection", "repeats", "recall", "hmm")
    """Tasks to compare them on; slow-hmm, hmm-sampled, recall-16 and recall-64 are also available."""
    seeds: int = 1
    """Number of training seeds per architecture, at the same budget; the first is the shipped checkpoint. One seed
    gives no verdict."""
    n: int = 2000
    """Number of sequences on which each model is scored."""
    seed: int = 0
    """Seed of these sequences and of the intervals."""
    only_existing: bool = False
    """Train nothing: report the checkpoints that are shipped or in --runs, and list the missing ones. An error if none
    is available."""
    runs: Path = RUNS
    """Directory where missing models are trained and saved."""
    from_report: Path | None = None
    """A saved comparison: recompute its baselines and verdicts by the current rules. No model is scored."""
    rows_of: Path | None = None
    """A saved comparison on the same sequences: add its rows for trainings that are no longer there."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.comparison.again import joinable, restated, with_rows_of
        from bayesgeom.comparison.report import ComparisonReport
        from bayesgeom.comparison.run import compare, plan_comparison
        from bayesgeom.core.errors import InvalidArgument
        from bayesgeom.results.diagnosis import Diagnosis
        from bayesgeom.training.scores import check_counts

        def printed(diagnosis: Diagnosis) -> int:
            report = diagnosis[ComparisonReport]
            missing = [f"\nnot trained, or without weights here: {', '.join(report.missing)}"] if report.missing else []
            return conclude(diagnosis, self.out, report.summary(left_out_at(self.out)), *missing)

        check_target(self.out)
        saved: ComparisonReport | None = None
        if self.rows_of is not None:
            if self.from_report is not None:
                raise InvalidArgument("--from-report scores no model, so --rows-of cannot add to it; pass one of them.")
            if self.out is not None and self.out.resolve() == self.rows_of.resolve():
                raise InvalidArgument(
                    f"--out {self.out} would replace the report that the rows come from, so the new one would name "
                    f"itself as its source. Choose another --out."
                )
            saved = joinable(self.rows_of, n=self.n, seed=self.seed)
        if self.from_report is not None:
            return printed(restated(self.from_report))
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
        return printed(
            Diagnosis.of(report) if self.rows_of is None else with_rows_of(self.rows_of, report, saved=saved)
        )
