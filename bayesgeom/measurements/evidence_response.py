"""`evidence_response`: does the answer follow earlier evidence? Evidence is drawn again, and the answers are compared.

A model that predicts well may reread the last few symbols, and accuracy alone cannot tell. So the evidence older than w
is drawn again, given the later evidence, and Δ is the change of the answer probabilities at the last scored position:

    slope(w) = Σ ⟨Δ_model, Δ_exact⟩ / Σ |Δ_exact|²,  over sequences,

1 for the exact observer, and 0 for a predictor that reads only the last w pieces of evidence. A constant scale, such as
a share of uniform mixed into every answer, is removed by the relative slope, slope(w) / slope(0). The level is the
97.5 % quantile of the slope over 300 pairings of the model's changes with the exact changes of other sequences. The
cosine of all changes says whether they also agree in direction: a predictor that moves a lot has a slope, too.

Changes of probabilities are bounded, so the bootstrap-t interval of a ratio needs no allowance for heavy tails. On the
slow chain it covers 92 to 97 % for planted predictors, old evidence and 96 sequences, percentile intervals 89 to 95 %,
and those with the allowance 97 to 99 % at twice the width. There is no interval if fewer than 8 sequences carry the
exact change.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Self, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int

from bayesgeom.core import Ask, InvalidArgument, NoCopy, NonFinite, Reason, Run, TaskMismatch, Trials, Verdict, checked
from bayesgeom.core.observers import exact_beliefs
from bayesgeom.measurements.base import Control, Further, Measurement, Needs, Subject, planted_run
from bayesgeom.measurements.running import first_run, first_sequences, measured
from bayesgeom.models.base import LARGE, Model
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, task_of
from bayesgeom.report.answer import FOLLOWS, N_COPIES, untrained_level
from bayesgeom.report.estimate import Baseline, Estimate, Quantity, Signed, Unit, Values, stacked, within
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.behavior import PRIOR, context_free_kl_bits
from bayesgeom.stats.bootstrap import bounded_ratio_interval, jackknife_weights, ratio_interval
from bayesgeom.stats.intervals import MIN_DIFFERENT
from bayesgeom.stats.windows import TRANSPORT_WINDOW, window_predictives
from bayesgeom.tasks.base import Branch, EvidenceTask, WindTunnel, at_most, derived_seed
from bayesgeom.tasks.dice import Dice

LEAST_SLOPE, MOST_SLOPE = 0.05, 2.0  # of answers that follow the evidence
ALIGNED = 0.5  # least cosine of their changes with the exact ones
LEAST_CHANGE = 0.003  # root mean square of the exact change below which a slope is not identified
LEVEL_NAME = "other sequences"
MIXED, SHARP, WINDOW, FORGETTING = "exact, 20 % uniform", "exact, temperature 0.5", "last 10 symbols", "forgetting 0.9"
_UNIFORM_SHARE, _TEMPERATURE, _DISCOUNT = 0.2, 0.5, 0.9
_PAIRINGS, _QUANTILE = 300, 0.975
FIRST_N, MOST_N = 128, 1_024  # sequences of an age whose number is not given
_CLAIMS = frozenset({Verdict.TRANSPORTS, Verdict.IN_PART})
_HALF_WIDTH = 0.1  # of an interval that needs no more sequences
_REPLACED = 6  # branch of the seed

Answers = Float64[np.ndarray, "sequence answer"]

_FINDINGS: Mapping[str, Finding] = {
    Verdict.TRANSPORTS: Finding.TRANSPORTS,
    Verdict.IN_PART: Finding.TRANSPORTS_IN_PART,
    Verdict.NOT_AS_BAYES: Finding.MOVES_OTHERWISE,
    Verdict.NOT_SHOWN: Finding.TRANSPORT_NOT_SHOWN,
    Verdict.NOT_IDENTIFIED: Finding.TRANSPORT_NOT_IDENTIFIED,
}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class EvidenceResponseReport(Report):
    """Evidence older than w was drawn again, given what stays, and the answers at the last scored position compared.

    The slope is that of the model's change in the exact change: 1 if the answers follow the old evidence as the exact
    observer's do, 0 if they do not depend on it. The relative slope is divided by that of all evidence, which removes a
    constant scale. The level is the 97.5 % quantile of slopes with the exact changes of other sequences. Gray lines are
    predictors with known behavior on the same sequences: the exact observer mixed with 20 % of the uniform distribution
    (slope 0.8 at every age, relative slope 1), the exact observer at temperature 0.5, and where the hidden state moves,
    the observer of the last ten symbols (0 for older evidence) and a filter that forgets a tenth of its evidence with
    each symbol.

    Transports: the interval lies above the level, and between 0.5 and 2, and the cosine of the changes is above 0.5. In
    part: it lies above the level and 0.05, and below 0.5. Moves, but not as Bayes: it lies above these, and the cosine
    is below 0.5, or it lies above 2. Not shown: it lies below 0.5, and not above the level or 0.05. Not identified: the
    exact change is below 0.003 (root mean square), so the old evidence hardly matters. Else undecided, as where the
    predictions themselves are not better than those without evidence, or than untrained networks.

    Fields: `cosine` is Σ ⟨Δ_model, Δ_exact⟩ / √(Σ |Δ_model|² Σ |Δ_exact|²). `ages` are numbers w of the latest pieces
    of evidence, which stay; "0" for all evidence drawn again. With `is_single`, only the piece of age w was drawn
    again; the newest has age 1. `exact_change` is the root mean square of the exact change over sequences and answers.
    `predictor_slopes` are those of the known predictors. `n_by_age` is the number of sequences at each age, `n` the
    largest.
    """

    name: ClassVar[str] = "evidence_response"
    is_behavioral: ClassVar[bool] = True
    title: ClassVar[str] = "Evidence response: does old evidence move the answer?"
    is_single: bool
    ages: tuple[str, ...]
    slope: Annotated[Estimate, Quantity("age", better="higher", label="slope of the model's change in the exact one")]
    relative_slope: Annotated[Estimate, Quantity("age", better="higher", label="slope, relative to all evidence")]
    cosine: Annotated[Estimate, Signed("age", better="higher", label="cosine of the model's change with the exact one")]
    exact_change: Annotated[Float[np.ndarray, " age"], Unit("1")]
    verdicts: Annotated[tuple[str, ...], "age"]
    predictors: tuple[str, ...]
    predictor_slopes: Annotated[Float[np.ndarray, "predictor age"], Unit("1")]
    n_by_age: Annotated[Int[np.ndarray, " age"], Unit("1")]
    n: int

    def verdict_at(self, age: int = TRANSPORT_WINDOW) -> Verdict:
        """Return the verdict on evidence older than an age.

        Args:
            age: One of `ages`.

        Raises:
            InvalidArgument: It was not measured.
        """
        if str(age) not in self.ages:
            raise InvalidArgument(f"age {age} was not measured; there are {', '.join(self.ages)}: pass ages=[{age}].")
        return Verdict(self.verdicts[self.ages.index(str(age))])

    def no_better(self) -> Self:
        """Return the report of a model whose predictions are no better than those that use no evidence."""
        return replace(self, verdicts=_verdicts(self.slope, self.cosine, self.exact_change, is_better=False))

    def headlines(self) -> Sequence[Headline]:
        """Return the slopes from the oldest identified evidence up to age 10, then the others."""
        first = self._first()
        order = [first, *(i for i in range(len(self.ages)) if i != first)]
        return [headline_of(self, "slope", (i,), self._label(i), verdict=self.verdicts[i]) for i in order]

    def answer(self) -> Opening:
        first = self._first()
        finding = _FINDINGS.get(self.verdicts[first], Finding.TRANSPORT_UNDECIDED)
        age = int(self.ages[first]) or math.nan  # of all evidence there is no age
        values = {"slope": self.slope[first], "cosine": self.cosine[first], "age" if self.is_single else "older": age}
        return finding.of(**values)

    def _first(self) -> int:
        """Return the entry of the oldest identified evidence up to age 10; the first one if there is none."""
        known = (i for i, verdict in enumerate(self.verdicts) if verdict != Verdict.NOT_IDENTIFIED)
        return max((i for i in known if int(self.ages[i]) <= TRANSPORT_WINDOW), default=0)

    def panels(self) -> Sequence[Panel]:
        """Draw both slopes by age, evenly spaced; predictors with known behavior are pale dashed lines."""
        from bayesgeom.charts.lines import add_baseline, add_line, add_reference, brief
        from bayesgeom.report.theme import label_axes

        raw = Panel.blank(f"The answers follow all evidence with slope {brief(self.slope.value[0])}, where 1 is exact")
        scaled = Panel.blank("The same, relative to that of all evidence", is_folded=True)
        x = np.arange(len(self.ages), dtype=float)
        is_known = np.array([verdict != Verdict.NOT_IDENTIFIED for verdict in self.verdicts])

        def known(values: Float[np.ndarray, " age"]) -> Float[np.ndarray, " age"]:
            """Leave out ages at which almost nothing changes: their slopes would set the scale."""
            return np.where(is_known | (not is_known.any()), values, np.nan)

        for panel in (raw, scaled):
            add_reference(panel.figure, x, np.ones(len(x)), name="exact")
        for level in self.slope.baselines:
            add_baseline(raw.figure, x, known(level.value), name=f"baseline: {level.name}")
        for name, values in zip(self.predictors, self.predictor_slopes, strict=True):
            add_baseline(raw.figure, x, known(values), name=name)
            add_baseline(scaled.figure, x, known(_ratio(values, values[:1])), name=name)
        for panel, estimate in ((raw, self.slope), (scaled, self.relative_slope)):
            low, high = map(known, estimate.ends)
            add_line(panel.figure, x, known(estimate.value), name="model", band=(low, high))
        place = "age of the replaced piece" if self.is_single else "newest pieces that stay (0: all is drawn again)"
        first = "all" if self.is_single else "0"
        for panel, label in ((raw, "slope"), (scaled, "relative slope")):
            label_axes(panel.figure, place, label)
            panel.figure.layout.xaxis.update(tickvals=x.tolist(), ticktext=[first, *self.ages[1:]])
        return [raw, scaled]

    def _label(self, index: int) -> str:
        age = self.ages[index]
        if age == "0":
            return "slope, all evidence"
        return f"slope, evidence of age {age}" if self.is_single else f"slope, evidence older than {age}"


@checked("model", "task")
def evidence_response(
    model: ModelLike,
    task: TaskLike | None = None,
    *,
    ages: Sequence[int] | None = None,
    single: bool = False,
    n: int | None = None,
    seed: int = 0,
) -> EvidenceResponseReport:
    """Measure how far the answers follow old evidence: draw it again, and compare the changes of both answers.

    Evidence is drawn from its exact distribution given the evidence that stays and the given parameters (keys,
    matrices, words), by the task's own `replace_evidence`.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        ages: Numbers of the latest pieces of evidence that stay. Default: 1, 2, 4, 8, … All evidence is always
            included, as age 0.
        single: Whether to draw only the piece of each age again, instead of all older ones. The newest has age 1.
        n: Number of sequences. Default: 128, and for each age twice as many, up to 1,024, until its interval is ±0.1;
            of a language model 128.
        seed: Seed of the sequences, of the replaced evidence and of the intervals.

    Returns:
        The slope by age, with its level, a verdict for each age, and slopes of known predictors.

    Raises:
        TaskMismatch: The task has no exact posterior, or its evidence cannot be replaced.
        InvalidArgument: n is below 2, an age is out of range, or the model is a capture, which cannot be run again.

    Example:
        >>> import bayesgeom
        >>> report = bayesgeom.evidence_response("mess3-small", ages=[2], n=16)
        >>> report.ages, report.n
        (('0', '2'), 16)
    """
    subject = model_for(model, task)
    chosen = EvidenceResponse(n=FIRST_N if n is None else n, ages=None if ages is None else tuple(ages), single=single)
    enough = (Verdict.NOT_IDENTIFIED,) if n is None else tuple(Verdict)
    report = _grown(chosen, subject, task, enough, width=2 * _HALF_WIDTH, seed=seed)
    is_compared = subject.spec.n_parameters < LARGE and not _CLAIMS.isdisjoint(report.verdicts)
    if is_compared and not _beats_untrained(subject, task_of(subject, task), seed=seed):
        return report.no_better()
    return report


def response_until_decided(model: Model, task: WindTunnel, age: int, *, seed: int) -> EvidenceResponseReport:
    """Measure the response to evidence older than one age, on as many sequences as its verdict takes.

    They are 128, and up to 1,024 while `verdict_at(age)` is undecided; of a language model they are 128.
    """
    decided = tuple(verdict for verdict in Verdict if verdict != Verdict.UNDECIDED)
    return _grown(EvidenceResponse(n=FIRST_N, ages=(age,)), model, task, decided, width=0.0, seed=seed)


def _grown(
    chosen: "EvidenceResponse", model: Model, task: TaskLike | None, enough: Sequence[str], *, width: float, seed: int
) -> EvidenceResponseReport:
    """Measure all ages, and those without one of these verdicts or so narrow an interval on twice as many sequences."""
    n, report = chosen.n, measured(chosen, model, task, n=chosen.n, seed=seed)
    while n == report.n < MOST_N and Ask.RERUN in model.asks and model.spec.n_parameters < LARGE:
        wide = ~(report.slope.ends[1] - report.slope.ends[0] <= width)
        few = [at for at, verdict in enumerate(report.verdicts) if wide[at] and verdict not in enough]
        if not few:
            break
        n = min(2 * n, MOST_N)
        larger = replace(chosen, n=n, ages=tuple(int(report.ages[at]) for at in few))
        wider = measured(larger, model, task, n=n, seed=seed)
        of = [(wider, wider.ages.index(age)) if at in few else (report, at) for at, age in enumerate(report.ages)]
        names = ("slope", "relative_slope", "cosine")
        estimates: dict[str, Any] = {name: stacked([each.estimate(name)[at] for each, at in of]) for name in names}
        report = replace(
            report,
            **estimates,
            exact_change=np.array([each.exact_change[at] for each, at in of]),
            verdicts=tuple(each.verdicts[at] for each, at in of),
            predictor_slopes=np.stack([each.predictor_slopes[:, at] for each, at in of], axis=1),
            n_by_age=np.array([each.n_by_age[at] for each, at in of]),
            n=wider.n,
        )
    return report


@final
@dataclass(frozen=True, kw_only=True)
class EvidenceResponse(Measurement[EvidenceResponseReport]):
    """The answers of the first `n` sequences, and of the same with evidence of some ages drawn again."""

    name: ClassVar[str] = EvidenceResponseReport.name
    needs: ClassVar[Needs] = Needs(posterior=True)
    asks: ClassVar[frozenset[Ask]] = frozenset({Ask.PREDICT})
    n: int = 64  # for each age
    ages: tuple[int, ...] | None = None
    single: bool = False

    def prepared(self, model: Model, task: WindTunnel, *, n: int, seed: int) -> Self:
        if n < 2:
            raise InvalidArgument(f"n, the number of sequences, must be at least 2 for an interval; got {n}.")
        last = _replaceable(task).n_evidence - (not self.single)
        model.require_asks(self.asks, by=self.name)
        ages = self.ages if self.ages is not None else [2**power for power in range(last.bit_length())]
        chosen = sorted({int(age) for age in ages} - {0})
        if wrong := [age for age in chosen if not 1 <= age <= last]:
            raise InvalidArgument(f"ages must be between 1 and {last} for {task}, got {wrong[0]}.")
        return replace(self, n=min(n, self.n), ages=(0, *chosen))

    def further(self, task: WindTunnel, run: Run, seed: int) -> Iterator[Further]:
        """Yield the sequences if the run holds too few of them, and with replaced evidence, age by age."""
        assert self.ages is not None, "it is prepared"
        original = first_sequences(task, run, self.n, seed=seed)
        if run.n_recorded < self.n:
            yield Further(trials=original, is_last_only=True, label="evidence response")
        for age in self.ages:
            replaced = _replaced(_replaceable(task), original, age, single=self.single, seed=seed)
            yield Further(trials=replaced, is_last_only=True, label="evidence response")

    def of(self, subject: Subject, untrained: Sequence[EvidenceResponseReport] = ()) -> EvidenceResponseReport:
        assert self.ages is not None, "it is prepared"
        # `further` begins with the sequences themselves if the run lacks some.
        before, *after = (subject.run, *subject.further)[-1 - len(self.ages) :]
        first, *others = (run.log_answers[: self.n, -1].double().exp().cpu().numpy() for run in (before, *after))
        report = response_report(
            [str(age) for age in self.ages],
            [other - first for other in others],
            known_changes(before.trials.rows(slice(0, self.n)), [run.trials for run in after]),
            is_single=self.single,
            seed=derived_seed(subject.seed, Branch.RESAMPLING),
        )
        return report.no_better() if _kl_left(subject.run, seed=subject.seed)[1] >= 1 else report

    def controls(self) -> Iterator[Control[EvidenceResponseReport]]:
        """Yield the exact answers of a coin, and a predictor that never moves."""
        task = Dice(n_faces=2, length=11)
        trials = task.sample(83, seed=0)
        given, exact = replace(self, n=len(trials), ages=(0, 4)), planted_run(trials, {})
        replaced = [each.trials for each in given.further(task, exact, 0)]
        for label, is_exact in (("exact answers", True), ("answers that do not move", False)):

            def answered(sequences: Trials, is_exact: bool = is_exact) -> Run:
                probs = sequences.at_scored(sequences.predictive)
                return planted_run(sequences, {}, model=probs if is_exact else torch.full_like(probs, 1 / 2))

            yield Control(
                label=label,
                run=answered(trials),
                further=tuple(map(answered, replaced)),
                task=task,
                measurement=given,
                holds=partial(_has_slope, float(is_exact)),
            )


def _kl_left(run: Run, *, seed: int) -> tuple[float, float]:
    """Return the KL of the predictions in units of that of the strongest ones without evidence, and its upper end."""
    exact = run.trials.at_scored(run.trials.predictive).cpu().numpy()
    seen = [run.behavior, *(prior for name, prior in run.baseline_behaviors.items() if name == PRIOR)]
    kl, *prior = (each.kl_bits[: len(exact)].mean(axis=1, dtype=np.float64) for each in seen)
    strongest = min([*context_free_kl_bits(exact).values(), *prior], key=np.mean)
    return float(_ratio(kl.sum(), strongest.sum())), float(ratio_interval(kl, strongest, seed=seed).hi)


def _beats_untrained(model: Model, task: WindTunnel, *, seed: int) -> bool:
    """Return whether the predictions are better than those of untrained networks, or cannot be compared with them."""
    with suppress(NoCopy, NonFinite):
        seeds = [derived_seed(seed, Branch.UNTRAINED, index) for index in range(N_COPIES)]
        networks = [model, *(model.permuted_copy(each) or model.untrained_copy(each) for each in seeds)]
        runs = (first_run(network, task, n=at_most(task, FIRST_N), seed=seed) for network in networks)
        (_, most), *copies = [_kl_left(run, seed=seed) for run in runs]
        return not 1 - most <= untrained_level(np.array([1 - kl for kl, _ in copies]))
    return True


def _has_slope(slope: float, report: EvidenceResponseReport) -> bool:
    return bool(np.allclose(report.slope.value, slope, atol=1e-9))


def _replaceable(task: WindTunnel) -> EvidenceTask:
    """Return the task, if its evidence can be drawn again.

    Raises:
        TaskMismatch: It cannot.
    """
    if not task.has_posterior or not isinstance(task, EvidenceTask) or task.n_evidence == 0:
        raise TaskMismatch(
            f"evidence of {task} cannot be drawn again: evidence_response requires a task with an exact posterior "
            f"and the method replace_evidence (see bayesgeom.tasks.base.EvidenceTask)."
        )
    return task


def _replaced(task: EvidenceTask, original: Trials, age: int, *, single: bool, seed: int) -> Trials:
    """Return the sequences with the evidence older than an age drawn again, or with the piece of that age alone."""
    generator = torch.Generator(original.tokens.device).manual_seed(derived_seed(seed, _REPLACED, age))
    back = torch.arange(task.n_evidence, 0, -1, device=original.tokens.device)  # age of each piece
    return task.replace_evidence(original, back != age if single and age else back <= age, generator)


def exact_changes(task: WindTunnel, trials: Trials, *, seed: int) -> dict[int, float]:
    """Return the root mean square change of the exact answers by older evidence drawn again, by age: 0, 1, 2, 4, …

    Empty if the evidence of the task cannot be drawn again.
    """
    if not isinstance(task, EvidenceTask) or task.n_evidence == 0:
        return {}
    ages = [0, *(2**power for power in range((task.n_evidence - 1).bit_length()))]
    replaced = [_replaced(task, trials, age, single=False, seed=seed) for age in ages]
    before, *after = (each.at_scored(each.predictive)[:, -1] for each in (trials, *replaced))
    return {age: float((each - before).square().mean().sqrt()) for age, each in zip(ages, after, strict=True)}


def known_changes(original: Trials, replaced: Sequence[Trials]) -> dict[str, list[Answers]]:
    """Return the changes of predictors with known behavior at the last scored position, by name; the exact is first."""
    before, *after = (_known_answers(changes_of) for changes_of in (original, *replaced))
    return {name: [changes_of[name] - before[name] for changes_of in after] for name in before}


def _known_answers(trials: Trials) -> dict[str, Answers]:
    exact = trials.at_scored(trials.predictive)[:, -1]
    sharp = (exact / exact.amax(dim=1, keepdim=True)) ** (1 / _TEMPERATURE)
    predicted = {
        "exact": exact,
        MIXED: (1 - _UNIFORM_SHARE) * exact + _UNIFORM_SHARE / exact.shape[1],
        SHARP: sharp / sharp.sum(dim=1, keepdim=True),
    }
    if trials.observers is not None and trials.n_scored > TRANSPORT_WINDOW:
        observer = trials.observers.filter
        predicted[WINDOW] = next(islice(window_predictives(trials, "stationary"), TRANSPORT_WINDOW, None))[:, -1]
        forgetful = exact_beliefs(observer, len(trials), trials.n_scored, discount=_DISCOUNT)
        predicted[FORGETTING] = observer.answers(forgetful)[:, -1]
    return {name: values.cpu().numpy() for name, values in predicted.items()}


def response_report(
    ages: Sequence[str], changes: Sequence[Answers], known: dict[str, list[Answers]], *, is_single: bool, seed: int
) -> EvidenceResponseReport:
    """Return the report of the changes of a model's answers.

    Args:
        ages: Ages, of which the first is 0: all evidence.
        changes: Changes of the model's answer probabilities, by age.
        known: Changes of known predictors, by age; those of the exact observer are "exact".
        is_single: Whether single pieces were replaced.
        seed: Seed of the intervals and of the pairings.
    """
    exact = known["exact"]
    along, size, moved = _products(changes, exact), _products(exact, exact), _products(changes, changes)
    change = np.sqrt(np.array([np.square(right).mean() for right in exact]))
    levels = np.array([chance_level(*pair, seed=seed) for pair in zip(changes, exact, strict=True)])
    # Kish's effective number of sequences that carry the exact change.
    n_changed = _ratio(np.square(size.sum(axis=0)), np.square(size).sum(axis=0))
    code = np.where(n_changed >= MIN_DIFFERENT, int(Reason.NONE), int(Reason.FEW_DIFFER))

    def estimate(value: Values, ends: tuple[Values, Values]) -> Estimate:
        low, high = (np.where(code == Reason.NONE, end, np.nan) for end in ends)
        return Estimate.of(value, (low, high), n=len(along), reason=code)

    def smooth(replicates: Float64[np.ndarray, "replicate age"]) -> Estimate:
        pseudo = replicates[0] + (len(replicates) - 2) * (replicates[0] - replicates[1:])
        return estimate(replicates[0], bounded_ratio_interval(pseudo, np.ones_like(pseudo), seed=seed))

    weights = jackknife_weights(len(along))
    of_all, of_exact, of_model = (weights @ each for each in (along, size, moved))
    slopes = _ratio(of_all, of_exact)
    slope = estimate(slopes[0], bounded_ratio_interval(along, size, seed=seed))
    slope = replace(slope, baselines=(Baseline.of("permutation", LEVEL_NAME, levels),))
    cosine = smooth(_ratio(of_all, np.sqrt(of_model * of_exact)))
    others = [name for name in known if name != "exact"]
    predicted = [_ratio(_products(known[name], exact).sum(axis=0), size.sum(axis=0)) for name in others]
    return EvidenceResponseReport(
        is_single=is_single,
        ages=tuple(ages),
        slope=slope,
        relative_slope=smooth(_ratio(slopes, slopes[:, :1])),
        cosine=within(cosine, -1.0, 1.0),
        exact_change=change,
        verdicts=_verdicts(slope, cosine, change, is_better=True),
        predictors=tuple(others),
        predictor_slopes=np.array(predicted).reshape(len(others), len(ages)),
        n_by_age=np.full(len(ages), len(along)),
        n=len(along),
    )


def chance_level(change: Answers, exact: Answers, *, seed: int) -> float:
    """Return the 97.5 % quantile of slopes of a model's changes in the exact changes of other sequences.

    In each of 300 pairings, a random cycle through all sequences assigns every sequence another one.

    Args:
        change: Changes of the model's answer probabilities.
        exact: Changes of the exact answer probabilities.
        seed: Seed of the pairings.
    """
    order = np.random.default_rng(seed).random((_PAIRINGS, len(exact))).argsort(axis=1)
    products = change @ exact.T
    paired = products[order, np.roll(order, 1, axis=1)].sum(axis=1)
    return float(np.quantile(_ratio(paired, np.square(exact).sum()), _QUANTILE))


def _verdicts(
    slope: Estimate, cosine: Estimate, exact_change: Float[np.ndarray, " age"], *, is_better: bool
) -> tuple[str, ...]:
    """Return the verdict at each age."""
    rows = zip(*slope.ends, slope.compared[0].value, exact_change, cosine.value, strict=True)
    return tuple(
        str(response_verdict((low, high), level, change, direction, is_better=is_better))
        for low, high, level, change, direction in (map(float, row) for row in rows)
    )


def response_verdict(
    interval: tuple[float, float], level: float, exact_change: float, cosine: float, *, is_better: bool = True
) -> Verdict:
    """Return whether answers follow the evidence of one age.

    Args:
        interval: Both ends of the slope's interval; NaN if it is withheld.
        level: The slope that pairings with other sequences reach.
        exact_change: Root mean square of the exact change.
        cosine: Cosine of the model's changes with the exact ones; NaN if the model does not change.
        is_better: Whether the predictions are better than those without evidence.

    Example:
        >>> response_verdict((0.83, 0.94), 0.08, 0.1, 0.9), response_verdict((2.7, 3.0), 0.08, 0.1, 0.28)
        (<Verdict.TRANSPORTS: 'transports'>, <Verdict.NOT_AS_BAYES: 'moves, but not as Bayes'>)
        >>> response_verdict((0.4, 0.49), 0.08, 0.1, 0.9), response_verdict((0.4, 0.58), 0.08, 0.1, 0.9)
        (<Verdict.IN_PART: 'in part'>, <Verdict.UNDECIDED: 'undecided'>)
    """
    (low, high), least = interval, max(level, LEAST_SLOPE)
    if exact_change < LEAST_CHANGE:
        return Verdict.NOT_IDENTIFIED
    if is_better and low > max(level, FOLLOWS) and high < MOST_SLOPE and cosine > ALIGNED:
        return Verdict.TRANSPORTS
    if is_better and low > least and high < FOLLOWS:
        return Verdict.IN_PART
    if low > least and (cosine < ALIGNED or low > MOST_SLOPE):
        return Verdict.NOT_AS_BAYES
    return Verdict.NOT_SHOWN if low <= least and high < FOLLOWS else Verdict.UNDECIDED


def _products(one: Sequence[Answers], other: Sequence[Answers]) -> Float64[np.ndarray, "sequence age"]:
    """Return the inner products of two changes of the answers of each sequence, by age."""
    return np.stack([(a * b).sum(axis=1) for a, b in zip(one, other, strict=True)], axis=1)


def _ratio(above: Any, below: Any) -> Any:
    """Return above / below, of numbers or arrays; NaN where the exact answers do not change."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below == 0, np.nan, above / np.where(below == 0, 1.0, below))
