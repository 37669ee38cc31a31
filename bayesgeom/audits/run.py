"""`audit`: is a predictor Bayesian, and if not, in which way? From its predictions alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.audits.parts import (
    information_curve,
    kl_in_bits,
    log_odds_slope,
    martingale_gaps,
    mixture,
    nearest_discount,
    order_statistics,
)
from bayesgeom.audits.report import EXACT, AuditReport
from bayesgeom.core import (
    InvalidArgument,
    Reason,
    Run,
    TaskMismatch,
    Trials,
    Verdict,
    checked,
    concatenate,
    phase,
    unknown_name,
)
from bayesgeom.generalization.response import Replacement
from bayesgeom.models.base import Model, provenance, recording_bytes
from bayesgeom.models.captured.model import CapturedModel
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, task_of
from bayesgeom.report import Baseline, Estimate, mean_estimate, stacked, with_interval, with_provenance
from bayesgeom.stats import POSITION, UNIFORM, tempering
from bayesgeom.tasks.base import (
    FORGETTING,
    Branch,
    EvidenceTask,
    ExchangeableTask,
    WindTunnel,
    at_most,
    derived_seed,
    random_order,
    scored_once,
)

Predictor = Callable[[Trials], Float64[Tensor, "batch query_pos answer"]]
N_CONTINUED, N_ORDERED = 32, 64  # most sequences to which every answer is appended, and whose evidence is permuted
N_ORDERS = 8  # permutations of the evidence of each
_ORDERS = 7  # branch of the seed
_FORGETTING = "forgetting"
PARTS = ("response", "martingale", "order")  # that run further sequences
ONE_PASS = ("regret", "confidence", "discount", "strategy")  # always measured


@checked("model", "task")
def audit(
    model: ModelLike,
    task: TaskLike | None = None,
    *,
    n: int = 128,
    n_positions: int = 4,
    parts: Sequence[str] = PARTS,
    predictors: Mapping[str, Predictor] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Audit a predictor against the exact observer, from predictions alone.

    Seven parts: prequential regret, evidence response, confidence, martingale gap, order, discount and strategy. A
    part that does not apply to the task, or that recorded predictions do not allow, is missing, with a code.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model, a
            function from ids to logits, a capture, a server.
        task: A task with an exact posterior, or its text as on the command line. Default: the task that the model was
            trained on.
        n: Number of sequences. The martingale gap uses at most 32 of them, and the order 64, in 8 orders.
        n_positions: Most positions, evenly spaced, at which every answer is appended for the martingale gap.
        parts: Parts that are measured. "response", "martingale" and "order" run the model on further sequences.
            "regret", "confidence", "discount" and "strategy" need one pass and are always measured: with these alone,
            or with none, an audit costs as much as a calibration.
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
    for name, value, least in (("n", n, 2), ("n_positions", n_positions, 1)):
        if value < least:
            raise InvalidArgument(f"{name} must be at least {least}, got {value}.")
    if unknown := [part for part in parts if part not in (*PARTS, *ONE_PASS)]:
        raise unknown_name("part of the audit", unknown[0], (*PARTS, *ONE_PASS))
    subject = model_for(model, task)
    chosen = task_of(subject, task)
    if not chosen.has_posterior:
        raise TaskMismatch(f"audit requires a task with an exact posterior; {chosen.name!r} has none.")
    if isinstance(subject, CapturedModel):
        n, seed = subject.sequences(chosen, n=n, seed=seed)
    subject.check_fits(one := chosen.sample(2, seed=0))
    sizes, named = {"n": at_most(chosen, n), "n_positions": n_positions}, predictors or {}
    _check_names(named, chosen, one)
    return _Audit(model=subject, task=chosen, sizes=sizes, parts=tuple(parts), named=named, seed=seed).report()


@final
@dataclass(frozen=True, kw_only=True)
class _Audit:
    """A checked audit."""

    model: Model
    task: WindTunnel
    sizes: Mapping[str, int]
    parts: tuple[str, ...]
    named: Mapping[str, Predictor]
    seed: int

    def report(self) -> AuditReport:
        """Run the model and return the report."""
        run = self._run()
        trials = run.trials
        exact, log_model = (
            own.double().cpu().numpy() for own in (trials.at_scored(trials.predictive), run.log_answers)
        )
        found = self._of_one_pass(run, exact, log_model)
        found |= self._response(run) | self._martingale(trials) | self._order(trials)
        found |= self._discount(trials, np.exp(log_model)) | self._strategy(trials, exact, np.exp(log_model))
        report = AuditReport(n=len(trials), **found)
        arguments = {**self.sizes, "parts": list(self.parts), "predictors": list(self.named), "seed": self.seed}
        return with_provenance(report, provenance(self.model, self.task, arguments))

    @property
    def _resampling(self) -> int:
        return derived_seed(self.seed, Branch.RESAMPLING)

    def _run(self) -> Run:
        """Return the predictions of all sequences; those of a capture are read."""
        run = self.model.run_from_disk if isinstance(self.model, CapturedModel) else self.model.run
        with phase(self.model.spec.name, self.sizes["n"], "sequence") as shown:

            def blocks() -> Iterator[Trials]:
                start = derived_seed(self.seed, Branch.TRIALS)
                for block in self.task.stream(self.sizes["n"], seed=start, device=self.model.spec.device):
                    yield block
                    shown.update(len(block))

            return run(
                blocks(),
                record=(),
                n_recorded=self.sizes["n"],
                baseline_predictives=self.task.baseline_predictives,
                budget_bytes=recording_bytes(self.model.spec.device, self.model.memory_gib),
                seed=self._resampling,
            )

    def _of_one_pass(self, run: Run, exact: np.ndarray, log_model: np.ndarray) -> dict[str, Any]:
        """Return regret, confidence and the off-answer probability."""
        regret = kl_in_bits(exact, log_model).cumsum(axis=1)
        free = {UNIFORM: np.full_like(exact, 1 / exact.shape[-1]), POSITION: _by_position(exact)}
        with np.errstate(divide="ignore"):
            levels = {name: kl_in_bits(exact, np.log(own)).mean(axis=0).cumsum() for name, own in free.items()}
        own = {name: own.kl_bits.mean(axis=0, dtype=np.float64) for name, own in run.baseline_behaviors.items()}
        levels = {name: bits.cumsum() for name, bits in own.items()} | levels
        baselines = [Baseline.of("baseline", name, level) for name, level in levels.items()]
        by_position = mean_estimate(regret, seed=self._resampling, baselines=baselines, bounds=(0.0, np.inf))
        tempered, odds = tempering(exact, log_model, seed=self._resampling), _missing(Reason.NOT_BINARY, "slope")
        if exact.shape[-1] == 2:
            odds = {"slope": log_odds_slope(exact, log_model, seed=self._resampling)}
        off_answer = run.behavior.off_answer_prob.mean(axis=1, dtype=np.float64)
        return {
            "off_answer_prob": _beside(mean_estimate(off_answer, seed=self._resampling, bounds=(0.0, 1.0)), 0.0),
            "regret_bits": _beside(by_position[-1], 0.0),
            "regret_bits_by_position": _beside(by_position, 0.0),
            "confidence": _beside(with_interval(tempered.confidence, tempered.interval, n=len(exact)), 1.0),
            "tempering_gain_bits": Estimate.of(tempered.gain_bits),
            "log_odds_slope": _beside(odds["slope"], 1.0),
        }

    def _response(self, run: Run) -> dict[str, Any]:
        """Return the slopes of the evidence response."""
        task, ages = self.task, ("0",)
        reason = self._closed("response")
        if reason == Reason.NONE and (not isinstance(task, EvidenceTask) or task.n_evidence == 0):
            reason = Reason.NOT_REPLACEABLE
        if reason != Reason.NONE or not isinstance(task, EvidenceTask):
            return {"response": Estimate.of([np.nan], ([np.nan], [np.nan]), reason=reason), "ages": ages}
        found = Replacement.of(self.model, task, n=len(run.trials), seed=self.seed).report(run)
        is_known = np.array([verdict != Verdict.NOT_IDENTIFIED for verdict in found.verdicts])
        value, (low, high) = found.slope.value, found.slope.ends
        value, low, high = (np.where(is_known, own, np.nan) for own in (value, low, high))
        codes = [int(found.slope.reason_at((at,))) for at in range(len(found.ages))]
        slope = Estimate.of(
            value,
            (low, high),
            n=found.n,
            baselines=found.slope.baselines,
            reason=np.where(is_known, codes, int(Reason.FLAT)),
        )
        return {"response": _beside(slope, 1.0), "ages": found.ages}

    def _closed(self, part: str) -> Reason:
        """Return why a part cannot run further sequences; `NONE` if it can."""
        if part not in self.parts:
            return Reason.NOT_COMPUTED
        return Reason.RECORDED if isinstance(self.model, CapturedModel) else Reason.NONE

    def _free(self, part: str) -> ExchangeableTask | Reason:
        """Return the task if other orders and pieces of its evidence can be run, else why they cannot."""
        if not isinstance(self.task, ExchangeableTask) or not self.task.is_exchangeable:
            return Reason.NOT_EXCHANGEABLE
        return self._closed(part) or self.task

    def _martingale(self, trials: Trials) -> dict[str, Any]:
        """Append every answer at some positions, and return the martingale gap and what each piece teaches."""
        task = self._free("martingale")
        if isinstance(task, Reason) or task.n_continued == 0:
            reason = task if isinstance(task, Reason) else Reason.NOT_EXCHANGEABLE
            empty = Estimate.of([np.nan], ([np.nan], [np.nan]), reason=reason)
            names = ("martingale_gap", "martingale_drift", "information_slope", "information_curvature")
            return _missing(reason, *names) | {"martingale_gap_by_step": empty, "steps": ("1",)}
        steps = np.linspace(0, task.n_continued - 1, self.sizes["n_positions"]).round().astype(int)
        steps, few = np.unique(steps).tolist(), trials.rows(slice(0, N_CONTINUED))
        gaps, taught = list[tuple[np.ndarray, ...]](), list[tuple[np.ndarray, ...]]()
        for step in steps:
            found, read = task.continued(few, step)
            once = scored_once(found, read.flatten())
            log_model = self._answers(once, "every next answer").reshape(*read.shape, -1)
            exact = once.at_scored(once.predictive)[:, 0].cpu().numpy().reshape(log_model.shape)
            model = np.exp(log_model)
            gaps.append(martingale_gaps(model[:, 0], model[:, 1], model[:, 2:]))
            is_possible = exact[:, 0] > 0  # other pieces do not occur, and tell nothing
            with np.errstate(divide="ignore"):
                told = np.where(is_possible, kl_in_bits(exact[:, 2:], np.log(exact[:, 1:2])), 0.0)
            taught.append((told, kl_in_bits(model[:, 2:], log_model[:, 1:2]), exact[:, 0]))
        apart, drifts = (np.stack(own, axis=1) for own in zip(*gaps, strict=True))
        estimate = partial(mean_estimate, seed=self._resampling)
        together = (np.concatenate(parts, axis=1) for parts in zip(*taught, strict=True))
        slope, curvature = information_curve(*together, seed=self._resampling)
        return {
            "martingale_gap": _beside(estimate(apart.mean(axis=1), bounds=(0.0, 1.0)), 0.0),
            "martingale_gap_by_step": _beside(estimate(apart, bounds=(0.0, 1.0)), 0.0),
            "martingale_drift": _beside(estimate(drifts.mean(axis=1), bounds=(-1.0, 1.0)), 0.0),
            "steps": tuple(str(step + 1) for step in steps),
            "information_slope": _beside(slope, 1.0),
            "information_curvature": _beside(curvature, 0.0),
        }

    def _order(self, trials: Trials) -> dict[str, Any]:
        """Permute the evidence, and return spread and gain of averaging."""
        names, task = ("order_spread", "averaging_gain_bits", "order_deviation"), self._free("order")
        if isinstance(task, Reason):
            return _missing(task, *names)
        few = trials.rows(slice(0, N_ORDERED))
        generator, n = torch.Generator(trials.tokens.device), len(few)
        generator.manual_seed(derived_seed(self.seed, _ORDERS))
        orders = [random_order(n, task.n_evidence, generator) for _ in range(N_ORDERS)]
        last = torch.full((n,), -1, device=trials.tokens.device)
        once = [scored_once(task.reordered(few, order), last) for order in orders]
        log_model = self._answers(concatenate(once), "orders of the evidence").reshape(len(once), n, -1)
        exact = once[0].at_scored(once[0].predictive)[:, 0].cpu().numpy()
        return {
            name: _beside(mean_estimate(own, seed=self._resampling, bounds=(0.0, most)), 0.0)
            for name, own, most in zip(names, order_statistics(exact, log_model), (1.0, np.inf, 1.0), strict=True)
        }

    def _discount(self, trials: Trials, model: np.ndarray) -> dict[str, Any]:
        """Return the discount of the nearest filter that forgets."""
        names, task = ("discount", "discount_gain_bits"), self.task
        if not isinstance(task, ExchangeableTask) or not task.is_exchangeable:
            return _missing(Reason.NOT_EXCHANGEABLE, *names)
        if task.discounted(trials, 1.0) is None:
            return _missing(Reason.NOT_COMPUTED, *names)

        def filtered(discount: float) -> np.ndarray:
            found = task.discounted(trials, discount)
            assert found is not None, "as with a discount of 1"
            return np.asarray(found.cpu().numpy())

        own = nearest_discount(filtered, model, seed=self._resampling)
        return {name: _beside(part, level) for name, part, level in zip(names, own, (1.0, 0.0), strict=True)}

    def _strategy(self, trials: Trials, exact: np.ndarray, model: np.ndarray) -> dict[str, Any]:
        """Return the weights of the nearest mixture of predictors, over all positions and at each."""
        known = {EXACT: exact}
        for name, predictor in self.named.items():
            known[name] = _probabilities(name, predictor(trials), trials)
        known |= {name: own.cpu().numpy() for name, own in self.task.baseline_predictives(trials).items()}
        if isinstance(self.task, ExchangeableTask) and self.task.is_exchangeable:
            forgetful = self.task.discounted(trials, FORGETTING)
            known |= {} if forgetful is None else {_FORGETTING: forgetful.cpu().numpy()}
        known |= {POSITION: _by_position(exact), UNIFORM: np.full_like(exact, 1 / exact.shape[-1])}
        weights, left = mixture(model, known, seed=self._resampling)
        each = [
            mixture(model[:, [at]], {name: own[:, [at]] for name, own in known.items()}, seed=self._resampling)[0]
            for at in range(exact.shape[1])
        ]
        exactly = np.where(np.isnan(weights.value), np.nan, [float(name == EXACT) for name in known])
        return {
            "weights": _beside(weights, exactly),
            "weights_by_position": stacked([stacked([own[[k]] for own in each])[:, 0] for k in range(len(known))]),
            "mixture_kl_bits": mean_estimate(left, seed=self._resampling, bounds=(0.0, np.inf)),
            "predictors": tuple(known),
        }

    def _answers(self, trials: Trials, what: str) -> Float64[np.ndarray, "row answer"]:
        """Return log-probabilities of the answers at the only scored position; each different sequence runs once."""
        keys = torch.cat([trials.tokens, trials.scored_positions()], dim=1)
        different, place = keys.unique(dim=0, return_inverse=True)
        first = place.new_full((len(different),), len(place))
        first = first.scatter_reduce(0, place, torch.arange(len(place), device=place.device), "amin")
        with phase(what, len(first), "sequence") as shown:

            def blocks() -> Iterator[Trials]:
                for block in trials.rows(first).batches(at_most=self.sizes["n"]):
                    yield block
                    shown.update(len(block))

            own: Tensor = self.model.run(blocks(), n_recorded=len(first)).log_answers[:, 0]
        return np.asarray(own.double()[place.to(own.device)].cpu().numpy())


def _missing(reason: Reason, *names: str) -> dict[str, Any]:
    """Return scalars that are not known, with a code."""
    return {name: Estimate.of(np.nan, (np.nan, np.nan), reason=reason) for name in names}


def _beside(own: Estimate, exact: float | np.ndarray) -> Estimate:
    """Return an estimate with the exact observer's value."""
    level = Baseline.of("ceiling", EXACT, exact).broadcast(own.value.shape)
    return replace(own, baselines=(*own.baselines, level))


def _by_position(exact: np.ndarray) -> np.ndarray:
    """Return the mean exact prediction at each position, in which a sequence has half its weight."""
    return np.asarray((exact.sum(axis=0) - exact / 2) / (len(exact) - 0.5))


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


def _probabilities(name: str, found: Any, trials: Trials) -> np.ndarray:
    """Return what a user's predictor returned, as an array.

    Raises:
        InvalidArgument: It is no array of probabilities at the scored positions.
    """
    shape = (len(trials), trials.n_scored, len(trials.answers))
    if isinstance(found, Tensor):
        found = found.detach().double().cpu().numpy()
    try:
        own = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"predictor {name!r} must return an array, got a {type(found).__name__}.") from error
    if own.shape != shape or not (own >= 0).all() or not np.allclose(own.sum(axis=-1), 1, atol=1e-6):
        raise InvalidArgument(
            f"predictor {name!r} must return probabilities of shape {shape} (sequence, scored position, answer), "
            f"which add to 1 over the answers; got shape {own.shape}."
        )
    return own
