"""The tally: running sums of a battery, in memory that does not grow with n, saved atomically.

Results are stored for at most `MAX_UNITS` units. A unit is a run of consecutive sequences, independent of the other
units, so resampling units is equivalent to resampling sequences. With many variants there are fewer units, so that
all sums fit `MAX_BYTES`; `MIN_UNITS` are enough for a percentile interval.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from jaxtyping import Bool, Float, Int

from bayesgeom.ablations.engine import METRICS, BatchScores
from bayesgeom.core import OutputFault
from bayesgeom.core.files import differences
from bayesgeom.core.parcels import read_parcel, write_parcel
from bayesgeom.report.storage import PROGRESS

MAX_UNITS, MIN_UNITS = 4_096, 256
MAX_BYTES = 64 * 2**20


@final
@dataclass(frozen=True, kw_only=True)
class Tally:
    """Sums over sequences; `sums` adds each sequence's mean over positions, row 0 of `profile` has no ablation."""

    per_unit: int
    counts: Int[np.ndarray, " unit"]
    baseline: Float[np.ndarray, "metric unit"]
    sums: Float[np.ndarray, "variant metric unit"]
    profile: Float[np.ndarray, "row metric position"]
    inert: Bool[np.ndarray, " variant"]
    done: int

    @classmethod
    def empty(cls, n: int, n_variants: int, n_positions: int) -> Self:
        """Return a tally of n sequences, none of them measured yet."""
        metrics = len(METRICS)
        affordable = MAX_BYTES // (8 * metrics * n_variants)
        per_unit = -(-n // min(MAX_UNITS, max(MIN_UNITS, affordable)))
        units = -(-n // per_unit)
        return cls(
            per_unit=per_unit,
            counts=np.zeros(units, dtype=np.int64),
            baseline=np.zeros((metrics, units)),
            sums=np.zeros((n_variants, metrics, units)),
            profile=np.zeros((1 + n_variants, metrics, n_positions)),
            inert=np.ones(n_variants, dtype=bool),
            done=0,
        )

    def plus(self, batch: BatchScores) -> Self:
        """Return the tally with the next sequences added."""
        n = batch.baseline.shape[1]
        unit = np.arange(self.done, self.done + n) // self.per_unit
        member = np.zeros((n, len(self.counts)))
        member[np.arange(n), unit] = 1.0
        both = np.concatenate([batch.baseline[None], batch.variants])
        return replace(
            self,
            counts=self.counts + member.sum(axis=0).astype(np.int64),
            baseline=self.baseline + batch.baseline.mean(axis=-1) @ member,
            sums=self.sums + batch.variants.mean(axis=-1) @ member,
            profile=self.profile + both.sum(axis=2),
            inert=self.inert & batch.inert,
            done=self.done + n,
        )

    def part(self) -> "tuple[int, Tally]":
        """Return the units that have sequences, which are neighbors, after the number of the first one."""
        first, last = np.flatnonzero(self.counts)[[0, -1]]
        units = slice(first, last + 1)
        baseline, sums = self.baseline[:, units], self.sums[..., units]
        return int(first), replace(self, counts=self.counts[units], baseline=baseline, sums=sums)

    def joined(self, first: int, part: "Tally") -> "Tally":
        """Return the tally with a part of it added, whose units begin at `first`."""
        around = (first, len(self.counts) - first - len(part.counts))
        return replace(
            self,
            counts=self.counts + np.pad(part.counts, around),
            baseline=self.baseline + np.pad(part.baseline, ((0, 0), around)),
            sums=self.sums + np.pad(part.sums, ((0, 0), (0, 0), around)),
            profile=self.profile + part.profile,
            inert=self.inert & part.inert,
            done=self.done + int(part.counts.sum()),
        )

    def save(self, folder: Path, job: dict[str, Any]) -> None:
        """Write the tally; `job` describes the battery that it belongs to."""
        write_parcel(folder / PROGRESS, {"job": json.loads(json.dumps(job)), "tally": self})

    @classmethod
    def load(cls, folder: Path, job: dict[str, Any]) -> "Tally | None":
        """Return the tally that `save` wrote for this job, or None.

        Raises:
            OutputFault: The progress cannot be read, or belongs to another job.
        """
        if not (folder / PROGRESS).exists():
            return None
        stored = read_parcel(folder / PROGRESS)
        if other := differences(stored["job"], json.loads(json.dumps(job))):
            raise OutputFault(
                f"{folder} holds the progress of another battery ({other}): repeat that battery, in its environment, "
                f"to continue it, use another directory, or delete {PROGRESS} there."
            )
        tally: Tally = stored["tally"]
        return tally
