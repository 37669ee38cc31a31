"""`replicate`: one recipe under several seeds, trained where it is missing and loaded where it is there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from bayesgeom.core.files import RUNS
from bayesgeom.dynamics.replication import Replica, ReplicationReport, replication_report
from bayesgeom.models.provenance import provenance
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.report import with_provenance
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.training.kept import Kept, Plan
from bayesgeom.training.recipe import Recipe
from bayesgeom.training.recipes import recipe as committed
from bayesgeom.training.scores import N_SCORED, Scores, check_counts, scores_of
from bayesgeom.training.state import LOG, read_log

N_SEEDS = 5


def replicate(
    recipe: str | Recipe,
    *,
    seeds: int = N_SEEDS,
    runs: str | Path = RUNS,
    n: int = N_SCORED,
    seed: int = 0,
    train_missing: bool = True,
) -> ReplicationReport:
    """Measure mean and spread of a recipe's scores over several trainings.

    Seed 0 is the recipe itself; the others count from it. All are scored on the same sequences. A training that was
    stopped continues.

    Args:
        recipe: Name of a recipe, or a recipe.
        seeds: Number of trainings.
        runs: Directory where trainings are looked for and kept.
        n: Number of sequences that score each training.
        seed: Seed of the sequences and of the intervals.
        train_missing: Whether models that do not exist yet are trained, which takes hours; else they are left out and
            named.

    Returns:
        Scores of every training, with mean and interval over seeds.

    Raises:
        UnknownName: The recipe does not exist, or nothing may be trained and nothing exists.
        InvalidArgument: There is less than one seed.
        CheckpointFault: A checkpoint or run was made by another recipe.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.replicate("no-such-recipe")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.UnknownName: there is no recipe named 'no-such-recipe'.
    """
    chosen = committed(recipe) if isinstance(recipe, str) else recipe
    job = ReplicationJob(recipe=chosen, seeds=seeds, runs=Path(runs), n=n, seed=seed, train_missing=train_missing)
    report = job.run()
    return with_provenance(report, job.diagnosis(report).provenance)


@final
@dataclass(frozen=True, kw_only=True)
class ReplicationJob:
    """A checked replication, ready to run. One model is in memory at a time."""

    recipe: Recipe
    seeds: int
    runs: Path
    n: int
    seed: int
    train_missing: bool

    def __post_init__(self) -> None:
        check_counts(seeds=self.seeds, n=self.n, seed=self.seed)

    @property
    def _kept(self) -> Kept:
        return Kept(runs=self.runs, train_missing=self.train_missing, is_run_first=True)

    def recipes(self) -> list[Recipe]:
        """The recipe under every seed."""
        return [self.recipe.reseeded(by) for by in range(self.seeds)]

    def plan(self) -> Plan:
        """Which seeds are there and which are to be trained. **Raises** as `Kept.plan` does."""
        return self._kept.plan(self.recipes())

    def run(self) -> ReplicationReport:
        """Train what is missing, score all."""
        plan = self.plan()
        wanted = [own for own in self.recipes() if own not in plan.missing]
        scores = scores_of(wanted, self._kept, n=self.n, seed=self.seed)
        replicas = [self._replica(*one) for one in zip(wanted, scores, strict=True)]
        missing = [own.name for own in plan.missing]
        return replication_report(
            self.recipe.name, replicas, missing=missing, seed=derived_seed(self.seed, Branch.RESAMPLING)
        )

    def diagnosis(self, report: ReplicationReport) -> Diagnosis:
        """The report with its provenance, ready to be saved."""
        absent = dict.fromkeys(report.missing, f"there is no checkpoint of it in {self.runs}")
        named = {"name": self.recipe.name, "architecture": str(self.recipe.sizes["architecture"])}
        where = provenance(named, self.recipe.task, {"seeds": self.seeds, "n": self.n, "seed": self.seed})
        weights = dict(zip(report.replicas, report.weights_hashes, strict=True))
        where |= {"weights": weights, "recipe": self.recipe.to_dict()}
        return Diagnosis(reports={report.name: report}, skipped=absent, provenance=where)

    def _replica(self, own: Recipe, scores: Scores) -> Replica:
        return Replica(name=own.name, scores=scores, log=_log(self._kept.path(own).parent / LOG))


def _log(path: Path) -> Mapping[int, tuple[float, float]]:
    """A run's log by step: KL in bits and loss in nats; empty where none was kept."""
    return {int(line["step"]): (float(line["kl_bits"]), float(line["loss_nats"])) for line in read_log(path)}
