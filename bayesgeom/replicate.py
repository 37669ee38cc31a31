"""`replicate`: one recipe under several seeds, trained where it is missing and loaded where it is there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from tqdm.auto import tqdm

from bayesgeom.diagnosis import Diagnosis
from bayesgeom.errors import InvalidArgument, UnknownName
from bayesgeom.models.checkpoint import versions
from bayesgeom.over_training.replication import Replica, ReplicationReport, replication_report
from bayesgeom.tasks.base import derived_seed
from bayesgeom.training.kept import Kept
from bayesgeom.training.loop import LOG
from bayesgeom.training.recipe import Recipe
from bayesgeom.training.recipes import recipe as committed

RUNS = Path("runs/train")
N_SCORED, N_SEEDS = 2_000, 5
_TRIALS, _RESAMPLING = 0, 2  # branches of the seed, as in diagnose


def replicate(
    recipe: str | Recipe,
    *,
    seeds: int = N_SEEDS,
    runs: str | Path = RUNS,
    n: int = N_SCORED,
    seed: int = 0,
    is_trained: bool = True,
) -> ReplicationReport:
    """Mean and spread of a recipe's scores over `seeds` trainings, all scored on the same `n` sequences.

    Seed 0 is the recipe itself, the others count from it. Each is taken from `runs`, the first also from the named
    checkpoints; what is not there is trained in `runs`, for hours, unless `is_trained` is false: then those that exist
    are reported, and the report names the others. A training that was stopped goes on.

    **Raises** `UnknownName` for a recipe that does not exist, or where nothing may be trained and nothing is there;
    `InvalidArgument` for fewer than one seed; `CheckpointFault` for a checkpoint that another recipe made.
    """
    chosen = committed(recipe) if isinstance(recipe, str) else recipe
    return ReplicationJob(
        recipe=chosen, seeds=seeds, runs=Path(runs), n=n, seed=seed, is_trained=is_trained
    ).run()  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class ReplicationJob:
    """A checked replication, ready to run. One model is in memory at a time."""

    recipe: Recipe
    seeds: int
    runs: Path
    n: int
    seed: int
    is_trained: bool

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.n < 2:
            raise InvalidArgument(f"seeds is at least 1 and n at least 2, got {self.seeds} and {self.n}.")

    @property
    def _kept(self) -> Kept:
        return Kept(runs=self.runs, is_trained=self.is_trained, is_run_first=True)

    def recipes(self) -> list[Recipe]:
        """The recipe under every seed."""
        return [self.recipe.reseeded(by) for by in range(self.seeds)]

    def run(self) -> ReplicationReport:
        """Train what is missing, score all."""
        kept, wanted = self._kept, self.recipes()
        missing = [] if self.is_trained else [own.name for own in wanted if not kept.has(own)]
        if len(missing) == len(wanted):
            raise UnknownName(
                f"there is no checkpoint of {self.recipe.name!r} under any of {self.seeds} seed(s), in {self.runs} or "
                f"by name: leave out --only-existing to have them trained."
            )
        with tqdm(total=len(wanted) - len(missing), desc="seeds", disable=None, leave=False) as bar:
            replicas = []
            for own in wanted:
                if own.name not in missing:
                    replicas.append(self._replica(own))
                    bar.update(1)
        seed = derived_seed(self.seed, _RESAMPLING)
        return replication_report(self.recipe.name, replicas, missing=missing, seed=seed)

    def diagnosis(self, report: ReplicationReport) -> Diagnosis:
        """The report with its provenance, ready to be saved."""
        absent = dict.fromkeys(report.missing, f"there is no checkpoint of it in {self.runs}")
        return Diagnosis(
            reports={report.name: report},
            skipped=absent,
            provenance={
                "model": {"name": self.recipe.name, "architecture": str(self.recipe.sizes["architecture"])},
                "task_label": str(self.recipe.task),
                "arguments": {"seeds": self.seeds, "n": self.n, "seed": self.seed},
                "weights": dict(zip(report.replicas, report.weights_hashes, strict=True)),
                "recipe": self.recipe.to_dict(),
                "versions": versions(),
            },
        )

    def _replica(self, own: Recipe) -> Replica:
        model, task = self._kept.model(own), own.task
        stream = task.stream(self.n, seed=derived_seed(self.seed, _TRIALS), device=model.spec.device)
        run = model.run(stream, null_predictives=task.null_predictives)
        scored, exact = run.behaviour, run.behaviour.exact_entropy_bits
        uniform = float(np.log2(len(run.trials.answers)))
        return Replica(
            name=own.name,
            weights_hash=model.spec.weights_hash,
            kl_bits=scored.kl_bits.mean(axis=1, dtype=np.float64),
            entropy_mae_bits=np.abs(scored.model_entropy_bits - exact).mean(axis=1, dtype=np.float64),
            null_kl_bits=uniform - float(exact.mean(dtype=np.float64)),
            null_entropy_mae_bits=float(np.abs(uniform - exact).mean(dtype=np.float64)),
            log=_log(self._kept.path(own).parent / LOG),
        )


def _log(path: Path) -> Mapping[int, tuple[float, float]]:
    """A run's log by step: KL in bits and loss in nats; empty where none was kept."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {int(line["step"]): (float(line["kl_bits"]), float(line["loss_nats"])) for line in lines}
