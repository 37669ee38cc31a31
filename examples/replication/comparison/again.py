"""Use a saved comparison without its models: restate its verdicts by the current rules, or add its rows to another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.report.estimate import ROUNDING, Estimate, stacked
from bayesgeom.report.report import with_provenance
from examples.replication.comparison.cell import Cell, cell
from examples.replication.comparison.report import (
    ComparisonReport,
    shares_of,
    sizes,
    stated,
    task_baselines,
    verdict_on,
)
from examples.replication.comparison.scores import CONTEXT_FREE, Levels, levels
from examples.replication.training.recipes import ALL_TASKS, ARCHITECTURES, ON_REQUEST

_TEXTS = (
    "checkpoints",
    "task_of",
    "architecture_of",
    "is_check",
    "verdicts",
    "published",
    "standings",
    "targets",
    "rate_search",
    "weights_hashes",
)
_ESTIMATES = ("kl_bits", "entropy_mae_bits", "share_closed", "accuracy_where_known", "memory_symbols")


def restated(path: Path) -> ComparisonReport:
    """Read a saved comparison and recompute its terms, baselines and verdicts by the current rules.

    Scores and equivalent window do not change. Baselines are scored on the same sequences. Where the best context-free
    predictor of today is better than the saved one, shares closed are from its level.

    Args:
        path: Directory of the saved report.

    Raises:
        OutputFault: The directory holds no readable comparison.
    """
    old = ComparisonReport.load(path)
    return _restated(old, old.provenance)


def _restated(old: ComparisonReport, provenance: Mapping[str, Any]) -> ComparisonReport:
    arguments = provenance["arguments"]
    rows = zip(old.task_of, old.architecture_of, old.checkpoints, old.is_check, strict=True)
    cells = [_cell(*row) for row in rows]
    tasks = {own.task: own.recipe.task for own in cells}
    n, seed = int(arguments["n"]), int(arguments["seed"])
    by_task = {name: levels(task, n=n, seed=seed) for name, task in tasks.items()}
    found = [by_task[own.task] for own in cells]
    free = _least_context_free(old, found)
    shares = _from_level(old.share_closed, old.kl_bits.baseline(CONTEXT_FREE).value / free)
    terms = zip(cells, shares.value, old.memory_symbols.value, found, strict=True)
    verdicts = [
        verdict_on(own.task, float(share), float(symbols), known.window_gap_bits)
        for own, share, symbols, known in terms
    ]
    against = [known.against(float(symbols)) for known, symbols in zip(found, old.memory_symbols.value, strict=True)]
    levels_kl = task_baselines(free, against)
    errors = np.array([known.entropy_error_bits[CONTEXT_FREE] for known in found])
    hits = [known.accuracy_where_known for known in found]
    report = replace(
        old,
        **stated(cells, verdicts, old.size_of[0].tolist()),
        kl_bits=replace(old.kl_bits, baselines=levels_kl),
        entropy_mae_bits=replace(old.entropy_mae_bits, baselines=task_baselines(errors, ())),
        share_closed=replace(shares, baselines=shares_of(levels_kl)),
        accuracy_where_known=replace(
            old.accuracy_where_known,
            baselines=task_baselines(np.array([known[CONTEXT_FREE] for known in hits]), hits),
        ),
        window_gap_bits=np.array([known.window_gap_bits for known in found]),
    )
    return with_provenance(report, provenance)


def _least_context_free(old: ComparisonReport, found: Sequence[Levels]) -> Float[np.ndarray, " checkpoint"]:
    """Return the KL of the best context-free predictor; a saved level counts unless the present one is lower."""
    before = old.kl_bits.baseline(CONTEXT_FREE).value
    now = np.array([own.kl_bits[CONTEXT_FREE] for own in found])
    return np.where(now < before * (1 - ROUNDING), now, before)


def _from_level(shares: Estimate, ratio: Float[np.ndarray, " checkpoint"]) -> Estimate:
    """Return shares closed from another level; `ratio` is the former level over the new one.

    Ends change by the same factor as values, which is accurate where the model's KL varies more over sequences than the
    ratio of the two levels. At the level of the predictors themselves, the interval is too wide. Without baselines.
    """
    own = replace(shares, baselines=())
    return own.mapped(lambda share: np.where(ratio == 1, share, 1 - (1 - share) * ratio))


def _cell(task: str, architecture: str, checkpoint: str, is_check: bool) -> Cell:
    """Return the cell of a row; its seed is read from the checkpoint's name."""
    return cell(task, architecture, seed=_seed(checkpoint), is_check=is_check)


def _seed(checkpoint: str) -> int:
    """Return the seed that a checkpoint's name states; 0 if it states none."""
    _, has_seed, after = checkpoint.partition("-seed")
    return int(after.split("-")[0]) if has_seed else 0


def with_rows_of(path: Path, new: ComparisonReport, *, saved: ComparisonReport | None = None) -> ComparisonReport:
    """Return a comparison with the rows of a saved one for models that the new one lacks, and verdicts on all of them.

    It serves for trainings whose weights are no longer there, such as seeds that do not ship. Scores and effective
    memory of both keep their values. Terms, baselines and verdicts are recomputed as by `restated`.

    Args:
        path: Directory of the saved comparison.
        new: The new comparison. Where both have a row of the same name, the new row counts.
        saved: The comparison in `path`, if `joinable` loaded it already.

    Raises:
        OutputFault: The directory holds no readable comparison.
        InvalidArgument: The two were scored on other sequences (n, seed or a task differs), or a row to copy was
            trained by another recipe than the present one.
    """
    where = new.provenance
    old = saved or joinable(path, n=where["arguments"]["n"], seed=where["arguments"]["seed"])
    before = old.provenance
    both = where["task"].keys() & before["task"].keys()
    if other := [name for name in both if where["task"][name] != before["task"][name]]:
        raise InvalidArgument(
            f"{path} was scored on other sequences (parameters of {', '.join(other)} differ). Use its tasks."
        )
    copied = [index for index, name in enumerate(old.checkpoints) if name not in new.checkpoints]
    _check_recipes(path, old, copied)
    rows = [*((new, index) for index in range(len(new.checkpoints))), *((old, index) for index in copied)]
    rows.sort(key=lambda row: _place(*row))
    named = [own.checkpoints[index] for own, index in rows]
    missing = tuple(name for name in dict.fromkeys((*old.missing, *new.missing)) if name not in named)
    report = replace(new, **_joined(rows), missing=missing)
    sources = before.get("rows_of", {})
    added = {name: sources.get(name, path.as_posix()) for own, name in zip(rows, named, strict=True) if own[0] is old}
    joined = {
        "model": {"name": ", ".join(report.architectures), "architecture": "several"},
        "task_label": ", ".join(report.tasks),
        "task": {**before["task"], **where["task"]},
        "weights": {**before["weights"], **where["weights"]},
    }
    return _restated(report, {**where, **joined, "rows_of": added})


def _check_recipes(path: Path, old: ComparisonReport, copied: Sequence[int]) -> None:
    """Check that the rows to copy have the terms of the present recipes, as far as a report states them."""
    for index in copied:
        name, n_parameters = old.checkpoints[index], int(old.size_of[0, index])
        own = _cell(old.task_of[index], old.architecture_of[index], name, old.is_check[index])
        present: dict[str, str | int] = {"targets": own.targets, "rate search": own.rate_search}
        saved: dict[str, str | int] = {"targets": old.targets[index], "rate search": old.rate_search[index]}
        known = sizes([own], [n_parameters])["size_of"][1:, 0]  # the first is the number of parameters, copied itself
        for what, size, now in zip(old.sizes[1:], old.size_of[1:, index], known, strict=True):
            present[what], saved[what] = int(now), int(size)
        if other := [f"{what}: {saved[what]} against {now}" for what, now in present.items() if saved[what] != now]:
            raise InvalidArgument(
                f"{path}: {name} was trained by another recipe than the present one ({'; '.join(other)}). "
                f"Train it again, or leave out --rows-of."
            )


def joinable(path: Path, *, n: int, seed: int) -> ComparisonReport:
    """Return a saved comparison on this number of sequences with this seed, so that its rows can join others.

    Raises:
        OutputFault: The directory holds no readable comparison.
        InvalidArgument: It was scored on other sequences.
    """
    old = ComparisonReport.load(path)
    before = {name: old.provenance["arguments"][name] for name in ("n", "seed")}
    if before != (now := {"n": n, "seed": seed}):
        raise InvalidArgument(f"{path} was scored on other sequences ({before} against {now}). Use its --n and --seed.")
    return old


def _place(report: ComparisonReport, index: int) -> tuple[bool, int, int, int]:
    """Return where a row stands: checks last, then by task, architecture and seed."""
    at_task = ALL_TASKS.index(report.task_of[index])
    at_architecture = (*ARCHITECTURES, *ON_REQUEST).index(report.architecture_of[index])
    return report.is_check[index], at_task, at_architecture, _seed(report.checkpoints[index])


def _joined(rows: Sequence[tuple[ComparisonReport, int]]) -> dict[str, Any]:
    """Return the fields with one entry per checkpoint, with these rows of several reports."""
    found = dict[str, Any]()
    for name in _TEXTS:
        of = attrgetter(name)
        found[name] = tuple(of(report)[index] for report, index in rows)
    for name in _ESTIMATES:
        of = attrgetter(name)
        found[name] = stacked([of(report)[index] for report, index in rows])
    found["size_of"] = np.stack([report.size_of[:, index] for report, index in rows], axis=1)
    found["window_gap_bits"] = np.array([report.window_gap_bits[index] for report, index in rows])
    return found
