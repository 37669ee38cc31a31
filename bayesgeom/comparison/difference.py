"""`diff`: paired differences between two models on the same sequences, or between two diagnoses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
from jaxtyping import Float

from bayesgeom.checks.arguments import checked
from bayesgeom.comparison.difference_report import CONSERVATIVE, PAIRED, DifferenceReport
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Behavior
from bayesgeom.models.base import Model
from bayesgeom.models.provenance import provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.results.diagnosis import Diagnosis, load_report
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.report import Report, with_provenance
from bayesgeom.results.storage import JSON, quantities_of
from bayesgeom.results.tidy import Record, records_of
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

N_SEQUENCES = 512
NO_DIFFERENCE = Baseline.of("baseline", "no difference", 0.0)
# Field of the report, label, unit, better direction.
_BEHAVIOR = (
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
    must have the same task, n and seed. They store no single sequences, so the intervals are computed from the ends of
    both: these are conservative, wider than paired intervals. `bayesgeom.compare` compares architectures on several
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
    found = [_per_sequence(model, tasks[0], n, seed) for model in (a, b)]
    names = _names(a.spec.name, b.spec.name)
    rows, units, better = zip(*_BEHAVIOR, strict=True)
    paired = found[1] - found[0]
    low, high = mean_interval(paired, seed=derived_seed(seed, Branch.RESAMPLING))
    report = DifferenceReport(
        rows=rows,
        units=units,
        better=better,
        first=found[0].mean(axis=0),
        second=found[1].mean(axis=0),
        difference=Estimate.of(paired.mean(axis=0), (low, high), n=n, baselines=(NO_DIFFERENCE,)),
        names=names,
        pairing=PAIRED,
        n_leading=len(rows),
        n=n,
    )
    return with_provenance(report, _source(a.spec.to_dict(), b.spec.to_dict(), tasks[0], n, seed))


def _per_sequence(model: Model, task: WindTunnel, n: int, seed: int) -> Float[np.ndarray, "sequence row"]:
    """Return means over the scored positions of each sequence, in the order of `_BEHAVIOR`."""
    blocks = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)
    own: Behavior = model.run(blocks, seed=derived_seed(seed, Branch.RESAMPLING)).behavior
    columns = (
        own.kl_bits,
        np.abs(own.model_entropy_bits - own.exact_entropy_bits),
        own.total_variation,
        own.off_answer_prob,
        -own.answer_log2,
        own.correct,
    )
    return np.stack([column.mean(axis=1, dtype=np.float64) for column in columns], axis=1)


def _of_diagnoses(a: Diagnosis, b: Diagnosis) -> DifferenceReport:
    sources = [own.provenance for own in (a, b)]
    if not all(sources):
        bare = " and ".join(name for name, own in zip("AB", sources, strict=True) if not own)
        raise InvalidArgument(f"{bare} has no provenance, so its task, n and seed are unknown: measure it again.")
    again = "Measure both with the same."
    if sources[0].get("task") != sources[1].get("task") or sources[0]["task_label"] != sources[1]["task_label"]:
        _refuse("task", *(own["task_label"] for own in sources), advice=again)
    for name in ("n", "seed"):
        found = [own["arguments"].get(name) for own in sources]
        if found[0] != found[1]:
            _refuse(name, *found, advice=again)
    shared = [name for name in a if name in b and type(a[name]) is type(b[name])]
    rows = [row for name in shared for row in _shared_rows(a[name], b[name])]
    if not rows:
        raise InvalidArgument(
            f"the diagnoses share no estimate: A has {', '.join(a)}; B has {', '.join(b)}. Measure both with the same "
            f"probes."
        )
    rows.sort(key=lambda row: not row.is_leading)
    low = np.array([row.b.low - row.a.high for row in rows])
    high = np.array([row.b.high - row.a.low for row in rows])
    values = [np.array([row.a.value for row in rows]), np.array([row.b.value for row in rows])]
    n, seed = sources[0]["arguments"]["n"], sources[0]["arguments"]["seed"]
    report = DifferenceReport(
        rows=tuple(row.label for row in rows),
        units=tuple(row.a.unit for row in rows),
        better=tuple(row.better for row in rows),
        first=values[0],
        second=values[1],
        difference=Estimate.of(values[1] - values[0], (low, high), n=n, baselines=(NO_DIFFERENCE,)),
        names=_names(sources[0]["model"]["name"], sources[1]["model"]["name"]),
        pairing=CONSERVATIVE,
        n_leading=max(1, sum(row.is_leading for row in rows)),
        n=n,
    )
    return with_provenance(report, _source(sources[0]["model"], sources[1]["model"], sources[0]["task_label"], n, seed))


@final
@dataclass(frozen=True, kw_only=True)
class _Row:
    """One estimate that both reports contain."""

    label: str
    a: Record
    b: Record
    is_leading: bool
    better: str


def _shared_rows(a: Report, b: Report) -> list[_Row]:
    """Return the estimates with intervals in both reports, except single positions, and whether each is a headline."""
    leading = {line.metric for line in a.headlines()}
    declared, theirs = quantities_of(type(a)), {_key(own): own for own in records_of(b)}
    found: list[_Row] = []
    for own in records_of(a):
        other = theirs.get(_key(own))
        if own.metric not in declared or own.position is not None or other is None or np.isnan(own.low + other.low):
            continue
        quantity = declared[own.metric]
        where = [f"L{own.layer}" if own.layer is not None else "", f"H{own.head}" if own.head is not None else ""]
        parts = filter(None, (quantity.label or own.metric, own.variant, "".join(where)))
        is_leading = own.metric in leading and own.layer is None
        label = f"{a.name}: {', '.join(parts)}"
        found.append(_Row(label=label, a=own, b=other, is_leading=is_leading, better=quantity.better))
    return found


def _key(own: Record) -> tuple[Any, ...]:
    return (own.metric, own.variant, own.layer, own.head, own.position)


def _refuse(name: str, a: object, b: object, *, advice: str) -> NoReturn:
    raise InvalidArgument(f"the two differ in {name}: A has {a}, B has {b}. {advice}")


def _names(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a != b else (f"{a} (A)", f"{b} (B)")


def _source(a: dict[str, Any], b: dict[str, Any], task: WindTunnel | str, n: int, seed: int) -> dict[str, Any]:
    both = {"name": f"{a['name']} (A) and {b['name']} (B)", "architecture": f"{a['architecture']}, {b['architecture']}"}
    made = {f"{side}_{key}": own[key] for side, own in (("a", a), ("b", b)) for key in ("name", "weights_hash")}
    weights = {f"{side}: {own['name']}": own.get("weights_hash", "") for side, own in (("A", a), ("B", b))}
    return provenance(both, task, {"n": n, "seed": seed, **made}) | {"weights": weights}
