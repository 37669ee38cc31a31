"""`compare`: two or more models on the same sequences, or saved diagnoses, with an interval for every difference.

Differences of scores per sequence are paired. All other intervals are conservative: from the ends of both intervals,
wide enough for any correlation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from bayesgeom.core import RESID_POST, InvalidArgument, Reason, Verdict, checked, number_text, phase
from bayesgeom.core.errors import quoted
from bayesgeom.core.files import is_file
from bayesgeom.core.text import aligned_table, interval_text
from bayesgeom.diagnosis.plan import Named, check_probes, check_untrained
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.generalization.similarity import FEWEST, layers_alike
from bayesgeom.measurements.calibration import SCORES, CalibrationReport, sequence_scores
from bayesgeom.models.base import KERNELS, Model, kernels_of, provenance, run_on
from bayesgeom.models.config import architectures
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, check_names, scored_task_of
from bayesgeom.report.diagnosis import Diagnosis, load_report
from bayesgeom.report.estimate import Baseline, Estimate, Quantity, Signed, Unit, mean_estimate, stacked, with_interval
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.storage import JSON, quantities_of
from bayesgeom.report.tables import INDICES, Headline, headline_of, records_of
from bayesgeom.stats.bootstrap import mean_difference, mean_interval
from bayesgeom.stats.bounds import FLOAT32_ROUNDING
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

N_SEQUENCES = 512
_AXES = {"L": "layer", "H": "head"}
_SAME = 1e-5  # rounding moves means of the exact predictive (bits, or a share) by less
_UNIFORM = "uniform"
SAME = 0.001  # share of the gap between uniform and exact within which two models are the same
_DRAWN = 24  # rows of differences in the figure
_EXACT_IS_0 = SCORES[:2]  # scores whose exact value is 0, so that a share of the gap to it can be closed


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
    1 is exact, 0 no better than that predictor, NaN below −1. The first `n_leading` rows are the headlines.
    `attention_kernels` names the implementations of attention behind each model's numbers; "" if it has only one.

    `cka` is, on request, the linear CKA of `resid_post` between every layer of the pair's first model and every other
    layer, that of its second: 1 if they are equal up to rotation and scale, 0 in expectation if they are independent.
    NaN where a model has fewer layers. Its baseline are pairs of untrained networks of the same architectures, which
    share the input. A sample is a sequence at one scored position; intervals leave out whole sequences.
    """

    name: ClassVar[str] = "compare"
    title: ClassVar[str] = "Comparison: which model is closest to exact?"

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
    attention_kernels: Annotated[tuple[str, ...], "model"] = ()
    cka: Annotated[Estimate, Signed("pair layer other_layer", label="linear CKA")]
    other_layers: tuple[str, ...]

    def kernel_code(self, pair: int) -> Reason:
        """Return `OTHER_KERNEL` if the models of a pair attended with different kernels, else `NONE`."""
        kernels = {self.attention_kernels[at] for at in self.pair_of[pair]} if self.attention_kernels else set()
        return Reason.OTHER_KERNEL if len(kernels - {""}) > 1 else Reason.NONE

    def signs(self) -> Int[np.ndarray, "row pair"]:
        """Return 1 where the second model of a pair has the higher value, -1 where it has the lower, 0 if undecided."""
        low, high = self.difference.ends
        return np.asarray((low > 0).astype(int) - (high < 0).astype(int))

    @property
    def margin(self) -> Float[np.ndarray, " row"]:
        """A thousandth of the gap between the uniform predictor and exact; NaN where it is not known."""
        levels = [level.value for level in self.value.baselines] or [np.full(self.value.value.shape, np.nan)]
        return SAME * np.asarray(np.fmin.reduce(levels[0], axis=1))

    def verdict(self, row: int, pair: int) -> str:
        """Return the better model (the higher one, if no direction is better), "the same" or "undecided"."""
        if max(map(abs, self.difference[row, pair].ends)) <= self.margin[row]:
            return str(Verdict.SAME)
        sign = int(self.signs()[row, pair]) * (-1 if self.better[row] == "lower" else 1)
        return str(Verdict.UNDECIDED) if sign == 0 else self.models[self.pair_of[pair, int(sign > 0)]]

    def headlines(self) -> Sequence[Headline]:
        is_one_task = len({name.partition("-")[0] for name in self.models}) == 1
        short = [(is_one_task and name.partition("-")[2]) or name for name in self.models]
        lines = list[Headline]()
        for row in range(self.n_leading):
            for pair, (a, b) in enumerate(self.pair_of):
                label, verdict = f"{self.rows[row]}, {short[b]} − {short[a]}", self.verdict(row, pair)
                line = headline_of(self, "difference", (row, pair), label, verdict=verdict)
                lines.append(replace(line, unit=self.units[row]))
        for pair, (a, b) in enumerate(self.pair_of if self.other_layers else ()):
            last = tuple(int(np.isfinite(self.cka.value[pair]).sum(axis=axis).max()) - 1 for axis in (0, 1))
            lines.append(headline_of(self, "cka", (pair, *last), f"CKA of the last layers, {short[b]} and {short[a]}"))
        return lines

    def answer(self) -> Opening | None:
        values = self.value.value[0]
        if not self.better[0] or not np.isfinite(values).all():
            return None
        best = int(values.argmin() if self.better[0] == "lower" else values.argmax())
        model, pairs = self.models[best], [pair for pair, sides in enumerate(self.pair_of) if best in sides]
        verdicts, (low, high) = [self.verdict(0, pair) for pair in pairs], self.difference[0, pairs].ends
        alike = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict == Verdict.SAME]
        finding, same = Finding.CLOSEST, {model, *(self.models[side] for side in self.pair_of[alike].ravel())}
        if Verdict.UNDECIDED in verdicts:
            finding = Finding.CLOSEST_UNDECIDED
        elif alike:
            finding = Finding.THE_SAME
        elif (np.fmax(low, -high) <= self.margin[0]).any():
            finding = Finding.HARDLY_CLOSEST
        named = dict(zip(self.models, values, strict=True))
        return finding.of(
            model=model,
            row=self.rows[0],
            value=values[best],
            unit=self.units[0],
            alike={name: value for name, value in named.items() if name in same},
            others={name: value for name, value in named.items() if name not in same},
            differences={self.pairs[pair]: self.difference[0, pair] for pair in pairs},
        )

    def table(self) -> str:
        """Return the value of every model in every row as text, then every difference with its interval."""
        labels = [f"{row} ({unit})" if unit else row for row, unit in zip(self.rows, self.units, strict=True)]
        values = [
            (label, *(number_text(float(entry)) for entry in of))
            for label, of in zip(labels, self.value.value, strict=True)
        ]
        low, high = self.difference.ends
        differences: list[tuple[str, ...]] = [("difference", "of", "value", "95 % interval", "interval is", "better")]
        for row, label in enumerate(labels):
            for pair, name in enumerate(self.pairs):
                is_without = np.isnan(low[row, pair])
                ends = "–" if is_without else interval_text(low[row, pair], high[row, pair])
                is_usual = self.is_paired[row, pair] and not is_without
                kind = "paired" if is_usual else self.difference.reason_at((row, pair)).label
                kind = ", ".join(filter(None, (kind, self.kernel_code(pair).label)))
                number = number_text(float(self.difference.value[row, pair]))
                differences.append((label, name, number, ends, kind, self.verdict(row, pair)))
        return "\n".join([*aligned_table([("value", *self.models), *values]), "", *aligned_table(differences)])

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.charts.heat import add_heat

        mapped, panels = np.flatnonzero(np.isfinite(self.share_closed).any(axis=1)).tolist(), list[Panel]()
        if mapped:
            note = "Uniform predictor: 0; exact posterior: 1"
            panel = Panel.blank("Share of the gap closed", is_wide=True, note=note)
            names, shares = ([self.rows[row] for row in mapped], self.models), self.share_closed[mapped]
            axes, limits = ("model", ""), (0.0, 1.0)
            add_heat(panel.figure, shares, unit="share closed", baseline=0.0, names=names, axes=axes, limits=limits)
            panels.append(panel)
        panels += self._alike()
        drawn = [(row, pair) for row in range(len(self.rows)) for pair in range(len(self.pairs))]
        drawn = [at for at in drawn if np.isfinite(self.difference.value[at])][:_DRAWN]
        low, high = self.difference.ends
        what = self.pairs[0] if len(self.pairs) == 1 else "difference"
        for unit in dict.fromkeys(self.units[row] for row, _ in drawn):
            cells, title = [at for at in drawn if self.units[at[0]] == unit], f"{what} ({unit})" if unit else what
            at = tuple(np.transpose(cells))
            labels = [self.rows[row] + (f", {self.pairs[pair]}" if len(self.pairs) > 1 else "") for row, pair in cells]
            panel = Panel.blank(title, is_wide=True)
            ends = (low[at], high[at])
            add_forest(panel.figure, labels, self.difference.value[at], ends, unit=title)
            panels.append(panel)
        return panels

    def _alike(self) -> Iterator[Panel]:
        """Yield the CKA of all layers of each pair."""
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.charts.lines import brief

        for pair, (a, b) in enumerate(self.pair_of if self.other_layers else ()):
            cells = self.cka.value[pair]
            cells = cells[np.isfinite(cells).any(axis=1)][:, np.isfinite(cells).any(axis=0)]
            levels = [brief(float(np.nanmax(level.value[pair]))) for level in self.cka.baselines]
            note = f"Untrained pairs: at most {levels[0]}" if levels else ""
            panel = Panel.blank(f"Which layers are alike: {self.models[a]} ↑, {self.models[b]} →", note=note)
            add_heat(panel.figure, cells, unit="CKA", baseline=0.0, axes=("layer", "layer"), limits=(0.0, 1.0))
            yield panel


@checked("models", "task")
def compare(
    models: Sequence[ModelLike | Diagnosis],
    task: TaskLike | None = None,
    *,
    n: int | None = None,
    seed: int | None = None,
    probes: Named | Sequence[Named] | None = None,
    cka: bool = False,
    n_untrained: int = 3,
) -> CompareReport:
    """Compare two or more models on the same sequences, or diagnoses, with an interval for every difference.

    Models are run once each on the same `n` sequences and compared sequence by sequence: intervals are paired.
    Diagnoses must have the same task, n and seed. Their calibration stores the scores of every sequence, so these six
    rows are paired in the same way. All other rows have conservative intervals. `is_paired` states which rows are
    paired: such a row has the paired interval or, if that is withheld, none and the reason.

    Args:
        models: Models, or anything that `bayesgeom.as_model` accepts; or diagnoses, or directories of saved ones.
        task: Task on which models are measured. Default: the task on which all were trained.
        n: Number of sequences for models. Default: 512.
        seed: Seed of the sequences and of the intervals, for models. Default: 0.
        probes: Probes to measure on each model, as in `diagnose`; all estimates of these are then compared. Default:
            the scores of calibration only.
        cka: Whether to measure how alike the layers of every two models are, on up to 192 of the sequences.
        n_untrained: Number of pairs of untrained networks that give the baseline of `cka`.

    Returns:
        Values, differences and their intervals for each quantity.

    Raises:
        InvalidArgument: There are fewer than two; some are diagnoses and others models; tasks, n or seeds differ; or
            diagnoses are given with a task, n, seed, probes or cka.
        MissingSite: `cka` is requested, and a model does not provide `resid_post`.
        TaskMismatch: The task has no exact posterior, or does not fit a model.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> report = bayesgeom.compare([config.build(seed=0), config.build(seed=1)], task, n=16)
        >>> report.rows[0], report.difference.value.shape
        ('KL(exact ‖ model)', (6, 1))
    """
    check_probes(probes)
    check_untrained(n_untrained)
    subjects = _subjects(models, task)
    diagnoses = [subject for subject in subjects if isinstance(subject, Diagnosis)]
    measured = [subject for subject in subjects if isinstance(subject, Model)]
    if diagnoses and measured:
        raise InvalidArgument("some of these are diagnoses and others models: pass models only, or diagnoses only.")
    if diagnoses:
        others = {"task": task, "n": n, "seed": seed, "probes": probes, "cka": cka or None}
        if given := [name for name, value in others.items() if value is not None]:
            raise InvalidArgument(f"{', '.join(given)} cannot be passed with diagnoses, which are already measured.")
        return _of_diagnoses(diagnoses)
    return _of_all(measured, task, probes, n=n, seed=seed, cka=cka, n_untrained=n_untrained)


def _of_all(
    models: Sequence[Model],
    task: TaskLike | None,
    probes: Named | Sequence[Named] | None,
    *,
    n: int | None,
    seed: int | None,
    cka: bool,
    n_untrained: int,
) -> CompareReport:
    """Measure models and compare them; what cannot be measured is refused first."""
    n, seed = N_SEQUENCES if n is None else n, 0 if seed is None else seed
    if n < (least := FEWEST if cka else 2):
        raise InvalidArgument(f"n, the number of sequences, must be at least {least} for an interval; got {n}.")
    tasks = [scored_task_of(model, task) for model in models]
    _check_equal("task", tasks, advice="Choose one with task=… (--task).")
    for model in models if cka else ():
        model.require((RESID_POST,), by="cka")
    if probes is None:
        report = _of_models(models, tasks[0], n=n, seed=seed)
    else:
        each = [diagnose(model, tasks[0], probes=probes, n=n, seed=seed, n_untrained=0) for model in models]
        report = _of_diagnoses(each)
    if not cka:
        return report
    pairs = [(int(a), int(b)) for a, b in report.pair_of]
    alike = layers_alike(models, pairs, tasks[0], n=n, seed=seed, n_untrained=n_untrained)
    return replace(report, cka=alike, other_layers=tuple(map(str, range(alike.value.shape[2]))))


def _subjects(given: object, task: TaskLike | None) -> list[Model | Diagnosis]:
    """Return the models and diagnoses of a list, and load those that are named."""
    is_list = isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 1
    listed: Sequence[Any] = given if isinstance(given, Sequence) else ()
    if not is_list or any(name in ("mlp-prefix", *architectures()) for name in listed if isinstance(name, str)):
        raise InvalidArgument(
            f"compare takes a list of two or more models or diagnoses, got {quoted(given)}. Architectures are compared "
            f"by training in the study: `python -m examples.replication compare` in a clone of the repository."
        )
    check_names(task, listed)
    subjects = list[Model | Diagnosis]()
    for item in listed:
        value = load_report(item) if isinstance(item, str | Path) and is_file(Path(item) / JSON) else item
        value = Diagnosis.of(value) if isinstance(value, Report) else value
        subjects.append(value if isinstance(value, Diagnosis) else as_model(value))
    return subjects


Scored = Float64[np.ndarray, "sequence score"]
Key = tuple[Any, ...]  # the class of a report, a metric, and where in it: an index or a name by axis
_SCORED = quantities_of(CalibrationReport) | {
    "cross_entropy_bits": Quantity(unit="bits", better="lower", label="cross-entropy on the labels")
}
_SCORE_KEYS: list[Key] = [
    (CalibrationReport, name, *((("source", "model"),) if name == "accuracy" else ())) for name in SCORES
]
_UNKNOWN = Estimate.of(np.nan, (np.nan, np.nan))


@final
@dataclass(frozen=True, kw_only=True)
class _Row:
    """How a quantity is shown."""

    label: str
    unit: str
    better: str
    is_leading: bool = True
    is_of_layer: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class _Side:
    """One model: its estimates with intervals, and the scores of its sequences if they are stored.

    Sides are paired if their sequences have the same `exact` values: entropies by position and accuracy of the exact
    predictive. `uniform` is the level of the uniform predictor by score.
    """

    spec: Mapping[str, Any]
    scores: Scored | None
    exact: Float[np.ndarray, " value"] = field(default_factory=lambda: np.zeros(0))
    estimates: Mapping[Key, tuple[_Row, Estimate]] = field(default_factory=dict)
    uniform: Mapping[str, float]
    kernels: str = ""

    def pairs_with(self, other: "_Side") -> bool:
        """Whether both hold the scores of the same sequences."""
        is_scored = self.scores is not None and other.scores is not None
        is_same_length = len(self.exact) == len(other.exact)
        return is_scored and is_same_length and np.allclose(self.exact, other.exact, rtol=0, atol=_SAME)


def _of_models(models: Sequence[Model], task: WindTunnel, *, n: int, seed: int) -> CompareReport:
    sides = list[_Side]()
    for model in models:
        with phase(model.spec.name, n, "sequence"):
            run = run_on(model, task, n=n, seed=seed)
        level = dict(run.baseline_behaviors).get(_UNIFORM)
        levels = [] if level is None else sequence_scores(level).mean(axis=0).tolist()
        uniform = dict(zip(_EXACT_IS_0, levels, strict=False))
        scores, kernels = sequence_scores(run.behavior), ", ".join(kernels_of(model))
        sides.append(_Side(spec=model.spec.to_dict(), scores=scores, uniform=uniform, kernels=kernels))
    return _compared(sides, task, n=n, seed=seed)


def _of_diagnoses(diagnoses: Sequence[Diagnosis]) -> CompareReport:
    n, seed = _sequences([diagnosis.provenance for diagnosis in diagnoses])
    sides = [_side_of(diagnosis) for diagnosis in diagnoses]
    task = diagnoses[0].provenance["task_label"]
    return _compared(sides, task, n=n, seed=seed, prefix=f"{CalibrationReport.name}: ")


def _side_of(diagnosis: Diagnosis) -> _Side:
    report = diagnosis.reports.get(CalibrationReport.name)
    scores, exact, uniform = None, np.zeros(0), dict[str, float]()
    if isinstance(report, CalibrationReport):
        levels = [(name, level) for name in _EXACT_IS_0 for level in report.estimate(name).baselines]
        uniform = {name: float(level.value) for name, level in levels if level.name == _UNIFORM}
        exact = np.append(report.entropy_bits_by_position[0], report.accuracy.value[0])
        scores = report.sequence_scores.astype(np.float64) if len(report.sequence_scores) == report.n else None
    estimates = {key: entry for each in diagnosis.reports.values() for key, entry in _estimates(each).items()}
    spec = diagnosis.provenance["model"]
    kernels = ", ".join(diagnosis.provenance.get(KERNELS, ()))
    return _Side(spec=spec, scores=scores, exact=exact, estimates=estimates, uniform=uniform, kernels=kernels)


def _estimates(report: Report) -> dict[Key, tuple[_Row, Estimate]]:
    """Return the estimates of a report that have intervals, except single positions.

    Only calibration measures closeness to the exact posterior, so only its rows have a better direction.
    """
    leading, declared = {line.metric for line in report.headlines()}, quantities_of(type(report))
    estimates = dict[Key, tuple[_Row, Estimate]]()
    for record in records_of(report):
        if record.metric not in declared or record.place("position") is not None or np.isnan(record.low):
            continue
        quantity, is_of_layer = declared[record.metric], record.place("layer") is not None
        where = "".join(f"{letter}{at}" for letter in "LH" if (at := record.place(_AXES[letter])) is not None)
        names = [str(name) for axis, name in record.places.items() if axis not in INDICES.values()]
        parts = filter(None, (quantity.label or record.metric, " / ".join(names), where))
        row = _Row(
            label=f"{report.name}: {', '.join(parts)}",
            unit=record.unit,
            better=quantity.better if report.name == CalibrationReport.name else "",
            is_leading=record.metric in leading and not is_of_layer,
            is_of_layer=is_of_layer,
        )
        reason = Reason.CONSERVATIVE if record.conservative else None
        estimate = Estimate.of(record.value, (record.low, record.high), n=record.n, reason=reason)
        estimates[type(report), record.metric, *record.places.items()] = row, estimate
    return estimates


def _sequences(sources: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the n and seed of diagnoses on the same sequences; raise for others."""
    if bare := [_letter(at) for at, source in enumerate(sources) if not source]:
        raise InvalidArgument(
            f"{' and '.join(bare)} has no provenance, so its task, n and seed are unknown: measure it again."
        )
    again = "Measure all with the same."
    _check_equal("task", [source["task_label"] for source in sources], advice=again)
    tasks: list[dict[str, Any]] = [source.get("task", {}) for source in sources]
    for name in dict.fromkeys(name for parameters in tasks for name in parameters):
        _check_equal(f"{name} of the task", [parameters.get(name) for parameters in tasks], advice=again)
    for name in ("n", "seed"):
        known = [source["arguments"].get(name) for source in sources]
        _check_equal(name, known, advice=again)
        if known[0] is None:
            raise InvalidArgument(f"none states its {name}, so the sequences are unknown: compare takes diagnoses.")
    return int(sources[0]["arguments"]["n"]), int(sources[0]["arguments"]["seed"])


def _check_equal(name: str, values: Sequence[object], *, advice: str) -> None:
    for at, value in enumerate(values):
        if value != values[0]:
            a, b = (quoted(side) if isinstance(side, list | dict) else side for side in (values[0], value))
            raise InvalidArgument(f"they differ in {name}: A has {a}, {_letter(at)} has {b}. {advice}")


def _letter(at: int) -> str:
    return chr(ord("A") + at) if at < 26 else f"number {at + 1}"


def _paired(a: Scored, b: Scored, *, seed: int) -> Estimate:
    """Return the mean differences b − a of single sequences, an entry for each of `SCORES`."""
    with np.errstate(invalid="ignore"):  # both infinite: the difference is missing
        noise = FLOAT32_ROUNDING * (np.abs(a) + np.abs(b)).max(axis=0)
        return with_interval(mean_difference(a, b), mean_interval(b - a, seed=seed, noise=noise), n=len(a))


def _differences(a: _Side, b: _Side, *, seed: int) -> dict[Key, tuple[Estimate, bool]]:
    """Return the difference of each quantity that both have, and whether it is paired.

    A paired difference has the paired interval or, if that is withheld, none and the reason.
    """
    differences = dict[Key, tuple[Estimate, bool]]()
    for key, (_, one) in a.estimates.items():
        if key in b.estimates:
            other = b.estimates[key][1]
            with np.errstate(invalid="ignore"):  # both infinite: the difference is missing
                apart = other.value - one.value
                ends = other.ends[0] - one.ends[1], other.ends[1] - one.ends[0]
            differences[key] = Estimate.of(apart, ends, n=one.n, reason=Reason.CONSERVATIVE), False
    if a.pairs_with(b):
        assert a.scores is not None and b.scores is not None, "they are paired"
        paired = _paired(a.scores, b.scores, seed=seed)
        differences |= {key: (paired[at], True) for at, key in enumerate(_SCORE_KEYS)}
    return differences


def _compared(sides: Sequence[_Side], task: WindTunnel | str, *, n: int, seed: int, prefix: str = "") -> CompareReport:
    """Return the report on all sides: headlines first, single layers last. `prefix` begins the labels of scores."""
    pairs, resamples = list(combinations(range(len(sides)), 2)), derived_seed(seed, Branch.RESAMPLING)
    differences = [_differences(sides[a], sides[b], seed=resamples) for a, b in pairs]
    rows, values = dict[Key, _Row](), [{key: entry for key, (_, entry) in side.estimates.items()} for side in sides]
    for at, side in enumerate(sides):
        if side.scores is None or not any(side.pairs_with(other) for other in sides if other is not side):
            continue
        scores = mean_estimate(side.scores, seed=resamples)
        for index, key in enumerate(_SCORE_KEYS):
            score = _SCORED[key[1]]
            rows[key] = _Row(label=f"{prefix}{score.label}", unit=score.unit, better=score.better)
            values[at][key] = scores[index]
    for side in sides:
        rows |= {key: row for key, (row, _) in side.estimates.items() if key not in rows}
    keys = [key for key in rows if any(key in of_pair for of_pair in differences)]
    keys.sort(key=lambda key: (not rows[key].is_leading, rows[key].is_of_layer))
    if not keys:
        metrics = [", ".join(dict.fromkeys(kind.name for kind, *_ in side.estimates)) or "none" for side in sides]
        stated = "; ".join(f"{_letter(at)} has {names}" for at, names in enumerate(metrics))
        raise InvalidArgument(f"the diagnoses share no estimate: {stated}. Measure all with the same probes.")
    uniform = [
        [side.uniform.get(key[1], np.nan) if key[0] is CalibrationReport else np.nan for side in sides] for key in keys
    ]
    levels = [Baseline.of("baseline", _UNIFORM, np.array(uniform))]
    value = stacked([stacked([of_side.get(key, _UNKNOWN) for of_side in values]) for key in keys], levels)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(levels[0].value > 0, 1 - value.value / levels[0].value, np.nan)
    shown_in = [[of_pair.get(key, (_UNKNOWN, False)) for of_pair in differences] for key in keys]
    specs, names = [side.spec for side in sides], _distinct([str(side.spec["name"]) for side in sides])
    report = CompareReport(
        models=names,
        weights_hashes=tuple(str(spec.get("weights_hash", "")) for spec in specs),
        rows=tuple(rows[key].label for key in keys),
        units=tuple(rows[key].unit for key in keys),
        better=tuple(rows[key].better for key in keys),
        value=value,
        share_closed=np.where(share >= -1, share, np.nan),  # below −1 it is a share of no gap
        pairs=tuple(f"{names[b]} − {names[a]}" for a, b in pairs),
        pair_of=np.array(pairs),
        difference=stacked(
            [stacked([difference for difference, _ in of_row]) for of_row in shown_in],
            [Baseline.of("baseline", "no difference", 0.0)],
        ),
        is_paired=np.array([[is_paired for _, is_paired in of_row] for of_row in shown_in]),
        cka=Estimate.of(np.zeros((len(pairs), 0, 0))),
        other_layers=(),
        n_leading=max(1, sum(rows[key].is_leading for key in keys)),
        n=n,
        attention_kernels=tuple(side.kernels for side in sides),
    )
    model = {key: ", ".join(str(spec[key]) for spec in specs) for key in ("name", "architecture")}
    weights = {f"{_letter(at)}: {spec['name']}": spec.get("weights_hash", "") for at, spec in enumerate(specs)}
    return with_provenance(report, provenance(model, task, {"n": n, "seed": seed}) | {"weights": weights})


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, with a letter where some are equal."""
    repeats = len(set(names)) < len(names)
    return tuple(f"{name} ({_letter(at)})" if repeats else name for at, name in enumerate(names))
