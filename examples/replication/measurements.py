"""The measurements behind the subcommands: each prints its report and, with `out`, saves it as a page with all numbers.

A keyword is an option of the command line: `em(seeds=2)` is `python -m examples.replication em --seeds 2`.
"""

from pathlib import Path

from bayesgeom.results.folder import check_target
from bayesgeom.results.report import Report


def em(*, seeds: int = 5, steps: int = 1_000, length: int = 2_000, out: Path | None = None) -> None:
    """Train one attention head with the EM-like schedule and with controls, on a sticky chain.

    Takes about five minutes on two CPU cores with five seeds.

    Args:
        seeds: How many of the paper's seeds (42, 2024, 1337, 7777, 9999): 2 to 5.
        steps: Full-batch training steps.
        length: Symbols per sequence.
        out: Directory for the report. Default: it is not saved.
    """
    from examples.replication.em.report import em_experiment

    _check(out)
    _conclude(em_experiment(seeds=seeds, steps=steps, length=length), out)


def _check(out: Path | None) -> None:
    """Check that the output directory can be written, before anything is measured."""
    if out is not None:
        check_target(out)


def _conclude(report: Report, out: Path | None) -> None:
    """Print the report, and save it if a directory is given."""
    print(report.summary())
    if out is not None:
        report.save(out)
