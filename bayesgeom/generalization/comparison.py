"""`compare`: two or more models on the same sequences, or saved diagnoses, with an interval for every difference.

Differences of scores per sequence are paired. All other intervals are conservative: from the ends of both intervals,
wide enough for any correlation.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, ParamSpec, TypeVar, final

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from bayesgeom.core.errors import InvalidArgument, checked, shown
from bayesgeom.core.text import fitted, interval_text, number_text
from bayesgeom.core.verdict import Verdict
from bayesgeom.diagnosis.plan import AnyProbe
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.config import architectures
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.probes.calibration import SCORES, CalibrationReport, sequence_scores
from bayesgeom.report.diagnosis import Diagnosis, load_report
from bayesgeom.report.estimate import Baseline, Estimate, Quantity, Unit
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.storage import JSON, quantities_of
from bayesgeom.report.tables import INDICES, Headline, Level, Record, records_of
from bayesgeom.stats.bootstrap import mean_difference, mean_interval
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

P = ParamSpec("P")
R = TypeVar("R")

N_SEQUENCES = 512
_AXES = {"L": "layer", "H": "head"}
_SAME = 1e-5  # rounding moves means of the exact predictive (bits, or a share) by less
_UNIFORM = "uniform"
_DRAWN = 24  # rows of differences in the figure
# Label, unit and better direction of each of `SCORES`.
_LABELS = (
    ("KL(exact ‖ model)", "bits", "lower"),
    ("entropy error", "bits", "lower"),
    ("total variation from the exact predictive", "", "lower"),
    ("off-answer probability", "", "lower"),
    ("cross-entropy on the labels", "bits", "lower"),
    ("accuracy", "", "higher"),
)
_EXACT_IS_0 = SCORES[:2]  # scores whose exact value is 0, so that a share of the gap to it can be closed
_KEYWORDS = frozenset({"architectures", "tasks", "seeds", "runs", "train_missing", "executor"})


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class CompareReport(Report):
    """All models were scored on the same sequences.

    Each row of differences is the value of one model minus that of another; 0 is no difference. Paired intervals come
    from the differences of single sequences, which removes the variation between sequences. Conservative intervals come
    from the ends of both intervals: they are wider, and hold for any correlation. Heads with the same index need not
    correspond in separately trained networks. The map shows the share of the gap between the uniform predictor (0) and
    the exact posterior (1) that is closed.

    Fields: values of every model and differences of every pair, by quantity.

    `difference` is the value of the pair's second model minus that of the first; `pairs` name both, and `pair_of` holds
    their places in `models`. `better` states for each row which direction is better: "higher", "lower", or "" if
    neither is closer to the exact posterior, as in all rows but those of calibration. `is_paired` states which
    intervals are paired over sequences. `share_closed` is 1 − value / value of the uniform predictor where 0 is exact:
    1 is exact, 0 no better than that predictor. The first `n_leading` rows are the headlines.
    """

    name: ClassVar[str] = "compare"
    title: ClassVar[str] = "Models compared"

    models: tuple[str, ...]
    weights_hashes: Annotated[tuple[str, ...], "model"]
    rows: tuple[str, ...]
    units: Annotated[tuple[str, ...], "row"]
    better: Annotated[tuple[str, ...], "row"]
    value: Annotated[Estimate, Quantity("row model", label="value")]
    share_closed: Annotated[Float[np.ndarray, "row model"], Unit("1")]
    pairs: tuple[str, ...]
    pair_of: Annotated[Int[np.ndarray, "pair side"], Unit("1")]
    difference: Annotated[Estimate, Quantity("row pair", label="difference")]
    is_paired: Annotated[Bool[np.ndarray, "row pair"], Unit("1")]
    n_leading: int
    n: int

    def signs(self) -> Int[np.ndarray, "row pair"]:
        """Return 1 where the second model of a pair has the higher value, -1 where it has the lower, 0 if undecided."""
        low, high = self.difference.ends
        signs: Int[np.ndarray, "row pair"] = (low > 0).astype(int) - (high < 0).astype(int)
        return signs

    def verdict(self, row: int, pair: int) -> str:
        """Return the name of the better model (the higher one, if no direction is better), or "undecided"."""
        sign = int(self.signs()[row, pair]) * (-1 if self.better[row] == "lower" else 1)
        return str(Verdict.UNDECIDED) if sign == 0 else self.models[self.pair_of[pair, int(sign > 0)]]

    def headlines(self) -> Sequence[Headline]:
        low, high = self.difference.ends
        is_one_task = len({name.partition("-")[0] for name in self.models}) == 1
        short = [(is_one_task and name.partition("-")[2]) or name for name in self.models]
        return [
            Headline(
                metric="difference",
                label=f"{self.rows[row]}, {short[b]} − {short[a]}",
                value=float(self.difference.value[row, pair]),
                unit=self.units[row],
                low=float(low[row, pair]),
                high=float(high[row, pair]),
                levels=(Level(name="no difference", value=0.0),),
                verdict=self.verdict(row, pair),
            )
            for row in range(self.n_leading)
            for pair, (a, b) in enumerate(self.pair_of)
        ]

    def table(self) -> str:
        """Return the value of every model in every row as text, then every difference with its interval."""
        labels = [f"{row} ({unit})" if unit else row for row, unit in zip(self.rows, self.units, strict=True)]
        values = [
            (label, *(number_text(float(own)) for own in of))
            for label, of in zip(labels, self.value.value, strict=True)
        ]
        low, high = self.difference.ends
        differences: list[tuple[str, ...]] = [("difference", "of", "value", "95 % interval", "interval is", "better")]
        for row, label in enumerate(labels):
            for pair, name in enumerate(self.pairs):
                ends = "–" if np.isnan(low[row, pair]) else interval_text(low[row, pair], high[row, pair])
                kind = "paired" if self.is_paired[row, pair] else "conservative"
                number = number_text(float(self.difference.value[row, pair]))
                differences.append((label, name, number, ends, kind, self.verdict(row, pair)))
        return "\n".join([*fitted([("value", *self.models), *values]), "", *fitted(differences)])

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.cells import add_cells
        from bayesgeom.charts.forest import add_forest

        mapped, panels = np.flatnonzero(np.isfinite(self.share_closed).any(axis=1)).tolist(), list[Panel]()
        if mapped:
            note = "Uniform predictor: 0; exact posterior: 1"
            panel = Panel.blank("Share of the gap closed", height=152 + 60 * len(mapped), is_wide=True, note=note)
            add_cells(panel.figure, self.share_closed[mapped], [self.rows[row] for row in mapped], self.models)
            panels.append(panel)
        drawn = [(row, pair) for row in range(len(self.rows)) for pair in range(len(self.pairs))]
        drawn = [at for at in drawn if np.isfinite(self.difference.value[at])][:_DRAWN]
        low, high = self.difference.ends
        what = self.pairs[0] if len(self.pairs) == 1 else "difference"
        for unit in dict.fromkeys(self.units[row] for row, _ in drawn):
            own, title = [at for at in drawn if self.units[at[0]] == unit], f"{what} ({unit})" if unit else what
            at = tuple(np.transpose(own))
            labels = [self.rows[row] + (f", {self.pairs[pair]}" if len(self.pairs) > 1 else "") for row, pair in own]
            panel = Panel.blank(title, is_wide=True)
            ends = (low[at], high[at])
            add_forest(panel.figure, labels, self.difference.value[at], ends, unit=title, baseline=0.0)
            most = max(text.count("<br>") + 1 for text in panel.figure.layout.yaxis.ticktext or labels)
            panel.figure.layout.height = 152 + len(own) * max(34, 8 + 17 * most)  # rows as high as their labels
            panels.append(panel)
        return panels


def _refusing_architectures(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse the arguments of the comparison of architectures by training, which is a study in `examples/`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0] if args else kwargs.get("models", ())
        names = [first] if isinstance(first, str) else first if isinstance(first, list | tuple) else []
        if (
            (not args and "models" not in kwargs)
            or kwargs.keys() & _KEYWORDS
            or any(_is_architecture(n) for n in names)
        ):
            raise InvalidArgument(
                "compare takes two or more models or saved diagnoses; architectures are compared by training in the "
                "study: `python -m examples.replication compare` in a clone of the repository."
            )
        return function(*args, **kwargs)

    return call


def _is_architecture(name: object) -> bool:
    return isinstance(name, str) and name in ("mlp-prefix", *architectures()) and not _is_report(name)


@_refusing_architectures
@checked("models", "task")
def compare(
    models: Sequence[ModelLike | Diagnosis],
    task: TaskLike | None = None,
    *,
    n: int | None = None,
    seed: int | None = None,
    probes: str | AnyProbe | Sequence[str | AnyProbe] | None = None,
) -> CompareReport:
    """Compare two or more models on the same sequences, or diagnoses, with an interval for every difference.

    Models are run once each on the same `n` sequences and compared sequence by sequence: intervals are paired.
    Diagnoses must have the same task, n and seed. Their calibration stores the scores of every sequence, so these six
    rows are paired in the same way. All other rows have conservative intervals. `is_paired` states which rows are
    paired.

    Args:
        models: Models, or anything that `bayesgeom.as_model` accepts; or diagnoses, or directories of saved ones.
        task: Task on which models are measured. Default: the task on which all were trained.
        n: Number of sequences for models. Default: 512.
        seed: Seed of the sequences and of the intervals, for models. Default: 0.
        probes: Probes to measure on each model, as in `diagnose`; all estimates of these are then compared. Default:
            the scores of calibration only.

    Returns:
        Values, differences and their intervals for each quantity.

    Raises:
        InvalidArgument: There are fewer than two; some are diagnoses and others models; tasks, n or seeds differ; or
            diagnoses are given with a task, n, seed or probes.
        TaskMismatch: The task has no exact posterior, or does not fit a model.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> report = bayesgeom.compare([config.build(seed=0), config.build(seed=1)], task, n=16)
        >>> report.rows[0], report.difference.value.shape
        ('KL(exact ‖ model)', (6, 1))
    """
    given: object = models
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) < 2:
        raise InvalidArgument(f"compare takes a list of two or more models or diagnoses, got {shown(given)}.")
    sides = [_side(own) for own in models]
    diagnoses = [own for own in sides if isinstance(own, Diagnosis)]
    measured = [own for own in sides if isinstance(own, Model)]
    if diagnoses and measured:
        raise InvalidArgument("some of these are diagnoses and others models: pass models only, or diagnoses only.")
    if diagnoses:
        others = {"task": task, "n": n, "seed": seed, "probes": probes}
        if told := [name for name, own in others.items() if own is not None]:
            raise InvalidArgument(f"{', '.join(told)} cannot be passed with diagnoses, which are already measured.")
        return _of_diagnoses(diagnoses)
    n, seed = N_SEQUENCES if n is None else n, 0 if seed is None else seed
    if n < 2:
        raise InvalidArgument(f"n, the number of sequences, must be at least 2 for an interval; got {n}.")
    tasks = [scored_task_of(model, task) for model in measured]
    _check_equal("task", tasks, advice="Pass task=… (--task), on which all are measured.")
    if probes is None:
        return _of_models(measured, tasks[0], n=n, seed=seed)
    return _of_diagnoses([diagnose(own, tasks[0], probes=probes, n=n, seed=seed, n_untrained=0) for own in measured])


def _side(value: ModelLike | Diagnosis) -> Model | Diagnosis:
    if _is_report(value):
        assert isinstance(value, str | Path), "checked"
        loaded = load_report(value)
        return loaded if isinstance(loaded, Diagnosis) else Diagnosis.of(loaded)
    return value if isinstance(value, Diagnosis) else as_model(value)


def _is_report(value: object) -> bool:
    """Whether this is the path of a saved report; text that can be no path is none."""
    try:
        return isinstance(value, str | Path) and (Path(value) / JSON).is_file()
    except (OSError, ValueError):
        return False


@final
@dataclass(frozen=True, kw_only=True)
class _Row:
    """One quantity of a pair: value, low and high of both, and their difference, low and high.

    `key` identifies it: the report, the metric, and where in it.
    """

    key: tuple[Any, ...]
    label: str
    unit: str
    better: str
    values: tuple[tuple[float, float, float], tuple[float, float, float]]
    difference: tuple[float, float, float]
    is_leading: bool
    is_paired: bool


Scored = Float64[np.ndarray, "sequence score"]


def _of_models(models: Sequence[Model], task: WindTunnel, *, n: int, seed: int) -> CompareReport:
    scores, uniform = list[Scored](), dict[str, float]()
    for model in models:
        blocks = task.stream(n, seed=derived_seed(seed, Branch.TRIALS), device=model.spec.device)
        resamples = derived_seed(seed, Branch.RESAMPLING)
        run = model.run(blocks, baseline_predictives=task.baseline_predictives, seed=resamples)
        scores.append(sequence_scores(run.behavior))
        if (level := dict(run.baseline_behaviors).get(_UNIFORM)) is not None:
            uniform = dict(zip(SCORES, sequence_scores(level).mean(axis=0).tolist(), strict=True))
    rows = {(a, b): _paired(scores[a], scores[b], seed=seed) for a, b in combinations(range(len(models)), 2)}
    specs = [own.spec.to_dict() for own in models]
    report = _report(rows, specs, [uniform] * len(models), n=n)
    return with_provenance(report, _source(specs, task, n, seed))


def _paired(a: Scored, b: Scored, *, seed: int) -> list[_Row]:
    """Return a row for each of `SCORES`, with the intervals of the differences of single sequences."""
    with np.errstate(invalid="ignore"):  # both infinite: the difference is missing
        difference = b - a
    means, resamples = mean_difference(a, b), derived_seed(seed, Branch.RESAMPLING)
    both = [(own.mean(axis=0), *mean_interval(own, seed=resamples)) for own in (a, b)]
    low, high = mean_interval(difference, seed=resamples)
    return [
        _Row(
            key=(CalibrationReport.name, name, *((("source", "model"),) if name == "accuracy" else ())),
            label=label,
            unit=unit,
            better=better,
            values=(_at(both[0], at), _at(both[1], at)),
            difference=_at((means, low, high), at),
            is_leading=True,
            is_paired=True,
        )
        for at, (name, (label, unit, better)) in enumerate(zip(SCORES, _LABELS, strict=True))
    ]


def _at(columns: tuple[np.ndarray, np.ndarray, np.ndarray], at: int) -> tuple[float, float, float]:
    value, low, high = (float(own[at]) for own in columns)
    return value, low, high


def _of_diagnoses(diagnoses: Sequence[Diagnosis]) -> CompareReport:
    sources = [own.provenance for own in diagnoses]
    n, seed = _sequences(sources)
    pairs = {(a, b): _rows_of(diagnoses[a], diagnoses[b], seed) for a, b in combinations(range(len(diagnoses)), 2)}
    if not any(pairs.values()):
        held = "; ".join(f"{_letter(at)} has {', '.join(own)}" for at, own in enumerate(diagnoses))
        raise InvalidArgument(f"the diagnoses share no estimate: {held}. Measure all with the same probes.")
    specs = [own["model"] for own in sources]
    report = _report(pairs, specs, [_levels(own) for own in diagnoses], n=n)
    return with_provenance(report, _source(specs, sources[0]["task_label"], n, seed))


def _sequences(sources: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the n and seed of diagnoses on the same sequences; raise for others."""
    if bare := [_letter(at) for at, own in enumerate(sources) if not own]:
        raise InvalidArgument(
            f"{' and '.join(bare)} has no provenance, so its task, n and seed are unknown: measure it again."
        )
    again = "Measure all with the same."
    _check_equal("task", [own["task_label"] for own in sources], advice=again)
    tasks: list[dict[str, Any]] = [own.get("task", {}) for own in sources]
    for name in dict.fromkeys(name for own in tasks for name in own):
        _check_equal(f"{name} of the task", [own.get(name) for own in tasks], advice=again)
    for name in ("n", "seed"):
        known = [own["arguments"].get(name) for own in sources]
        _check_equal(name, known, advice=again)
        if known[0] is None:
            raise InvalidArgument(f"none states its {name}, so the sequences are unknown: compare takes diagnoses.")
    return int(sources[0]["arguments"]["n"]), int(sources[0]["arguments"]["seed"])


def _check_equal(name: str, values: Sequence[object], *, advice: str) -> None:
    for at, own in enumerate(values):
        if own != values[0]:
            a, b = (shown(side) if isinstance(side, list | dict) else side for side in (values[0], own))
            raise InvalidArgument(f"they differ in {name}: A has {a}, {_letter(at)} has {b}. {advice}")


def _letter(at: int) -> str:
    return chr(ord("A") + at) if at < 26 else f"number {at + 1}"


def _rows_of(a: Diagnosis, b: Diagnosis, seed: int) -> list[_Row]:
    """Return the rows of two diagnoses: headlines first, those of single heads last, and paired ones before all."""
    shared = [name for name in a if name in b and type(a[name]) is type(b[name])]
    rows = [row for name in shared for row in _conservative(a[name], b[name])]
    rows.sort(key=lambda row: (not row.is_leading, any(place[0] == "layer" for place in row.key[2:])))
    if not rows or not _can_be_paired(a, b):
        return rows
    scores = [own[CalibrationReport].sequence_scores.astype(np.float64) for own in (a, b)]
    name = CalibrationReport.name
    paired = [replace(row, label=f"{name}: {row.label}") for row in _paired(*scores, seed=seed)]
    others = {row.key: row for row in rows}
    # A row whose paired interval is withheld stays conservative.
    withheld = {row.key for row in paired if not np.isfinite(row.difference[1:]).all() and row.key in others}
    first = [replace(others[row.key], is_leading=True) if row.key in withheld else row for row in paired]
    return [*first, *(row for row in rows if row.key not in {own.key for own in paired})]


def _can_be_paired(a: Diagnosis, b: Diagnosis) -> bool:
    """Whether both store the scores of the same sequences: calibration does, and the exact predictive agrees."""
    reports = [own.reports.get(CalibrationReport.name) for own in (a, b)]
    known = [own for own in reports if isinstance(own, CalibrationReport) and len(own.sequence_scores) == own.n]
    exact = [[*own.entropy_bits_by_position[0], own.accuracy.value[0]] for own in known]
    is_same_length = len(exact) == 2 and len(exact[0]) == len(exact[1])
    return is_same_length and np.allclose(exact[0], exact[1], rtol=0, atol=_SAME)


def _conservative(a: Report, b: Report) -> list[_Row]:
    """Return the estimates with intervals in both reports, except single positions.

    Only calibration measures closeness to the exact posterior, so only its rows have a better direction.
    """
    leading = {line.metric for line in a.headlines()}
    declared, theirs = quantities_of(type(a)), {_key_of(own): own for own in records_of(b)}
    rows: list[_Row] = []
    for own in records_of(a):
        other = theirs.get(_key_of(own))
        if own.metric not in declared or own.place("position") is not None or other is None:
            continue
        if np.isnan(own.low + other.low):
            continue
        quantity = declared[own.metric]
        where = "".join(f"{letter}{at}" for letter in "LH" if (at := own.place(_AXES[letter])) is not None)
        names = [str(name) for axis, name in own.places.items() if axis not in INDICES.values()]
        parts = filter(None, (quantity.label or own.metric, " / ".join(names), where))
        rows.append(
            _Row(
                key=_key_of(own),
                label=f"{a.name}: {', '.join(parts)}",
                unit=own.unit,
                better=quantity.better if a.name == CalibrationReport.name else "",
                values=((own.value, own.low, own.high), (other.value, other.low, other.high)),
                difference=(other.value - own.value, other.low - own.high, other.high - own.low),
                is_leading=own.metric in leading and own.place("layer") is None,
                is_paired=False,
            )
        )
    return rows


def _key_of(own: Record) -> tuple[Any, ...]:
    return (own.probe, own.metric, *own.places.items())


def _levels(diagnosis: Diagnosis) -> dict[str, float]:
    """Return the level of the uniform predictor by score, from calibration; {} without it."""
    report = diagnosis.reports.get(CalibrationReport.name)
    if not isinstance(report, CalibrationReport):
        return {}
    estimates = {name: report.estimate(name) for name in _EXACT_IS_0}
    return {
        name: float(level.value) for name, own in estimates.items() for level in own.baselines if level.name == _UNIFORM
    }


def _report(
    pairs: Mapping[tuple[int, int], Sequence[_Row]],
    specs: Sequence[Mapping[str, Any]],
    uniform: Sequence[Mapping[str, float]],
    *,
    n: int,
) -> CompareReport:
    """Return the report of rows by pair; a pair without a row has NaN there."""
    every = {row.key: row for of_pair in reversed(list(pairs.values())) for row in of_pair}  # the first pair's labels
    is_of_layer = {key: any(place[0] == "layer" for place in key[2:]) for key in every}
    order = sorted(every, key=lambda key: (not every[key].is_leading, is_of_layer[key], not every[key].is_paired))
    rows = {key: every[key] for key in order}
    at = {key: index for index, key in enumerate(rows)}
    values, differences = np.full((3, len(rows), len(specs)), np.nan), np.full((3, len(rows), len(pairs)), np.nan)
    is_paired = np.zeros((len(rows), len(pairs)), dtype=bool)
    for place, (both, of_pair) in enumerate(pairs.items()):
        for row in of_pair:
            differences[:, at[row.key], place], is_paired[at[row.key], place] = row.difference, row.is_paired
            for model, own in zip(both, row.values, strict=True):
                values[:, at[row.key], model] = own
    closed = np.full(values[0].shape, np.nan)
    for key, index in at.items():
        for model, levels in enumerate(uniform):
            if key[0] == CalibrationReport.name and key[1] in _EXACT_IS_0 and levels.get(key[1], 0.0) > 0:
                closed[index, model] = 1 - values[0, index, model] / levels[key[1]]
    names = _distinct([str(own["name"]) for own in specs])
    same = Baseline.of("baseline", "no difference", 0.0)
    return CompareReport(
        models=names,
        weights_hashes=tuple(str(own.get("weights_hash", "")) for own in specs),
        rows=tuple(row.label for row in rows.values()),
        units=tuple(row.unit for row in rows.values()),
        better=tuple(row.better for row in rows.values()),
        value=Estimate.of(values[0], (values[1], values[2]), n=n),
        share_closed=closed,
        pairs=tuple(f"{names[b]} − {names[a]}" for a, b in pairs),
        pair_of=np.array(list(pairs)),
        difference=Estimate.of(differences[0], (differences[1], differences[2]), n=n, baselines=(same,)),
        is_paired=is_paired,
        n_leading=max(1, sum(row.is_leading for row in rows.values())),
        n=n,
    )


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, with a letter where some are equal."""
    repeats = len(set(names)) < len(names)
    return tuple(f"{name} ({_letter(at)})" if repeats else name for at, name in enumerate(names))


def _source(specs: Sequence[Mapping[str, Any]], task: WindTunnel | str, n: int, seed: int) -> dict[str, Any]:
    model = {key: ", ".join(str(own[key]) for own in specs) for key in ("name", "architecture")}
    weights = {f"{_letter(at)}: {own['name']}": own.get("weights_hash", "") for at, own in enumerate(specs)}
    return provenance(model, task, {"n": n, "seed": seed}) | {"weights": weights}
