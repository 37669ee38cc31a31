"""`diff`: differences between two models or two diagnoses, paired over sequences where both have their scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
from jaxtyping import Float64

from bayesgeom.checks.arguments import checked
from bayesgeom.checks.text import shown
from bayesgeom.comparison.difference_report import CONSERVATIVE, PAIRED, DifferenceReport, is_of_head
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.probes.calibration import SCORES, CalibrationReport, sequence_scores
from bayesgeom.results.diagnosis import Diagnosis, load_report
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.report import Report, with_provenance
from bayesgeom.results.storage import JSON, quantities_of
from bayesgeom.results.tidy import INDICES, Record, records_of
from bayesgeom.stats.bootstrap import mean_difference, mean_interval
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

N_SEQUENCES = 512
_AXES = {"L": "layer", "H": "head"}
_SAME = 1e-5  # rounding moves means of the exact predictive (bits, or a share) by less
NO_DIFFERENCE = Baseline.of("baseline", "no difference", 0.0)
# Label, unit and better direction of each of `SCORES`.
_LABELS = (
    ("KL(exact ‖ model)", "bits", "lower"),
    ("entropy error", "bits", "lower"),
    ("total variation from the exact predictive", "", "lower"),
    ("off-answer probability", "", "lower"),
    ("cross-entropy on the labels", "bits", "lower"),
    ("accuracy", "", "higher"),
)


@checked("a", "b", "task")
def diff(
    a: ModelLike | Diagnosis,
    b: ModelLike | Diagnosis,
    task: TaskLike | None = None,
    *,
    n: int | None = None,
    seed: int | None = None,
) -> DifferenceReport:
    """Compare two models on the same sequences, or two diagnoses, with an interval for every difference B − A.

    Two models are run on the same `n` sequences and compared sequence by sequence: intervals are paired. Two diagnoses
    must have the same task, n and seed. Their calibration stores the scores of every sequence, so these six rows are
    paired in the same way. All other rows have conservative intervals, from the ends of both intervals: wide enough for
    any correlation. `is_paired` states which rows are paired. `bayesgeom.compare` compares architectures on several
    tasks, trained at the same budget.

    Args:
        a: A model, or anything that `bayesgeom.as_model` accepts; or a diagnosis, or the directory of a saved one.
        b: Of the same kind as `a`.
        task: Task on which models are measured. Default: the task on which both were trained.
        n: Number of sequences for models. Default: 512.
        seed: Seed of the sequences and of the intervals, for models. Default: 0.

    Returns:
        A report with both values, the difference, its interval and a verdict for each quantity.

    Raises:
        InvalidArgument: One is a diagnosis and the other a model; tasks, n or seeds differ; or two diagnoses are given
            with a task, n or seed.
        TaskMismatch: The task has no exact posterior, or does not fit a model.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> report = bayesgeom.diff(config.build(seed=0), config.build(seed=1), task, n=16)
        >>> report.rows[0], report.difference.value.shape
        ('KL(exact ‖ model)', (6,))
    """
    first, second = (_side(own) for own in (a, b))
    if isinstance(first, Diagnosis) and isinstance(second, Diagnosis):
        if given := [name for name, own in (("task", task), ("n", n), ("seed", seed)) if own is not None]:
            raise InvalidArgument(f"{', '.join(given)} cannot be passed with diagnoses, which are already measured.")
        return _of_diagnoses(first, second)
    if isinstance(first, Diagnosis) or isinstance(second, Diagnosis):
        raise InvalidArgument("one argument is a diagnosis and the other a model: pass two models, or two diagnoses.")
    return _of_models(first, second, task, n=N_SEQUENCES if n is None else n, seed=0 if seed is None else seed)


def _side(value: ModelLike | Diagnosis) -> Model | Diagnosis:
    if _is_report(value):
        assert isinstance(value, str | Path), "checked"
        found = load_report(value)
        return found if isinstance(found, Diagnosis) else Diagnosis.of(found)
    return value if isinstance(value, Diagnosis) else as_model(value)


def _is_report(value: object) -> bool:
    """Whether this is the path of a saved report; text that can be no path is none."""
    try:
        return isinstance(value, str | Path) and (Path(value) / JSON).is_file()
    except (OSError, ValueError):
        return False


def _of_models(a: Model, b: Model, task: TaskLike | None, *, n: int, seed: int) -> DifferenceReport:
    if n < 2:
        raise InvalidArgument(f"n, the number of sequences, must be at least 2 for an interval; got {n}.")
    tasks = [scored_task_of(model, task) for model in (a, b)]
    if tasks[0] != tasks[1]:
        _refuse("task", *map(str, tasks), advice="Pass task=… (--task), on which both are measured.")
    rows = _paired(*(_scores(model, tasks[0], n, seed) for model in (a, b)), seed=seed)
    report = _report(rows, _names(a.spec.name, b.spec.name), PAIRED, n=n)
    return with_provenance(report, _source(a.spec.to_dict(), b.spec.to_dict(), tasks[0], n, seed))


def _scores(model: Model, task: WindTunnel, n: int, seed: int) -> Float64[np.ndarray, "sequence score"]:
    blocks = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)
    return sequence_scores(model.run(blocks, seed=derived_seed(seed, Branch.RESAMPLING)).behavior)


@final
@dataclass(frozen=True, kw_only=True)
class _Row:
    """One quantity of both: its values, their difference and its interval, and whether that is paired.

    `key` identifies it: the report, the metric, and where in it.
    """

    key: tuple[Any, ...]
    label: str
    unit: str
    better: str
    values: tuple[float, float]
    difference: float
    ends: tuple[float, float]
    is_leading: bool
    is_paired: bool


def _paired(
    a: Float64[np.ndarray, "sequence score"], b: Float64[np.ndarray, "sequence score"], *, seed: int
) -> list[_Row]:
    """Return a row for each of `SCORES`, with the intervals of the differences of single sequences."""
    with np.errstate(invalid="ignore"):  # both infinite: the difference is missing
        difference = b - a
    means = mean_difference(a, b)
    low, high = mean_interval(difference, seed=derived_seed(seed, Branch.RESAMPLING))
    return [
        _Row(
            key=(CalibrationReport.name, name, *((("source", "model"),) if name == "accuracy" else ())),
            label=label,
            unit=unit,
            better=better,
            values=(float(a[:, at].mean()), float(b[:, at].mean())),
            difference=float(means[at]),
            ends=(float(low[at]), float(high[at])),
            is_leading=True,
            is_paired=True,
        )
        for at, (name, (label, unit, better)) in enumerate(zip(SCORES, _LABELS, strict=True))
    ]


def _report(rows: Sequence[_Row], names: tuple[str, str], pairing: str, *, n: int) -> DifferenceReport:
    first, second, differences, low, high = np.array([(*own.values, own.difference, *own.ends) for own in rows]).T
    return DifferenceReport(
        rows=tuple(own.label for own in rows),
        units=tuple(own.unit for own in rows),
        better=tuple(own.better for own in rows),
        first=first,
        second=second,
        difference=Estimate.of(differences, (low, high), n=n, baselines=(NO_DIFFERENCE,)),
        is_paired=np.array([own.is_paired for own in rows]),
        names=names,
        pairing=pairing,
        n_leading=max(1, sum(own.is_leading for own in rows)),
        n=n,
    )


def _of_diagnoses(a: Diagnosis, b: Diagnosis) -> DifferenceReport:
    sources = [own.provenance for own in (a, b)]
    if not all(sources):
        bare = " and ".join(name for name, own in zip("AB", sources, strict=True) if not own)
        raise InvalidArgument(f"{bare} has no provenance, so its task, n and seed are unknown: measure it again.")
    again = "Measure both with the same."
    if (labels := [own["task_label"] for own in sources])[0] != labels[1]:
        _refuse("task", *labels, advice=again)
    tasks: list[dict[str, Any]] = [own.get("task", {}) for own in sources]
    for name in dict.fromkeys(name for own in tasks for name in own if tasks[0].get(name) != tasks[1].get(name)):
        _refuse(f"{name} of the task", *(shown(own.get(name)) for own in tasks), advice=again)
    for name in ("n", "seed"):
        found = [own["arguments"].get(name) for own in sources]
        if found[0] != found[1]:
            _refuse(name, *found, advice=again)
        if found[0] is None:
            raise InvalidArgument(f"A and B state no {name}, so their sequences are unknown: diff compares diagnoses.")
    n, seed = sources[0]["arguments"]["n"], sources[0]["arguments"]["seed"]
    shared = [name for name in a if name in b and type(a[name]) is type(b[name])]
    rows = [row for name in shared for row in _conservative(a[name], b[name])]
    if not rows:
        raise InvalidArgument(
            f"the diagnoses share no estimate: A has {', '.join(a)}; B has {', '.join(b)}. Measure both with the same "
            f"probes."
        )
    rows.sort(key=lambda row: (not row.is_leading, is_of_head(row.label)))
    pairing = f"{CONSERVATIVE}, because {reason}" if (reason := _unpaired(a, b)) else ""
    if not pairing:
        rows = _joined(_paired_diagnoses(a, b, seed), rows)
        n_paired = sum(row.is_paired for row in rows)
        pairing = f"paired over sequences in {n_paired} of {len(rows)} rows, {CONSERVATIVE} in the others"
    names = _names(sources[0]["model"]["name"], sources[1]["model"]["name"])
    source = _source(sources[0]["model"], sources[1]["model"], sources[0]["task_label"], n, seed)
    return with_provenance(_report(rows, names, pairing, n=n), source)


def _unpaired(a: Diagnosis, b: Diagnosis) -> str:
    """Return why two diagnoses cannot be compared sequence by sequence; "" if they can."""
    name, found = CalibrationReport.name, {"A": a, "B": b}
    own = {side: report for side, of in found.items() if isinstance(report := of.reports.get(name), CalibrationReport)}
    if lacking := " and ".join(side for side in found if side not in own):
        return f"{name}, which alone stores single sequences, is missing in {lacking}"
    if lacking := " and ".join(side for side, report in own.items() if len(report.sequence_scores) != report.n):
        return f"{name} holds no scores per sequence in {lacking}"
    first, second = ([*report.entropy_bits_by_position[0], report.accuracy.value[0]] for report in own.values())
    if len(first) != len(second) or not np.allclose(first, second, rtol=0, atol=_SAME):
        return "their sequences differ (another version of the task drew them)"
    return ""


def _paired_diagnoses(a: Diagnosis, b: Diagnosis, seed: int) -> list[_Row]:
    scores = [own[CalibrationReport].sequence_scores.astype(np.float64) for own in (a, b)]
    name = CalibrationReport.name
    return [replace(row, label=f"{name}: {row.label}") for row in _paired(*scores, seed=seed)]


def _joined(paired: Sequence[_Row], rows: Sequence[_Row]) -> list[_Row]:
    """Return paired rows, then those of other quantities; one whose paired interval is withheld stays conservative."""
    others = {row.key: row for row in rows}
    withheld = {row.key for row in paired if not np.isfinite(row.ends).all() and row.key in others}
    first = [replace(others[row.key], is_leading=row.is_leading) if row.key in withheld else row for row in paired]
    known = {row.key for row in paired}
    return [*first, *(row for row in rows if row.key not in known)]


def _conservative(a: Report, b: Report) -> list[_Row]:
    """Return the estimates with intervals in both reports, except single positions, and whether each is a headline.

    Only calibration measures closeness to the exact posterior, so only its rows have a better direction.
    """
    leading = {line.metric for line in a.headlines()}
    declared, theirs = quantities_of(type(a)), {_key_of(own): own for own in records_of(b)}
    found: list[_Row] = []
    for own in records_of(a):
        other = theirs.get(_key_of(own))
        if (
            own.metric not in declared
            or own.place("position") is not None
            or other is None
            or np.isnan(own.low + other.low)
        ):
            continue
        quantity = declared[own.metric]
        where = "".join(f"{letter}{at}" for letter in "LH" if (at := own.place(_AXES[letter])) is not None)
        names = [str(name) for axis, name in own.places.items() if axis not in INDICES.values()]
        parts = filter(None, (quantity.label or own.metric, " / ".join(names), where))
        found.append(
            _Row(
                key=_key_of(own),
                label=f"{a.name}: {', '.join(parts)}",
                unit=own.unit,
                better=quantity.better if a.name == CalibrationReport.name else "",
                values=(own.value, other.value),
                difference=other.value - own.value,
                ends=(other.low - own.high, other.high - own.low),
                is_leading=own.metric in leading and own.place("layer") is None,
                is_paired=False,
            )
        )
    return found


def _key_of(own: Record) -> tuple[Any, ...]:
    return (own.probe, own.metric, *own.places.items())


def _refuse(name: str, a: object, b: object, *, advice: str) -> NoReturn:
    raise InvalidArgument(f"the two differ in {name}: A has {a}, B has {b}. {advice}")


def _names(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a != b else (f"{a} (A)", f"{b} (B)")


def _source(a: dict[str, Any], b: dict[str, Any], task: WindTunnel | str, n: int, seed: int) -> dict[str, Any]:
    both = {"name": f"{a['name']} (A) and {b['name']} (B)", "architecture": f"{a['architecture']}, {b['architecture']}"}
    made = {f"{side}_{key}": own.get(key, "") for side, own in (("a", a), ("b", b)) for key in ("name", "weights_hash")}
    weights = {f"{side}: {own['name']}": own.get("weights_hash", "") for side, own in (("A", a), ("B", b))}
    return provenance(both, task, {"n": n, "seed": seed, **made}) | {"weights": weights}
