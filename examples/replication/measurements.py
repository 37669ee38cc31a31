"""The measurements behind the subcommands: each prints its report and, with `out`, saves it as a page with all numbers.

A keyword is an option of the command line: `em(seeds=2)` is `python -m examples.replication em --seeds 2`.
"""

from pathlib import Path

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.dynamics.run import training_dynamics
from bayesgeom.measurements.audit import audit as audited
from bayesgeom.models.resolve import load
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.report import Report
from bayesgeom.report.storage import check_target


def em(
    *, seeds: int = 5, steps: int = 1_000, length: int = 2_000, by_matrix: bool = False, out: Path | None = None
) -> None:
    """Train one attention head with the EM-like schedule and with controls, on a sticky chain.

    Takes about five minutes on two CPU cores with five seeds.

    Args:
        seeds: How many of the paper's seeds (42, 2024, 1337, 7777, 9999): 2 to 5.
        steps: Full-batch training steps.
        length: Symbols per sequence.
        by_matrix: Compare with the same step on one other matrix at a time, on the authors' own chain alone.
        out: Directory for the report. Default: it is not saved.
    """
    from examples.replication.em.report import em_experiment

    _check(out)
    _conclude(em_experiment(seeds=seeds, steps=steps, length=length, by_matrix=by_matrix), out)


def write_strength(
    checkpoint: str,
    /,
    *,
    subspace: str = "frame",
    task: str | None = None,
    n: int = 256,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Measure how strongly each head writes into a subspace, and compare with the effect of ablating the head.

    A shipped checkpoint takes about half a minute on two CPU cores.

    Args:
        checkpoint: Name of a shipped checkpoint, or a directory.
        subspace: The subspace, as for `bayesgeom intervene`. It is fitted at the output of each attention sublayer.
        task: Another task, as for `bayesgeom intervene`. Default: the checkpoint's own.
        n: Number of sequences.
        seed: Seed of sequences and intervals.
        device: Where to run: cpu, cuda, …
        out: Directory for the report. Default: it is not saved.
    """
    from examples.replication.writes import write_strength as measured

    _check(out)
    _conclude(measured(load(checkpoint, device=device), task, subspace, n=n, seed=seed), out)


def value_readings(
    checkpoint: str,
    /,
    *,
    task: str | None = None,
    n: int = 512,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Measure the share of the first principal components of last-layer values in each reading of the papers.

    Args:
        checkpoint: Name of a shipped checkpoint, or a directory.
        task: Another task, as for `bayesgeom diagnose`. Default: the checkpoint's own.
        n: Number of sequences.
        seed: Seed of sequences and intervals.
        device: Where to run: cpu, cuda, …
        out: Directory for the report. Default: it is not saved.
    """
    from examples.replication.values import value_readings as measured

    _check(out)
    _conclude(measured(load(checkpoint, device=device), task, n=n, seed=seed), out)


def pass_thresholds(
    checkpoint: str,
    /,
    *,
    task: str | None = None,
    n: int = 512,
    seed: int = 0,
    n_untrained: int = 3,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Compare a model with the published pass thresholds, and with what passes them by chance.

    Args:
        checkpoint: Name of a shipped checkpoint, a directory, or owner/name on Hugging Face's hub.
        task: Another task, as for `bayesgeom diagnose`. Default: the checkpoint's own.
        n: Number of sequences.
        seed: Seed of sequences and intervals.
        n_untrained: Number of untrained networks to compare with.
        device: Where to run: cpu, cuda, …
        out: Directory for the report. Default: it is not saved.
    """
    from examples.replication.thresholds import PassThresholds

    _check(out)
    model = load(checkpoint, device=device)
    found = diagnose(model, task, probes=[PassThresholds()], n=n, seed=seed, n_untrained=n_untrained)
    _conclude(found[PassThresholds.name], out)


def audit(
    checkpoint: str,
    /,
    *,
    task: str | None = None,
    n: int = 128,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Audit the predictions of a model part by part, among them what a piece of evidence teaches.

    Args:
        checkpoint: Name of a shipped checkpoint, or a directory.
        task: Another task, as for `bayesgeom diagnose`. Default: the checkpoint's own.
        n: Number of sequences.
        seed: Seed of sequences and intervals.
        device: Where to run: cpu, cuda, …
        out: Directory for the report. Default: it is not saved.
    """
    _check(out)
    _conclude(audited(load(checkpoint, device=device), task, n=n, seed=seed), out)


def elimination(
    checkpoint: str,
    /,
    *,
    n: int = 128,
    seed: int = 0,
    n_untrained: int = 1,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Find the layer at which the logit lens eliminates each answer that the evidence rules out.

    A shipped checkpoint takes about ten seconds on one CPU core.

    Args:
        checkpoint: Name of a shipped checkpoint, or a directory.
        n: Number of sequences.
        seed: Seed of sequences and intervals.
        n_untrained: Number of untrained networks to compare with.
        device: Where to run: cpu, cuda, …
        out: Directory for the report. Default: it is not saved.
    """
    from examples.replication.elimination import Elimination

    _check(out)
    model = load(checkpoint, device=device)
    found = diagnose(model, probes=[Elimination()], n=n, seed=seed, n_untrained=n_untrained)
    _conclude(found[Elimination.name], out)


def settling(
    runs: tuple[str, ...] = (),
    /,
    *,
    from_report: Path | None = None,
    n: int = 256,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """State what settles first over trainings, frame or precision, and what falls again.

    Args:
        runs: Directories of runs, or names of packed trainings, one per seed, as for `bayesgeom dynamics`. Required
            without --from-report.
        from_report: A saved report of `bayesgeom dynamics` instead of runs. Nothing is measured.
        n: Number of sequences on which each snapshot is measured.
        seed: Seed of sequences and intervals.
        device: Where to run: cpu, cuda, …
        out: Directory for the report, with the curves. Default: it is not saved.
    """
    from examples.replication.settling import decided_again, with_settling

    _check(out)
    if (from_report is None) != bool(runs):
        raise InvalidArgument(f"name runs or --from-report, not both and not neither; got {', '.join(runs)}.")
    if from_report is not None:
        _conclude(decided_again(from_report), out)
    else:
        _conclude(with_settling(training_dynamics(*runs, n=n, seed=seed, device=device, out=out)), out)


def _check(out: Path | None) -> None:
    """Check that the output directory can be written, before anything is measured."""
    if out is not None:
        check_target(out)


def _conclude(report: Report | Diagnosis, out: Path | None) -> None:
    """Print the report, and save it if a directory is given."""
    print(report.summary())
    if out is not None:
        report.save(out)
