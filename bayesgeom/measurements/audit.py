"""`audit`: is a predictor Bayesian, and if not, in which way? From its predictions alone."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, Self, final

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from bayesgeom.core import Ask, InvalidArgument, Reason, Run, TaskMismatch, Trials, Verdict, checked, unknown_name
from bayesgeom.core.progress import phase
from bayesgeom.measurements.audit_parts import (
    information_curve,
    kl_in_bits,
    log_odds_slope,
    martingale_gaps,
    mixture,
    nearest_discount,
    order_statistics,
)
from bayesgeom.measurements.base import Control, Further, Measurement, Needs, Subject, planted_run
from bayesgeom.measurements.evidence_response import EvidenceResponse
from bayesgeom.measurements.running import at_last, measured
from bayesgeom.models.base import LARGE, Model
from bayesgeom.models.resolve import ModelLike, TaskLike
from bayesgeom.report.answer import OFF_ANSWER
from bayesgeom.report.estimate import (
    ROUNDING,
    Baseline,
    Estimate,
    NonNegative,
    Quantity,
    Share,
    Signed,
    codes_of,
    mean_estimate,
    stacked,
    with_interval,
)
from bayesgeom.report.findings import Finding, Opening, Value
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, Level, headline_of
from bayesgeom.stats.behavior import POSITION, UNIFORM, position_predictive, tempering
from bayesgeom.tasks.base import (
    FORGETTING,
    Branch,
    EvidenceTask,
    ExchangeableTask,
    WindTunnel,
    derived_seed,
    random_order,
    scored_once,
)
from bayesgeom.tasks.dice import Dice

EXACT = "exact"
MOST_LINES = 6  # of predictors in the panel: those with the largest weights
_FURTHER = ("log_odds_slope", "information_slope", "averaging_gain_bits")  # listed where they are measured
_SEEN = 0.02  # weight below which a predictor is not drawn
Predictor = Callable[[Trials], Float64[Tensor, "batch query_pos answer"]]
N_CONTINUED, N_ORDERED = 128, 64  # most sequences to which every answer is appended, and whose evidence is permuted
N_ORDERS = 8  # permutations of the evidence of each
_TIMED = 8  # prompts whose time tells the cost
_ORDERS, _STEPS = 7, 8  # branches of the seed
_SMALL = 0.01  # share of the gap that a mixture may leave to name a predictor
_FORGETTING = "forgetting"
PARTS = ("response", "martingale", "order")  # that run further sequences
ONE_PASS = ("regret", "confidence", "discount", "strategy")  # always measured


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class AuditReport(Report):
    """The predictions were audited part by part against the exact observer, whose value is next to each number.

    Regret is the KL from the exact predictions, summed over the sequence. The response says how far answers follow old
    evidence, the confidence whether they are too sharp (above 1) or too flat. Where the order of the evidence carries
    no information, the mean of the next predictions has to be the present one (martingale), and the order must not
    matter. The discount is that of the filter nearest to the model that forgets old evidence; below 1, it forgets. The
    strategy is the mixture of named predictors nearest to the model.

    A part that is not measured says why: see the codes.

    Fields: `regret_bits` is the cumulative KL(exact ‖ model) at the end, `regret_bits_by_position` at each scored
    position. `off_answer_prob` is the mean probability of ids that are no answers, which all other numbers leave out.
    `response` is the slope of `evidence_response` at each age. `information_slope` and
    `information_curvature` compare what a piece of evidence changes in the model's prediction and in the exact one,
    both as KL(after ‖ before). `confidence` is 1/τ, `log_odds_slope` the regression of log-odds between two answers.
    `martingale_gap` is the mean total variation between Σ_y p_t(y) p_{t+1}(· | y) and p_t, at a step t that is drawn
    anew for each sequence; `martingale_drift` is the mean of that difference at the answer that was most probable.
    `order_spread` is the total variation between answers under two orders of the same evidence, `averaging_gain_bits`
    the KL that the mean over orders removes, and `order_deviation` the standard deviation over orders of the
    probability of the exactly most probable answer. `discount` minimizes KL(model ‖
    forgetting filter), and `discount_gain_bits` is what it removes. `weights` are those of the mixture of `predictors`
    that minimizes KL(model ‖ mixture), `mixture_kl_bits` what is left of it. Ceilings are the exact observer's values.
    """

    name: ClassVar[str] = "audit"
    is_behavioral: ClassVar[bool] = True
    title: ClassVar[str] = "Audit: how do the predictions differ from exact ones?"

    regret_bits: Annotated[Estimate, NonNegative(unit="bits", better="lower", label="regret per sequence")]
    regret_bits_by_position: Annotated[
        Estimate, NonNegative("position", unit="bits", better="lower", label="cumulative regret")
    ]
    off_answer_prob: Annotated[Estimate, Share(better="lower", label="off-answer probability")]
    response: Annotated[
        Estimate, Quantity("age", better="higher", label="slope of the model's change in the exact one")
    ]
    ages: tuple[str, ...]
    information_slope: Annotated[Estimate, Quantity(label="learned per piece of evidence")]
    information_curvature: Annotated[Estimate, Quantity(unit="1/bits", label="curvature of what is learned")]
    confidence: Annotated[Estimate, NonNegative(label="confidence (1/τ)")]
    tempering_gain_bits: Annotated[Estimate, Quantity(unit="bits", label="KL that one temperature removes")]
    log_odds_slope: Annotated[Estimate, Quantity(label="slope of log-odds")]
    martingale_gap: Annotated[Estimate, Share(better="lower", label="martingale gap")]
    martingale_drift: Annotated[Estimate, Signed(label="martingale drift of the favorite answer")]
    order_spread: Annotated[Estimate, Share(better="lower", label="order spread")]
    averaging_gain_bits: Annotated[Estimate, NonNegative(unit="bits", label="gain of averaging over orders")]
    order_deviation: Annotated[Estimate, Share(better="lower", label="standard deviation over orders")]
    discount: Annotated[Estimate, NonNegative(label="discount γ of old evidence")]
    discount_gain_bits: Annotated[Estimate, Quantity(unit="bits", label="KL from the model that the discount removes")]
    weights: Annotated[Estimate, Share("predictor", label="weight in the nearest mixture")]
    weights_by_position: Annotated[Estimate, Share("predictor position", label="weight in the nearest mixture")]
    mixture_kl_bits: Annotated[Estimate, NonNegative(unit="bits", label="KL(model ‖ nearest mixture)")]
    predictors: tuple[str, ...]
    n: int

    def headlines(self) -> Sequence[Headline]:
        oldest = int(np.flatnonzero(np.isfinite(self.response.ends[0]))[-1:].sum())
        age = "all evidence" if self.ages[oldest] == "0" else f"evidence older than {self.ages[oldest]}"
        largest = np.argsort(-np.nan_to_num(self.weights.value), kind="stable")[:2]
        lines = (
            headline_of(self, "regret_bits"),
            self._line("confidence"),
            self._line("response", (oldest,), f"response to {age}"),
            *(self._line(name) for name in ("martingale_gap", "order_spread", "discount")),
            *(self._line(name) for name in _FURTHER if np.isfinite(self.estimate(name).value)),
            *([self._line("off_answer_prob")] if float(self.off_answer_prob) > ROUNDING else []),
            *(self._line("weights", (int(at),), f"weight of “{self.predictors[at]}”") for at in largest),
            headline_of(self, "mixture_kl_bits"),
        )
        return [line for line in lines if line.why != Reason.NOT_COMPUTED.label]

    def answer(self) -> Opening:
        line, off, said = headline_of(self, "regret_bits"), float(self.off_answer_prob), dict[str, Value]()
        if self._is_explained():
            top = int(np.nanargmax(self.weights.value))
            said = {"predictor": self.predictors[top], "weight": self.weights.value[top]}
        said |= {"off": off} if off > OFF_ANSWER else {}
        return Finding.REGRET.of(regret=self.regret_bits, level=line.baseline, baseline=line.baseline_name, **said)

    def _is_explained(self) -> bool:
        """Return whether the nearest mixture leaves at most a hundredth of the gap from context-free predictions."""
        levels = [float(self.regret_bits.baseline(name).value) for name in (UNIFORM, POSITION)]
        most = np.fmax(float(self.mixture_kl_bits), float(self.mixture_kl_bits.ends[1]))
        return bool(most * len(self.regret_bits_by_position.value) <= _SMALL * min(levels))

    def _line(self, metric: str, at: tuple[int, ...] = (), label: str = "") -> Headline:
        """Return an entry next to the exact observer's, or why it was not measured."""
        estimate, line = self.estimate(metric)[at], headline_of(self, metric, at, label, verdict="")
        if np.isnan(estimate.value):
            return replace(line, verdict=str(Verdict.NOT_MEASURED), why=estimate.reason_at().label)
        return replace(line, levels=(Level(name=EXACT, value=float(estimate.ceiling)), *line.levels))

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import (
            N_BASELINES,
            add_estimate,
            add_line,
            add_reference,
            brief,
            estimate_panel,
            times_text,
        )
        from bayesgeom.report.theme import SERIES, label_axes

        x = np.arange(1, len(self.regret_bits_by_position.value) + 1)
        position, uniform = "scored position (1 is the first)", self.regret_bits.baseline("uniform")
        compared = times_text(float(self.regret_bits), float(uniform.value), "uniform")
        title = f"Regret: {brief(self.regret_bits.value)} bits a sequence, {compared}"
        regret_bits = self.regret_bits_by_position
        strongest = sorted(regret_bits.compared, key=lambda level: float(level.value[-1]))[:N_BASELINES]
        regret = Panel.blank(title)
        add_estimate(regret.figure, x, regret_bits, baselines={level.name: level.value for level in strongest})
        label_axes(regret.figure, position, "cumulative KL (bits)")
        drawn = [regret]
        if np.isfinite(self.response.value).any():
            places = np.arange(len(self.ages), dtype=float)
            title, axes = "Response to old evidence, where 1 is exact", ("newest pieces that stay", "slope")
            panel = estimate_panel(title, axes, places, self.response)
            add_reference(panel.figure, places, self.response.ceiling, name=EXACT)
            panel.figure.layout.xaxis.update(tickvals=places.tolist(), ticktext=list(self.ages))
            drawn.append(panel)
        top = int(np.nanargmax(self.weights.value))
        title = f"Nearest mixture: {float(self.weights.value[top]):.0%} “{self.predictors[top]}”"
        if not self._is_explained():
            title = f"No mixture of predictors is near: {brief(self.mixture_kl_bits.value)} bits are left"
        strategy = Panel.blank(title)
        add_reference(strategy.figure, x, np.ones(len(x)), name="an exact observer")
        order = np.argsort(-np.nan_to_num(self.weights_by_position.value).max(axis=1), kind="stable")[:MOST_LINES]
        for at, color in zip(sorted(order), SERIES, strict=False):
            weights = self.weights_by_position[at]
            if np.nan_to_num(weights.value).max() >= _SEEN:
                add_line(strategy.figure, x, weights.value, name=self.predictors[at], color=color, band=weights.ends)
        label_axes(strategy.figure, position, "weight")
        strategy.figure.update_yaxes(range=(-0.02, 1.02))
        return [*drawn, strategy]


@checked("model", "task")
def audit(
    model: ModelLike,
    task: TaskLike | None = None,
    *,
    n: int = 128,
    parts: Sequence[str] = PARTS,
    predictors: Mapping[str, Predictor] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Audit a predictor against the exact observer, from predictions alone.

    Seven parts: prequential regret, evidence response, confidence, martingale gap, order, forgetting and strategy. A
    part that does not apply to the task, or that recorded predictions do not allow, is missing, with a code.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model, a
            function from ids to logits, a capture, a server.
        task: A task with an exact posterior, or its text as on the command line. Default: the task that the model was
            trained on.
        n: Number of sequences. The martingale gap uses at most 128 of them, each with every answer appended at one
            step, and the order 64, in 8 orders. Of a language model, the cost is shown first.
        parts: Parts that run the model on further sequences: "response", "martingale", "order". The others need one
            pass: with none of these, an audit costs as much as a calibration.
        predictors: More predictors for the strategy, by name: functions of the sequences that return answer
            probabilities at their scored positions, of shape (sequence, position, answer).
        seed: Seed of the sequences, permutations, replaced evidence and intervals.

    Returns:
        Every part with its interval and the exact observer's value.

    Raises:
        TaskMismatch: The task has no exact posterior.
        UnknownName: There is no such part.
        InvalidArgument: A number is too small, or a predictor does not return probabilities.

    Example:
        >>> import bayesgeom, torch
        >>> def plug_in(tokens):  # a coin: log of the shares so far, without a prior
        ...     return (torch.nn.functional.one_hot(tokens, 2).cumsum(dim=1) + 0.01).log()
        >>> report = bayesgeom.audit(plug_in, bayesgeom.tasks.Dice(n_faces=2, length=8), n=64)
        >>> float(report.confidence) > 1.5, float(report.martingale_gap) < 1e-6
        (True, True)
    """
    if n < 2:
        raise InvalidArgument(f"n must be at least 2, got {n}.")
    if unknown := [part for part in parts if part not in (*PARTS, *ONE_PASS)]:
        raise unknown_name("part of the audit", unknown[0], (*PARTS, *ONE_PASS))
    chosen = Audit(parts=tuple(parts), predictors=dict(predictors or {}))
    return measured(chosen, model, task, n=n, seed=seed)


@final
@dataclass(frozen=True, kw_only=True)
class Audit(Measurement[AuditReport]):
    """Every part, on all sequences of a run; parts that run further sequences on some of them."""

    name: ClassVar[str] = AuditReport.name
    needs: ClassVar[Needs] = Needs(posterior=True)
    is_default: ClassVar[bool] = False
    parts: tuple[str, ...] = PARTS
    predictors: Mapping[str, Predictor] = field(default_factory=dict, hash=False)
    closed: Mapping[str, Reason] = field(default_factory=dict, hash=False, repr=False)  # why parts do not run
    response: EvidenceResponse | None = field(default=None, repr=False)

    def prepared(self, model: Model, task: WindTunnel, *, n: int, seed: int) -> Self:
        if not task.has_posterior:
            raise TaskMismatch(f"audit requires a task with an exact posterior; {task.name!r} has none.")
        model.check_fits(one := task.sample(2, seed=0))
        _check_names(self.predictors, task, one)
        closed = {part: self._closed(part, model, task) for part in PARTS}
        is_open = closed["response"] == Reason.NONE
        response = EvidenceResponse(n=n).prepared(model, task, n=n, seed=seed) if is_open else None
        chosen = replace(self, closed=closed, response=response)
        if model.spec.n_parameters >= LARGE and Ask.PREDICT in model.asks:
            _show_cost(model, task, n, chosen)
        return chosen

    def _closed(self, part: str, model: Model, task: WindTunnel) -> Reason:
        """Return why a part cannot run further sequences; `NONE` if it can."""
        if part != "response" and not (isinstance(task, ExchangeableTask) and task.is_exchangeable):
            return Reason.NOT_EXCHANGEABLE
        if part not in self.parts:
            return Reason.NOT_COMPUTED
        if Ask.PREDICT not in model.asks:
            return Reason.RECORDED
        if part == "response" and not (isinstance(task, EvidenceTask) and task.n_evidence):
            return Reason.NOT_REPLACEABLE
        if part == "martingale" and isinstance(task, ExchangeableTask) and not task.n_continued:
            return Reason.NOT_EXCHANGEABLE
        return Reason.NONE

    def further(self, task: WindTunnel, run: Run, seed: int) -> Iterator[Further]:
        """Yield replaced evidence, then every next answer step by step, then the evidence in other orders."""
        if self.response is not None:
            yield from replace(self.response, n=min(self.response.n, run.n_recorded)).further(task, run, seed)
        if not isinstance(task, ExchangeableTask):
            return
        steps = self._steps(task, run.n_recorded, seed)
        for step in np.unique(steps).tolist():
            sequences, read = task.continued(run.trials.rows(torch.from_numpy(np.flatnonzero(steps == step))), step)
            once = scored_once(sequences, read.flatten())
            yield Further(trials=once, is_last_only=True, label=f"every next answer, step {step + 1}")
        if self.closed["order"] == Reason.NONE:
            few = run.trials.rows(slice(0, N_ORDERED))
            generator = torch.Generator(few.tokens.device).manual_seed(derived_seed(seed, _ORDERS))
            for order in [random_order(len(few), task.n_evidence, generator) for _ in range(N_ORDERS)]:
                reordered = task.reordered(few, order)
                yield Further(trials=at_last(reordered), is_last_only=True, label="orders of the evidence")

    def _steps(self, task: WindTunnel, n: int, seed: int) -> Int[np.ndarray, " sequence"]:
        """Return the step of each sequence at which every answer is appended; none if that part does not run."""
        if self.closed["martingale"] != Reason.NONE or not isinstance(task, ExchangeableTask):
            return np.empty(0, dtype=np.int64)
        return np.random.default_rng(derived_seed(seed, _STEPS)).integers(task.n_continued, size=min(n, N_CONTINUED))

    def of(self, subject: Subject, untrained: Sequence[AuditReport] = ()) -> AuditReport:
        run, runs = subject.run.of_recorded(), iter(subject.further)
        exact = run.trials.at_scored(run.trials.predictive).double().cpu().numpy()
        log_model = run.log_answers.double().cpu().numpy()
        resampling = derived_seed(subject.seed, Branch.RESAMPLING)
        parts = _Parts(task=subject.known_task(), trials=run.trials, seed=resampling)
        fields = parts.of_one_pass(run, exact, log_model) | self._response(subject, runs)
        n_steps = len(np.unique(self._steps(parts.task, len(run.trials), subject.seed)))
        fields |= parts.martingale(self.closed["martingale"], list(islice(runs, n_steps)))
        fields |= parts.order(self.closed["order"], list(runs))
        fields |= parts.discount(np.exp(log_model)) | parts.strategy(self.predictors, exact, np.exp(log_model))
        return AuditReport(n=len(run.trials), **fields)

    def _response(self, subject: Subject, runs: Iterator[Run]) -> dict[str, Any]:
        """Return the slopes of the evidence response."""
        if self.response is None or self.response.ages is None:
            reason = self.closed["response"]
            return {"response": Estimate.of([np.nan], ([np.nan], [np.nan]), reason=reason), "ages": ("0",)}
        response = replace(self.response, n=min(self.response.n, subject.run.n_recorded))
        report = response.of(replace(subject, further=tuple(islice(runs, len(self.response.ages)))))
        is_known = np.array([verdict != Verdict.NOT_IDENTIFIED for verdict in report.verdicts])
        value, low, high = (np.where(is_known, end, np.nan) for end in (report.slope.value, *report.slope.ends))
        codes = np.where(is_known, codes_of(report.slope), int(Reason.FLAT))
        slope = replace(report.slope, value=value, low=low, high=high, reason=codes)
        return {"response": _beside(slope, 1.0), "ages": report.ages}

    def controls(self) -> Iterator[Control[AuditReport]]:
        """Yield the exact answers of a die, and the same at temperature 1/2; `selftest` audits more predictors."""
        task = Dice(n_faces=3, length=6)
        trials = task.sample(64, seed=0)
        given = replace(self, parts=(), closed=dict.fromkeys(PARTS, Reason.NOT_COMPUTED))
        sharp = trials.at_scored(trials.predictive) ** 2
        for label, model, confidence in (("exact answers", None, 1.0), ("answers at temperature 1/2", sharp, 2.0)):
            probs = None if model is None else model / model.sum(dim=-1, keepdim=True)
            yield Control(
                label=label,
                run=planted_run(trials, {}, model=probs),
                task=task,
                measurement=given,
                holds=partial(_has_confidence, confidence),
            )


def _has_confidence(confidence: float, report: AuditReport) -> bool:
    is_exact = bool(abs(float(report.regret_bits)) < 1e-9)
    return abs(float(report.confidence) - confidence) < 1e-3 and is_exact == (confidence == 1)


@final
@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The parts of an audit of these sequences; each returns its fields of the report. `seed` is that of resamples."""

    task: WindTunnel
    trials: Trials
    seed: int

    def of_one_pass(self, run: Run, exact: np.ndarray, log_model: np.ndarray) -> dict[str, Any]:
        """Return regret, confidence and the off-answer probability."""
        regret = kl_in_bits(exact, log_model).cumsum(axis=1)
        free = {UNIFORM: np.full_like(exact, 1 / exact.shape[-1]), POSITION: position_predictive(exact)}
        with np.errstate(divide="ignore"):
            levels = {name: kl_in_bits(exact, np.log(probs)).mean(axis=0).cumsum() for name, probs in free.items()}
        for name, behavior in run.baseline_behaviors.items():
            levels.setdefault(name, behavior.kl_bits.mean(axis=0, dtype=np.float64).cumsum())
        baselines = [Baseline.of("baseline", name, level) for name, level in levels.items()]
        by_position = mean_estimate(regret, seed=self.seed, baselines=baselines, bounds=(0.0, np.inf))
        tempered = tempering(exact, log_model, seed=self.seed)
        off_answer = run.behavior.off_answer_prob.mean(axis=1, dtype=np.float64)
        return {
            "off_answer_prob": _beside(mean_estimate(off_answer, seed=self.seed, bounds=(0.0, 1.0)), 0.0),
            "regret_bits": _beside(by_position[-1], 0.0),
            "regret_bits_by_position": _beside(by_position, 0.0),
            "confidence": _beside(with_interval(tempered.confidence, tempered.interval, n=len(exact)), 1.0),
            "tempering_gain_bits": Estimate.of(tempered.gain_bits),
            "log_odds_slope": _beside(log_odds_slope(exact, log_model, seed=self.seed), 1.0),
        }

    def martingale(self, closed: Reason, continued: Sequence[Run]) -> dict[str, Any]:
        """Return the martingale gap and what each piece teaches, from every next answer at one step of a sequence."""
        if closed != Reason.NONE:
            return _missing(closed, "martingale_gap", "martingale_drift", "information_slope", "information_curvature")

        def rows(answers: Sequence[Float64[Tensor, "_ position answer"]]) -> np.ndarray:
            together = torch.cat([each[:, 0] for each in answers]).cpu().numpy()
            return np.asarray(together.reshape(-1, together.shape[1] + 2, together.shape[1]))

        log_model = rows([run.log_answers for run in continued])
        exact = rows([run.trials.at_scored(run.trials.predictive) for run in continued])
        model, is_possible = np.exp(log_model), exact[:, 0] > 0  # other pieces do not occur, and tell nothing
        gap, drift = martingale_gaps(model[:, 0], model[:, 1], model[:, 2:])
        with np.errstate(divide="ignore"):
            bits = np.where(is_possible, kl_in_bits(exact[:, 2:], np.log(exact[:, 1:2])), 0.0)
        learned = kl_in_bits(model[:, 2:], log_model[:, 1:2])
        slope, curvature = information_curve(bits, learned, exact[:, 0], seed=self.seed)
        return {
            "martingale_gap": _beside(mean_estimate(gap, seed=self.seed, bounds=(0.0, 1.0)), 0.0),
            "martingale_drift": _beside(mean_estimate(drift, seed=self.seed, bounds=(-1.0, 1.0)), 0.0),
            "information_slope": _beside(slope, 1.0),
            "information_curvature": _beside(curvature, 0.0),
        }

    def order(self, closed: Reason, reordered: Sequence[Run]) -> dict[str, Any]:
        """Return the spread over orders of the same evidence, and the gain of averaging over them."""
        names = ("order_spread", "averaging_gain_bits", "order_deviation")
        if closed != Reason.NONE:
            return _missing(closed, *names)
        log_model = np.stack([run.log_answers[:, 0].cpu().numpy() for run in reordered])
        first = reordered[0].trials
        exact = first.at_scored(first.predictive)[:, 0].cpu().numpy()
        return {
            name: _beside(mean_estimate(values, seed=self.seed, bounds=(0.0, most)), 0.0)
            for name, values, most in zip(names, order_statistics(exact, log_model), (1.0, np.inf, 1.0), strict=True)
        }

    def discount(self, model: np.ndarray) -> dict[str, Any]:
        """Return the discount of the nearest filter that forgets."""
        names, task = ("discount", "discount_gain_bits"), self.task
        if not isinstance(task, ExchangeableTask) or not task.is_exchangeable:
            return _missing(Reason.NOT_EXCHANGEABLE, *names)
        if task.discounted(self.trials, 1.0) is None:
            return _missing(Reason.NOT_COMPUTED, *names)

        def filtered(discount: float) -> np.ndarray:
            filtered_probs = task.discounted(self.trials, discount)
            assert filtered_probs is not None, "as with a discount of 1"
            return np.asarray(filtered_probs.cpu().numpy())

        nearest = nearest_discount(filtered, model, seed=self.seed)
        return {name: _beside(part, level) for name, part, level in zip(names, nearest, (1.0, 0.0), strict=True)}

    def strategy(self, predictors: Mapping[str, Predictor], exact: np.ndarray, model: np.ndarray) -> dict[str, Any]:
        """Return the weights of the nearest mixture of predictors, over all positions and at each."""
        known = {EXACT: exact}
        for name, predictor in predictors.items():
            known[name] = _probabilities(name, predictor(self.trials), self.trials)
        baselines = self.task.baseline_predictives(self.trials)
        known |= {name: predicted.cpu().numpy() for name, predicted in baselines.items()}
        if isinstance(self.task, ExchangeableTask) and self.task.is_exchangeable:
            forgetful = self.task.discounted(self.trials, FORGETTING)
            known |= {} if forgetful is None else {_FORGETTING: forgetful.cpu().numpy()}
        known |= {POSITION: position_predictive(exact), UNIFORM: np.full_like(exact, 1 / exact.shape[-1])}
        weights, left = mixture(model, known, seed=self.seed)
        there = [{name: predicted[:, [at]] for name, predicted in known.items()} for at in range(exact.shape[1])]
        by_position = stacked([mixture(model[:, [at]], each, seed=self.seed)[0] for at, each in enumerate(there)])
        exactly = np.where(np.isnan(weights.value), np.nan, [float(name == EXACT) for name in known])
        return {
            "weights": _beside(weights, exactly),
            "weights_by_position": stacked([by_position[:, k] for k in range(len(known))]),
            "mixture_kl_bits": mean_estimate(left, seed=self.seed, bounds=(0.0, np.inf)),
            "predictors": tuple(known),
        }


def _show_cost(model: Model, task: WindTunnel, n: int, audit: Audit) -> None:
    """Show how many prompts run, most of which differ, and how many seconds that takes at the speed of a few."""
    trials, begun = task.sample(_TIMED, seed=0), time.perf_counter()
    model.run([trials], n_recorded=_TIMED)
    ages = () if audit.response is None else audit.response.ages or ()
    n_continued = min(n, N_CONTINUED) * (audit.closed["martingale"] == Reason.NONE)
    n_ordered = min(n, N_ORDERED) * (audit.closed["order"] == Reason.NONE)
    passes = n * (1 + len(ages)) + n_continued * (trials.answers.numel() + 2) + n_ordered * N_ORDERS
    seconds = (time.perf_counter() - begun) / _TIMED * passes
    with phase(f"audit of {n} prompts: {seconds:.0f} s", passes, "run", leave=True):
        pass


def _missing(reason: Reason, *names: str) -> dict[str, Any]:
    """Return scalars that are not known, with a code."""
    return {name: Estimate.of(np.nan, (np.nan, np.nan), reason=reason) for name in names}


def _beside(estimate: Estimate, exact: float | np.ndarray) -> Estimate:
    """Return an estimate with the exact observer's value."""
    level = Baseline.of("ceiling", EXACT, exact).broadcast(estimate.value.shape)
    return replace(estimate, baselines=(*estimate.baselines, level))


def _check_names(named: Mapping[str, Predictor], task: WindTunnel, one: Trials) -> None:
    """Check names and results of a user's predictors before the model runs.

    Raises:
        InvalidArgument: A name is taken, or a predictor does not return probabilities.
    """
    taken = {EXACT, _FORGETTING, POSITION, UNIFORM, *task.baseline_predictives(one)}
    for name, predictor in named.items():
        if name in taken:
            raise InvalidArgument(f"predictor {name!r} has the name of another: {', '.join(sorted(taken))} are taken.")
        _probabilities(name, predictor(one), one)


def _probabilities(name: str, returned: Any, trials: Trials) -> np.ndarray:
    """Return what a user's predictor returned, as an array.

    Raises:
        InvalidArgument: It is no array of probabilities at the scored positions.
    """
    shape = (len(trials), trials.n_scored, len(trials.answers))
    if isinstance(returned, Tensor):
        returned = returned.detach().double().cpu().numpy()
    try:
        probs = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"predictor {name!r} must return an array, got a {type(returned).__name__}.") from error
    if probs.shape != shape or not (probs >= 0).all() or not np.allclose(probs.sum(axis=-1), 1, atol=1e-6):
        raise InvalidArgument(
            f"predictor {name!r} must return probabilities of shape {shape} (sequence, scored position, answer), "
            f"which add to 1 over the answers; got shape {probs.shape}."
        )
    return probs
