"""Batteries on an executor: every block of sequences is a job, and their sums are added in the order of the blocks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from bayesgeom.ablations.tally import Tally
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.engines.executor import Batch, Job, path_of


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """The tally of one block: sums of consecutive units, the first of which is `first`."""

    first: int
    tally: Tally

    @classmethod
    def of(cls, tally: Tally) -> "Part":
        """Return the units of a tally that have sequences."""
        stored = np.flatnonzero(tally.counts)
        units = slice(int(stored[0]), int(stored[-1]) + 1)
        return cls(first=units.start, tally=_cut(tally, units))


def _cut(tally: Tally, units: slice) -> Tally:
    return Tally(
        per_unit=tally.per_unit,
        counts=tally.counts[units],
        baseline=tally.baseline[:, units],
        sums=tally.sums[:, :, units],
        profile=tally.profile,
        inert=tally.inert,
        done=tally.done,
    )


def merged(parts: Sequence[Part], n: int) -> Tally:
    """Return the tally of all `n` sequences from those of their blocks.

    The order of `parts` decides at most the last digit: each sequence is in one part.
    """
    one = parts[0].tally
    n_variants, _, n_positions = one.profile.shape
    whole = Tally.empty(n, n_variants - 1, n_positions)
    counts, baseline, sums = whole.counts.copy(), whole.baseline.copy(), whole.sums.copy()
    profile, inert = np.zeros_like(one.profile), np.ones_like(one.inert)
    for part in parts:
        units = slice(part.first, part.first + len(part.tally.counts))
        counts[units] += part.tally.counts
        baseline[:, units] += part.tally.baseline
        sums[:, :, units] += part.tally.sums
        profile += part.tally.profile
        inert &= part.tally.inert
    assert counts.sum() == n, "every sequence is in one part"
    return Tally(
        per_unit=one.per_unit, counts=counts, baseline=baseline, sums=sums, profile=profile, inert=inert, done=n
    )


def sent_tally(batch: Batch, block_at: Callable[..., Part], described: Mapping[str, Any], n_blocks: int) -> Tally:
    """Return the tally of a battery whose blocks are jobs.

    Args:
        batch: Where jobs run.
        block_at: The job of one block.
        described: Arguments of `block_at` that all blocks share.
        n_blocks: Number of blocks.

    Raises:
        InvalidArgument: The battery is not named.
        ExecutorFault: A job failed.
    """
    if not isinstance(described["battery"], str):
        raise InvalidArgument(
            f"executor= requires a battery's name, which workers find (heads, layers, all, …); got a list of "
            f"{len(described['battery'])} ablations. Pass a name, or omit executor=."
        )
    jobs = [
        Job(
            name=f"{described['battery']} block {block}",
            function=path_of(block_at),
            arguments={**described, "block": block},
        )
        for block in range(n_blocks)
    ]
    return merged(batch.results(jobs, desc="blocks"), int(described["n"]))
