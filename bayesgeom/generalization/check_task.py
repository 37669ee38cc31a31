"""`check_task`: what can a task show? Its shortcuts, its beliefs and its evidence are measured; no model is run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from scipy.spatial import cKDTree
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials, checked
from bayesgeom.generalization.sweeps import NO_MODEL, bound_task
from bayesgeom.measurements._beliefs import IDENTIFIED
from bayesgeom.measurements.calibration import gap_closed
from bayesgeom.measurements.evidence_response import LEAST_CHANGE, exact_changes
from bayesgeom.models.base import provenance
from bayesgeom.models.resolve import TaskLike, as_task
from bayesgeom.report.estimate import R2, Estimate, NonNegative, Unit, mean_estimate, stacked
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.behavior import PRIOR, context_free_kl_bits
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.mixed_states import MERGED
from bayesgeom.stats.windows import TRANSPORT_BITS, is_window, window_predictives
from bayesgeom.tasks.base import Branch, SymbolTask, WindTunnel, at_most, derived_seed

Probs = Float64[Tensor, "batch query_pos answer"]
CURRENT, COUNTS, AFTER = "the current symbol", "the count of each answer", "the count after the current symbol"
SIMPLE = 4  # predictors, the first in every report: without evidence, and these three
WINDOWS, TABLES = (1, 2, 4, 10), (1, 2, 4)  # symbols that an exact observer, or a fitted table, reads
_FITTED, _FIT = 4, 8  # times as many sequences fit tables as score them; branch of their seed
_POINTS, _SEQUENCES = 8_192, 16  # from which the belief is read, and the least number of sequences
_AT_ONCE = 32  # sequences whose symbols are compared with one another
_WEIGHTS = [2 ** (at / 4) for at in range(-20, 41)]  # of the mean answer among counts


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class TaskReport(Report):
    """What the exact answers of a task depend on, measured without a model.

    A shortcut predicts as well as the belief if its KL from the exact answers is not shown to be above 0.02 bits: a
    trained network that uses it could not be told from one that infers. The first is the strongest predictor without
    evidence; its KL is the gap that evidence can close. The current symbol, and the last 2, 4 and 10, are read by exact
    observers where the task has them, or by a table of mean exact answers, if that is better. Counts are those of
    the answers so far in the sequence, or so far after the current symbol, with the mean answer as prior.
    The others are the task's own shortcuts.

    A belief that is read from the exact answers is given by any accurate prediction: an R² near 1 says that a read-out
    of activations shows nothing more. Maps are fitted on half of the sequences and scored on the other half.

    Evidence older than an age is identified if to draw it again changes the exact answers by at least 0.003 (root mean
    square), as for `evidence_response`.

    Fields: `exact_change` is that change at each of the `ages`, which are empty if the evidence cannot be drawn again.
    `n_beliefs` is the number of different beliefs at the scored positions of all sequences.
    """

    name: ClassVar[str] = "check_task"
    title: ClassVar[str] = "What can this task show?"
    is_behavioral: ClassVar[bool] = True
    maps: ClassVar[tuple[str, ...]] = ("linear", "nearest neighbor")
    predictors: tuple[str, ...]
    kl_bits: Annotated[Estimate, NonNegative("predictor", unit="bits", label="KL(exact ‖ predictor)")]
    belief_r2: Annotated[Estimate, R2("map", label="R² of the belief from the exact answers")]
    n_beliefs: int
    ages: tuple[str, ...]
    exact_change: Annotated[Float[np.ndarray, " age"], Unit("1")]
    n: int

    @property
    def identified_age(self) -> float:
        """Return the largest age at which the evidence response is identified; NaN if it is at none."""
        known = [int(age) for age, change in zip(self.ages, self.exact_change, strict=True) if change >= LEAST_CHANGE]
        return max(known, default=math.nan)

    def suffices(self) -> tuple[str, ...]:
        """Return the predictors that predict as well as the belief, in the order of `predictors`."""
        low = np.fmin(self.kl_bits.ends[0], self.kl_bits.value)  # the value, where there is no interval
        return tuple(name for name, bits in zip(self.predictors, low, strict=True) if bits <= TRANSPORT_BITS)

    def headlines(self) -> Sequence[Headline]:
        """Return the KL of each predictor, R² of the belief, the number of beliefs, and the oldest evidence."""
        first, *others = self.predictors
        names = [f"KL of {name}" for name in (f"{first}: no evidence", *others)]
        return [
            *(headline_of(self, "kl_bits", (at,), name) for at, name in enumerate(names)),
            *(headline_of(self, "belief_r2", (at,), f"R² of the belief, {name}") for at, name in enumerate(self.maps)),
            Headline.computed("n_beliefs", "different beliefs in all sequences", self.n_beliefs, "beliefs"),
            Headline.computed("identified_age", "evidence is identified up to age", self.identified_age, "pieces"),
        ]

    def answer(self) -> Opening:
        enough, bits, r2 = self.suffices(), self.kl_bits.value, self.belief_r2.value.max()
        at = self.predictors.index(enough[0]) if enough else int(bits.argmin())
        kinds = [Finding.TASK_HAS_NO_GAP, *[Finding.TASK_CANNOT_TELL] * (SIMPLE - 1), Finding.TASK_TELLS_IN_PART]
        finding = kinds[min(at, SIMPLE)] if enough else Finding.TASK_TELLS
        known = {"least": TRANSPORT_BITS} | ({"r2": r2} if r2 >= IDENTIFIED else {})
        return finding.of(shortcut=self.predictors[at], bits=bits[at], gap=bits[0], **known)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.forest import add_forest

        panel, kl = Panel.blank("Distance of predictors from the exact answers"), self.kl_bits
        add_forest(panel.figure, self.predictors, kl.value, kl.ends, unit="bits", levels=float(kl.value[0]))
        return [panel]


@checked("task")
def check_task(task: TaskLike, *, n: int = 512, seed: int = 0) -> TaskReport:
    """Measure what a task can show: which shortcuts predict as well as the exact belief, and what gives the belief.

    No model is run. Most tasks take seconds.

    Args:
        task: A task, also one made of functions, or its text as on the command line.
        n: Number of sequences; four times as many fit the tables of the last symbols.
        seed: Seed of the sequences, of the replaced evidence and of the intervals.

    Returns:
        KL of each shortcut, R² of the belief from the exact answers, the number of beliefs, and the age up to which
        evidence changes the exact answers.

    Raises:
        TaskMismatch: The task has no exact posterior.
        InvalidArgument: n is below 2, or the task is text and needs a model's tokenizer.

    Example:
        >>> import bayesgeom
        >>> report = bayesgeom.check_task("dice:n_faces=2", n=64)
        >>> report.suffices()
        ('the count of each answer', 'the last 10 symbols')
    """
    chosen = bound_task(as_task(task, trained=None), None)
    if n < 2:
        raise InvalidArgument(f"n, the number of sequences, must be at least 2 for an interval; got {n}.")
    trials = chosen.sample(at_most(chosen, n), seed=derived_seed(seed, Branch.TRIALS))
    fit = chosen.sample(at_most(chosen, _FITTED * n), seed=derived_seed(seed, _FIT))
    resampling = derived_seed(seed, Branch.RESAMPLING)
    found = _distances(chosen, trials, fit)
    changes = exact_changes(chosen, trials, seed=seed)
    report = TaskReport(
        predictors=tuple(found),
        kl_bits=mean_estimate(np.stack([*found.values()], axis=1), seed=resampling, bounds=(0.0, np.inf)),
        belief_r2=_belief_r2(trials, seed=resampling),
        n_beliefs=len(np.unique(np.round(trials.at_scored(trials.belief).flatten(0, 1).numpy() / MERGED), axis=0)),
        ages=tuple(map(str, changes)),
        exact_change=np.array([*changes.values()], dtype=np.float64),
        n=len(trials),
    )
    return with_provenance(report, provenance(NO_MODEL, chosen, {"n": n, "seed": seed}))


def _distances(task: WindTunnel, trials: Trials, fit: Trials) -> dict[str, Float64[np.ndarray, " sequence"]]:
    """Return the KL of each sequence from the predictors, by name, as `TaskReport` orders them."""
    exact = trials.at_scored(trials.predictive)

    def bits(predicted: Probs) -> Float64[np.ndarray, " sequence"]:
        return np.asarray(kl_bits(exact, predicted.log()).mean(dim=1).clamp_min(0.0).numpy())  # rounding

    others = {name: bits(values) for name, values in task.baseline_predictives(trials).items()}
    free = context_free_kl_bits(exact.numpy()) | {name: others[name] for name in (PRIOR,) if name in others}
    first = min(free, key=lambda name: float(free[name].mean()))
    windows = {width: [bits(values)] for width, values in _windowed(task, trials).items()}
    answers = fit.at_scored(fit.predictive).flatten(0, 1)
    mean = (answers.sum(dim=0) + 1 / answers.shape[1]) / (len(answers) + 1)
    read = mean.expand_as(exact)
    for width in TABLES:
        read = _table(fit, trials, width, read)
        windows.setdefault(width, []).append(bits(read))
    last = {width: min(each, key=np.mean) for width, each in sorted(windows.items())}
    counted = {name: bits(_shrunk(fit, trials, mean, following=name == AFTER)) for name in (COUNTS, AFTER)}
    return {
        first: free[first],
        CURRENT: last.pop(1),
        **counted,
        **{f"the last {width} symbols": kl for width, kl in last.items()},
        **{name.replace("_", " "): kl for name, kl in others.items() if not (is_window(name) or name in free)},
    }


def _windowed(task: WindTunnel, trials: Trials) -> Mapping[int, Probs]:
    """Return the answers of exact observers of the last symbols, by their number; none where the task has none."""
    widths = [width for width in WINDOWS if width < trials.n_scored]
    if trials.observers is not None:
        known = islice(window_predictives(trials, "stationary"), max(WINDOWS) + 1)
        return {width: each for width, each in enumerate(known) if width in widths}
    return {width: task.windowed(trials.tokens, width) for width in widths} if isinstance(task, SymbolTask) else {}


def _table(fit: Trials, trials: Trials, width: int, shorter: Probs) -> Probs:
    """Return mean exact answers after the last symbols, and one more row: what a shorter table says there."""
    factors = torch.randint(2**62, (width,), generator=torch.Generator().manual_seed(0)) | 1

    def codes(of: Trials) -> Int64[Tensor, " point"]:
        """Return a hash of the last symbols at each scored position."""
        padded = torch.nn.functional.pad(of.tokens + 1, (width - 1, 0))
        return of.at_scored((padded.unfold(1, width, 1) * factors).sum(dim=2)).flatten().contiguous()

    (cells, cell), wanted = codes(fit).unique(return_inverse=True), codes(trials)
    rows = torch.nn.functional.pad(fit.at_scored(fit.predictive).flatten(0, 1), (1, 0), value=1.0)  # count, answers
    sums = rows.new_zeros(len(cells), rows.shape[1]).index_add_(0, cell, rows)
    at = torch.searchsorted(cells, wanted).clamp_max(len(cells) - 1)
    known = torch.where((cells[at] == wanted)[:, None], sums[at], 0.0)
    return ((known[:, 1:] + shorter.flatten(0, 1)) / (known[:, :1] + 1)).view_as(shorter)


def _shrunk(fit: Trials, trials: Trials, mean: Float64[Tensor, " answer"], *, following: bool) -> Probs:
    """Return shares of the answers so far, with the mean answer as prior; its weight is the best one on `fit`."""

    def counts(of: Trials) -> Probs:
        parts = list[Tensor]()
        for tokens in of.tokens.split(_AT_ONCE):
            shown = (tokens[:, :, None] == of.answers).double()
            earlier = (tokens[:, :, None] == tokens[:, None]).double().tril(-1)  # occurrences of the current symbol
            parts.append(earlier[:, :, :-1] @ shown[:, 1:] if following else shown.cumsum(dim=1))
        return of.at_scored(torch.cat(parts))

    seen, exact = counts(fit), fit.at_scored(fit.predictive)

    def predicted(of: Probs, weight: float) -> Probs:
        return (of + weight * mean) / (of.sum(dim=2, keepdim=True) + weight)

    bits = [float(kl_bits(exact, predicted(seen, weight).log()).mean()) for weight in _WEIGHTS]
    return predicted(counts(trials), _WEIGHTS[int(np.argmin(bits))])


def _belief_r2(trials: Trials, *, seed: int) -> Estimate:
    """Return R² of the belief from the exact answers on held-out sequences, by each of the maps."""
    exact, belief = (trials.at_scored(values).numpy() for values in (trials.predictive, trials.belief))
    n_used = min(len(exact), max(_SEQUENCES, _POINTS // exact.shape[1]))
    half = -(-n_used // 2)
    inputs = np.pad(exact[:n_used], ((0, 0), (0, 0), (0, 1)), constant_values=1.0)  # with an intercept
    known, at = (inputs[part].reshape(-1, inputs.shape[2]) for part in (slice(0, half), slice(half, None)))
    fitted, truth = belief[:half].reshape(len(known), -1), belief[half:n_used]
    linear, nearest = at @ np.linalg.lstsq(known, fitted, rcond=None)[0], fitted[cKDTree(known).query(at)[1]]
    spread = np.square(truth - fitted.mean(axis=0)).sum(axis=(1, 2))
    errors = (np.square(truth - read.reshape(truth.shape)).sum(axis=(1, 2)) for read in (linear, nearest))
    return stacked([gap_closed(error, spread, seed=seed) for error in errors])
