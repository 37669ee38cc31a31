"""Calibration: do the model's predictions agree with the exact Bayesian predictive?

On tasks with latent dynamics, the report also states the model's *equivalent window*: the number of last symbols that
an observer must see to predict as well (`bayesgeom.stats.windows`).

Entropy error is |H_model − H_exact|, averaged over sequences and positions. A second number averages the entropies over
sequences first, which hides errors of opposite sign. KL is KL(exact ‖ model).

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (entropy error); the authors' code averages sequences first.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated, Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64

from bayesgeom.core import Behavior, Reason, Run, Verdict, WindowScores
from bayesgeom.core.observers import STARTS
from bayesgeom.measurements.base import (
    Control,
    Needs,
    Probe,
    planted_chain,
    planted_run,
    planted_trials,
    with_untrained,
)
from bayesgeom.report.answer import LEAST_GAP_BITS, ROUNDING
from bayesgeom.report.estimate import (
    AtMostOne,
    Baseline,
    Estimate,
    NonNegative,
    Quantity,
    Share,
    Unit,
    mean_estimate,
    stacked,
    with_interval,
)
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.behavior import POSITION, PRIOR, UNIFORM, position_kl_bits, tempering
from bayesgeom.stats.bootstrap import mean_interval, ratio_interval
from bayesgeom.stats.windows import (
    TRANSPORT_BITS,
    TRANSPORT_WINDOW,
    EquivalentWindow,
    equivalent_window,
    is_window,
    wider_window,
    window_name,
    window_predictives,
)

N_EXAMPLES = 4
CONSTANT = "constant"
SOURCES = ("exact", "model")
_TIE = 1e-3  # share of its KL by which a sequence must be better than without evidence
_RULE_OF_THREE = 3.0  # with none among n, at most 3 / n of all are so, with 95 % confidence
N_BINS, CURVES = 10, ("stated", "exact", "exact, low", "exact, high")  # of the reliability curve
_SHARES = ("accuracy", "total_variation", "off_answer_prob")  # between 0 and 1
SCORES = ("kl_bits", "entropy_mae_bits", "total_variation", "off_answer_prob", "cross_entropy_bits", "accuracy")


_POSITION = "scored position (1 is the first)"
_ALIKE = 0.01  # of the range of entropies: the width of a line


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class CalibrationReport(Report):
    """At every scored position the task gives the exact probability of each answer.

    The curves show the entropy of the exact posterior and of the model; the error panel shows the gap. Gray lines are
    the three strongest baselines among the uniform predictor, the best single constant entropy, and the task's own
    shortcuts. A model that only learned a shortcut lies on its line. KL and entropy renormalize over the answers: the
    off-answer probability is what they leave out. On tasks with latent dynamics, window observers are among the
    baselines: exact filters of the last few symbols, which carry no belief; those of more than ten symbols are no
    baselines. The equivalent window is the number of symbols that such an observer needs to be as good as the model: an
    accuracy, not a memory. Whether old symbols are used, the evidence response shows.

    Fields: distance between the model's predictions and the exact posterior predictive; all in bits, 0 is perfect.

    `entropy_mae_of_means_bits` ≤ `entropy_mae_bits` always. `log_loss_gap_bits` is the model's cross-entropy on the
    labels minus the exact predictive's. `sources` are the exact predictive and the model: `accuracy` is how often their
    most probable answer is the label; `entropy_bits_by_position` and `example_entropy_bits` (single sequences) hold
    their entropy.

    On tasks with latent dynamics, `window_kl_bits` is the KL of the exact filter that sees only the last w symbols,
    w = 0, 1, …; `window_gain_bits` is the KL with the better start minus the model's. `equivalent_window_symbols` is
    the smallest w whose observer the model does not beat; its interval ends at the smallest w that is at least as good
    with the same confidence. The largest w that it beats is one less, if it beats all narrower ones; with a gap, the
    first w not beaten counts (see `bayesgeom.stats.windows.equivalent_window`). It is an accuracy in units of w: above
    w it shows use of more than w symbols, below w nothing. On other tasks these are NaN or empty.

    `gap_closed` is 1 − KL / KL of a context-free reference, which sees no evidence of the sequence: its interval is
    over sequences, with both KL of a sequence together. `references` names them, the strongest first: `uniform`,
    and where they are stronger by interval, `position alone`, the mean exact predictive at each position, and the
    `prior` of the task, which reads what is given. `shortcuts` are the task's predictors that read evidence in
    part, the strongest first, with the share that each closes. `failure_rate` is the share of sequences whose KL is
    that of the strongest reference or more; with none among n, its interval ends at 3 / n. `whole_kl_bits` is the
    KL over the whole vocabulary, which counts what is off the answers.

    `matching_window` is the smallest number of last symbols whose exact observer reaches the verdict of the model, if
    at most half of the scored positions. `older_slope` and `older_verdict` are those of the evidence response to older
    symbols. `diagnose` measures them; elsewhere they are missing. `confidence` is 1/τ,
    where τ is the power of the predictions that is closest to the exact predictive (above 1: overconfident), and
    `tempering_gain_bits` the KL that this power removes. Position alone and confidence are those of the sequences whose
    predictive is stored, at most 192. `gap_closed_by_copies` is the share of the gap from the first reference that each
    untrained network closes on the first sequences, at most 192; `diagnose` measures it.

    `reliability` has, for each tenth of the model's answer probabilities that occurs, the mean probability that the
    model states, and the mean exact one with both ends of its interval over sequences: equal if the model states what
    is the case. It is of the same sequences as confidence.

    `sequence_scores` are the model's means over the scored positions of each sequence, in the order of `SCORES`, by
    which `bayesgeom.compare` pairs diagnoses. Readings of earlier versions have no rows.
    """

    name: ClassVar[str] = "calibration"
    is_behavioral: ClassVar[bool] = True
    scores: ClassVar[tuple[str, ...]] = SCORES
    title: ClassVar[str] = "Calibration: are the probabilities exact?"

    entropy_mae_bits: Annotated[Estimate, NonNegative(unit="bits", better="lower", label="entropy error")]
    kl_bits: Annotated[Estimate, NonNegative(unit="bits", better="lower", label="KL(exact ‖ model)")]
    total_variation: Annotated[Estimate, Share(better="lower", label="total variation from the exact predictive")]
    off_answer_prob: Annotated[Estimate, Share(better="lower", label="off-answer probability")]
    accuracy: Annotated[Estimate, Share("source", better="higher", label="accuracy")]
    log_loss_gap_bits: Annotated[
        Estimate, Quantity(unit="bits", better="lower", label="cross-entropy minus that of the exact predictive")
    ]
    gap_closed: Annotated[Estimate, AtMostOne("reference", better="higher", label="share of the gap closed")]
    references: tuple[str, ...]
    reference_kl_bits: Annotated[Float[np.ndarray, " reference"], Unit("bits")]
    gap_closed_by_copies: Annotated[Float[np.ndarray, " untrained"], Unit("1")]
    shortcuts: tuple[str, ...]
    shortcut_gap_closed: Annotated[Estimate, AtMostOne("shortcut", label="share of the gap that a shortcut closes")]
    failure_rate: Annotated[Estimate, Share(better="lower", label="sequences no better than context-free")]
    whole_kl_bits: Annotated[Estimate, NonNegative(unit="bits", better="lower", label="KL over the whole vocabulary")]
    matching_window: Annotated[Estimate, Quantity(unit="symbols", label="last symbols that do as well")]
    older_slope: Annotated[Estimate, Quantity(label="slope of the answers in older symbols")]
    older_verdict: str
    confidence: Annotated[Estimate, NonNegative(label="confidence (1/τ)")]
    tempering_gain_bits: Annotated[Estimate, Quantity(unit="bits", label="KL that one temperature removes")]
    entropy_mae_bits_by_position: Annotated[
        Estimate, NonNegative("position", unit="bits", better="lower", label="entropy error")
    ]
    kl_bits_by_position: Annotated[
        Estimate, NonNegative("position", unit="bits", better="lower", label="KL(exact ‖ model)")
    ]
    total_variation_by_position: Annotated[Float[np.ndarray, " position"], Unit("1")]
    off_answer_prob_by_position: Annotated[Float[np.ndarray, " position"], Unit("1")]
    entropy_bits_by_position: Annotated[Float[np.ndarray, "source position"], Unit("bits")]
    example_entropy_bits: Annotated[Float[np.ndarray, "source example position"], Unit("bits")]
    sources: tuple[str, ...]
    window_kl_bits: Annotated[
        Estimate, NonNegative("window_start window", unit="bits", better="lower", label="KL of the window observer")
    ]
    window_gain_bits: Annotated[
        Estimate, Quantity("window", unit="bits", better="higher", label="KL of the window observer minus the model's")
    ]
    window_starts: tuple[str, ...]
    windows: tuple[str, ...]
    equivalent_window_symbols: Annotated[Estimate, Quantity(unit="symbols", label="equivalent window")]
    curves: tuple[str, ...]
    reliability: Annotated[Float[np.ndarray, "curve bin"], Unit("1")]
    bins: tuple[str, ...]
    sequence_scores: Annotated[Float[np.ndarray, "sequence score"], Unit("bits or 1, as the name of each score states")]
    n: int

    @property
    def entropy_mae_of_means_bits(self) -> float:
        """Return the entropy error with entropies averaged over sequences first."""
        exact, model = self.entropy_bits_by_position
        return float(np.abs(model - exact).mean())

    @property
    def transport_gap_bits(self) -> float:
        """Return the KL of the stationary observer of the last ten symbols; 0 for shorter sequences, or NaN."""
        if not self.windows:
            return math.nan
        by_window = self.window_kl_bits.value[self.window_starts.index("stationary")]
        return float(by_window[TRANSPORT_WINDOW:][:1].sum())

    def headlines(self) -> Sequence[Headline]:
        lines = [self._error("kl_bits"), self._error("entropy_mae_bits"), headline_of(self, "off_answer_prob")]
        if self.windows:
            gap = f"KL of the last {TRANSPORT_WINDOW} symbols alone"
            lines.append(headline_of(self, "equivalent_window_symbols"))
            lines.append(Headline.computed("transport_gap_bits", gap, self.transport_gap_bits, "bits"))
        return lines

    def _error(self, name: str) -> Headline:
        """Return an error next to the better window observer of each width.

        One that is the same in all sequences has the verdict that the answer reads of it.
        """
        estimate, weaker = self.estimate(name), self._weaker()
        listed = tuple(level for level in estimate.baselines if level.name not in weaker)
        line = headline_of(self, name, own=replace(estimate, baselines=listed))
        is_below = line.reason == Reason.CONSTANT and line.value < line.baseline
        return replace(line, verdict=str(Verdict.YES)) if is_below else line

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import LEAST_BITS, add_estimate, brief, estimate_panel, times_text
        from bayesgeom.report.theme import label_axes

        errors, weaker = self.entropy_mae_bits_by_position, self._weaker()
        x, measured = np.arange(1, len(errors.value) + 1), float(self.entropy_mae_bits.value)
        levels = {each.name: each.value for each in errors.baselines if each.name not in weaker}
        means = np.asarray(self.entropy_bits_by_position)
        apart = np.abs(self.example_entropy_bits - means[:, None]).max(initial=0.0)
        is_alike = bool(apart <= _ALIKE * max(float(np.ptp(means)), LEAST_BITS))
        note = "All sequences have these curves." * is_alike
        entropies = Panel.blank(f"Uncertainty of the answers: {brief(measured)} bits from exact", note=note)
        title = "Entropy error, log scale"
        if levels:
            best = min(levels, key=lambda name: float(np.nan_to_num(levels[name], nan=np.inf).mean()))
            title += f": {times_text(measured, float(levels[best].mean()), f'the baseline “{best}”')}"
        error = Panel.blank(title)
        add_estimate(error.figure, x, errors, baselines=levels, is_log=True)
        label_axes(error.figure, _POSITION, "|H model − H exact| (bits)")
        axes = (_POSITION, "bits")
        kl = estimate_panel("KL(exact ‖ model) by position", axes, x, self.kl_bits_by_position, is_folded=True)
        pairs = [] if is_alike else zip(("One", "Another"), self.example_entropy_bits.swapaxes(0, 1), strict=False)
        singles = [_entropies(Panel.blank(f"{which} sequence", is_folded=True), curves) for which, curves in pairs]
        drawn = [_entropies(entropies, means), error, kl, *singles]
        return [*drawn, *([self._reliability_panel()] if self.bins else [])]

    def _reliability_panel(self) -> Panel:
        from bayesgeom.charts.lines import add_line, add_reference
        from bayesgeom.report.theme import label_axes

        stated, exact, low, high = self.reliability
        panel = Panel.blank(f"Reliability: where the model says {stated[-1]:.0%}, exact is {exact[-1]:.0%}")
        add_reference(panel.figure, np.array([0.0, 1.0]), np.array([0.0, 1.0]), name="exact")
        add_line(panel.figure, stated, exact, name="model", band=(low, high))
        label_axes(panel.figure, "model's probability of an answer", "mean exact probability")
        return panel

    def _weaker(self) -> set[str]:
        """Return the window observers whose other start is a baseline and no worse; these are not plotted or listed."""
        known = {level.name for level in self.kl_bits.baselines}
        weaker = self.window_kl_bits.value.argmax(axis=0) if self.windows else ()
        pairs = [[_shown(window_name(width, start)) for start in self.window_starts] for width in range(len(weaker))]
        return {pair[at] for pair, at in zip(pairs[1:], weaker[1:], strict=True) if known.issuperset(pair)}


def _entropies(panel: Panel, curves: Float[np.ndarray, "source position"]) -> Panel:
    """Draw the exact entropy, wide and pale, and the model's on it."""
    from bayesgeom.charts.lines import LEAST_BITS, add_line, add_reference
    from bayesgeom.report.theme import at_least, label_axes

    x = np.arange(1, curves.shape[1] + 1)
    add_reference(panel.figure, x, curves[0], name="exact")
    add_line(panel.figure, x, curves[1], name="model")
    at_least(panel.figure, LEAST_BITS)
    label_axes(panel.figure, _POSITION, "entropy (bits)")
    return panel


@final
@dataclass(frozen=True)
class Calibration(Probe[CalibrationReport]):
    """Compare predictions with the exact predictive on all sequences; activations are not read."""

    name: ClassVar[str] = "calibration"
    needs: ClassVar[Needs] = Needs(posterior=True)

    def measure(self, run: Run, untrained: Sequence[CalibrationReport] = ()) -> CalibrationReport:
        # Sums of the run's float32 would be rounded.
        seen = {name: np.asarray(values, dtype=np.float64) for name, values in vars(run.behavior).items()}
        errors = run.behavior.entropy_error_bits
        exact, model = seen["exact_entropy_bits"], seen["model_entropy_bits"]
        predicted = {name: seen.entropy_error_bits for name, seen in run.baseline_behaviors.items()}
        # The median is the constant with the smallest mean absolute error.
        predicted[CONSTANT] = np.abs(np.median(exact) - exact)
        kl = {name: b.kl_bits.mean(dtype=np.float64) for name, b in run.baseline_behaviors.items()}
        error_of = {name: values.mean() for name, values in predicted.items()}
        profiles = {name: values.mean(axis=0) for name, values in predicted.items()}
        window = None if run.windows is None else equivalent_window(run.windows, run.behavior.kl_bits, seed=run.seed)
        for name, wider_kl, profile in wider_baselines(run.windows, math.nan if window is None else window.symbols):
            kl[name], error_of[name], profiles[name] = wider_kl, profile.mean(), profile
        scores = sequence_scores(run.behavior)
        estimate, positive = partial(mean_estimate, seed=run.seed), (0.0, np.inf)
        scalars: dict[str, Any] = {
            name: estimate(scores[:, at], bounds=(0.0, 1.0 if name in _SHARES else np.inf))
            for at, name in enumerate(SCORES)
            if name != "cross_entropy_bits"  # infinite if a label has probability 0
        }
        exactly = estimate(run.exact_behavior.correct.mean(axis=1, dtype=np.float64), bounds=(0.0, 1.0))
        answer = _answer_fields(run)
        if POSITION in answer["references"]:  # it is the level that the answer is compared with
            kl[POSITION] = answer["reference_kl_bits"][answer["references"].index(POSITION)]
        for name, levels in (("entropy_mae_bits", error_of), ("kl_bits", kl)):
            scalars[name] = replace(scalars[name], baselines=_baselines(levels))
        scalars["accuracy"] = stacked([exactly, scalars["accuracy"]])
        report = CalibrationReport(
            **scalars,
            log_loss_gap_bits=Estimate.of(np.mean(run.exact_behavior.answer_log2 - seen["answer_log2"]), n=run.n),
            entropy_mae_bits_by_position=estimate(errors, bounds=positive, baselines=_baselines(profiles)),
            kl_bits_by_position=estimate(seen["kl_bits"], bounds=positive),
            total_variation_by_position=seen["total_variation"].mean(axis=0),
            off_answer_prob_by_position=seen["off_answer_prob"].mean(axis=0),
            entropy_bits_by_position=np.stack([exact.mean(axis=0), model.mean(axis=0)]),
            example_entropy_bits=np.stack([exact[:N_EXAMPLES], model[:N_EXAMPLES]]),
            sources=SOURCES,
            **answer,
            gap_closed_by_copies=np.zeros(0),
            sequence_scores=scores,
            n=run.n,
            **_window_fields(run, window),
        )
        return with_untrained(report, untrained, "entropy_mae_bits", "kl_bits")

    def controls(self) -> Iterator[Control[CalibrationReport]]:
        rng = np.random.default_rng(0)
        exact = rng.dirichlet(np.ones(5), size=(11, 3))
        trials = planted_trials(exact, rng.integers(7, size=(11, 3)))
        flat = torch.full((11, 3, 5), 0.2, dtype=torch.float64)
        yield Control(
            label="exact predictions", run=planted_run(trials, {}), holds=lambda r: abs(float(r.kl_bits)) < 1e-12
        )
        yield Control(
            label="uniform predictions",
            run=planted_run(trials, {}, model=flat),
            holds=lambda r: np.allclose(r.kl_bits.value, np.log2(5) - r.entropy_bits_by_position[0].mean()),
        )
        # A regression of log-odds says underconfident, 0.4: a third of the exact probabilities are 0.
        some = exact * (rng.random(exact.shape) < 0.6) + 1e-3 * np.eye(5)[rng.integers(5, size=(11, 3))]
        some /= some.sum(axis=2, keepdims=True)
        sharp = 0.999 * some**2 / np.square(some).sum(axis=2, keepdims=True) + 0.001 / 5
        yield Control(
            label="temperature 0.5 is overconfident, also where exact probabilities are 0",
            run=planted_run(planted_trials(some, trials.tokens.numpy()), {}, model=torch.from_numpy(sharp)),
            holds=lambda r: 1.5 < float(r.confidence) < 2,
        )
        slow = planted_chain(stay=0.985, seed=0)
        yield Control(
            label="the exact filter of a slow chain beats every window observer",
            run=planted_run(slow, {}),
            holds=lambda r: float(r.equivalent_window_symbols) == 43 and r.transport_gap_bits > TRANSPORT_BITS,
        )
        # Its entropy and KL are good, but it uses three symbols.
        window = next(islice(window_predictives(slow, "stationary"), 3, None))
        yield Control(
            label="an observer of the last three symbols has an equivalent window of three",
            run=planted_run(slow, {}, model=window),
            holds=lambda r: (
                float(r.equivalent_window_symbols) == 3 and np.array_equal(r.equivalent_window_symbols.ends, (3, 3))
            ),
        )
        fast = planted_chain(stay=0.6, seed=0)
        yield Control(
            label="on a chain that forgets in one step, ten symbols are enough",
            run=planted_run(fast, {}),
            holds=lambda r: float(r.equivalent_window_symbols) == 43 and r.transport_gap_bits < TRANSPORT_BITS,
        )


def sequence_scores(seen: Behavior) -> Float64[np.ndarray, "sequence score"]:
    """Return the means over the scored positions of each sequence, in the order of `SCORES`."""
    others = (seen.total_variation, seen.off_answer_prob, -seen.answer_log2, seen.correct)
    columns = (seen.kl_bits, seen.entropy_error_bits, *others)
    return np.stack([np.asarray(column, dtype=np.float64).mean(axis=1) for column in columns], axis=1)


def wider_baselines(
    windows: WindowScores | None, symbols: float
) -> Iterator[tuple[str, np.float64, Float64[np.ndarray, " position"]]]:
    """Yield name, KL and entropy error by position of the window observer that joins a task's own baselines, if any.

    Args:
        windows: The scores of all window observers; None if the task has none.
        symbols: The equivalent window of the model, or NaN.
    """
    means = None if windows is None else windows.kl_bits.mean(axis=2)
    if windows is not None and means is not None and (at := wider_window(means, symbols)) is not None:
        yield window_name(at[1], STARTS[at[0]]), np.float64(means[at]), windows.entropy_error_bits[at]


def _answer_fields(run: Run) -> dict[str, Any]:
    """Return the fields on the closed share of the gap to context-free predictors, and on confidence."""
    kl, references = sequence_kl_bits(run.behavior), references_of(run)
    exact = run.trials.at_scored(run.trials.predictive).double().cpu().numpy()
    closed = [gap_closed(kl, reference, seed=run.seed) for reference in references.values()]
    fitted = tempering(exact, run.log_answers.double().cpu().numpy(), seed=run.seed)
    return {
        "gap_closed": stacked(closed),
        "references": tuple(references),
        "reference_kl_bits": np.array([reference.mean() for reference in references.values()]),
        **_rival_fields(run, kl, next(iter(references.values()))),
        "confidence": with_interval(fitted.confidence, fitted.interval, n=len(exact)),
        "tempering_gain_bits": Estimate.of(fitted.gain_bits, n=len(exact)),
        **_reliability_fields(exact, run.log_answers.double().exp().cpu().numpy(), seed=run.seed),
    }


def compared(
    report: CalibrationReport, run: Run, untrained: Sequence[Float64[np.ndarray, " sequence"]]
) -> CalibrationReport:
    """Return the report with the share of the gap that each untrained network closes.

    Args:
        report: The calibration of the run.
        run: The run.
        untrained: The KL of its first sequences, by untrained network.
    """
    reference = next(iter(references_of(run).values()))
    pairs = ((kl[: len(reference)], reference[: len(kl)]) for kl in untrained)
    return replace(report, gap_closed_by_copies=np.array([1 - kl.sum() / level.sum() for kl, level in pairs]))


def sequence_kl_bits(seen: Behavior) -> Float64[np.ndarray, " sequence"]:
    """Return the mean KL of each sequence."""
    return np.asarray(seen.kl_bits.mean(axis=1, dtype=np.float64))


def references_of(run: Run) -> dict[str, Float64[np.ndarray, " sequence"]]:
    """Return the KL of each sequence from context-free predictors, by name: the strongest first, uniform last.

    Position alone is known of the sequences whose predictive is stored; its KL may be of fewer sequences.
    """
    exact = run.trials.at_scored(run.trials.predictive).double().cpu().numpy()
    flat = math.log2(len(run.trials.answers)) - run.behavior.exact_entropy_bits.mean(axis=1, dtype=np.float64)
    references, others = {UNIFORM: np.maximum(flat, 0.0)}, dict[str, tuple[Float64[np.ndarray, " sequence"], float]]()
    if len(exact) > 2 * exact.shape[2]:  # with fewer sequences the mean is too near to those that it predicts
        others[POSITION] = position_kl_bits(exact), 0.0
    if PRIOR in run.baseline_behaviors:
        others[PRIOR] = sequence_kl_bits(run.baseline_behaviors[PRIOR]), LEAST_GAP_BITS
    for name, (kl, margin) in others.items():
        strongest = next(iter(references.values()))
        n = min(len(kl), len(strongest))
        if float(mean_interval(strongest[:n] - kl[:n], seed=run.seed).lo) > margin:
            references = {name: kl, **references}
    return references


def _rival_fields(
    run: Run, kl: Float64[np.ndarray, " sequence"], reference: Float64[np.ndarray, " stored"]
) -> dict[str, Any]:
    """Return the fields on shortcuts, on sequences that fail, and on what is off the answers."""
    found = {name: sequence_kl_bits(seen) for name, seen in run.baseline_behaviors.items()}
    names = [name for name in found if name not in (UNIFORM, PRIOR) and not is_window(name)]
    names.sort(key=lambda name: float(found[name].mean()))
    closed = [gap_closed(found[name], reference, seed=run.seed) for name in names]
    known = kl[: len(reference)]
    fails = (known >= (1 - _TIE) * reference) & (known > LEAST_GAP_BITS)
    rate = mean_estimate(fails.astype(float), seed=run.seed, bounds=(0.0, 1.0))
    if not fails.any():
        rate = Estimate.of(0.0, (0.0, min(1.0, _RULE_OF_THREE / len(fails))), n=len(fails), reason=Reason.CONSERVATIVE)
    with np.errstate(divide="ignore"):
        off = -np.log2(1 - run.behavior.off_answer_prob.mean(axis=1, dtype=np.float64))
    unknown = Estimate.of(np.nan)
    return {
        "shortcuts": tuple(map(_shown, names)),
        "shortcut_gap_closed": stacked(closed) if closed else Estimate.of(np.zeros(0)),
        "failure_rate": rate,
        "whole_kl_bits": mean_estimate(kl + off, seed=run.seed, bounds=(0.0, np.inf)),
        "matching_window": unknown,
        "older_slope": unknown,
        "older_verdict": str(Verdict.NOT_MEASURED),
    }


def _reliability_fields(
    exact: Float64[np.ndarray, "sequence position answer"],
    stated: Float64[np.ndarray, "sequence position answer"],
    *,
    seed: int,
) -> dict[str, Any]:
    """Return the reliability curve: mean stated and exact probabilities by tenths of the stated ones.

    References:
        DeGroot & Fienberg 1983 (reliability diagram, there of labels; exact probabilities have less noise).
    """
    tenth = np.minimum((stated * N_BINS).astype(int), N_BINS - 1)
    is_in = [(tenth == index).reshape(len(exact), -1) for index in range(N_BINS)]
    known = [index for index in range(N_BINS) if is_in[index].any()]
    counts, sums, said = (
        np.stack([(is_in[index] * values.reshape(len(exact), -1)).sum(axis=1) for index in known], axis=1)
        for values in (np.ones_like(exact), exact, stated)
    )
    ends = ratio_interval(sums, counts, seed=seed, is_positive=True)
    means = (total.sum(axis=0) / counts.sum(axis=0) for total in (said, sums))
    return {
        "curves": CURVES,
        "reliability": np.stack([*means, ends.lo, np.minimum(ends.hi, 1.0)]),
        "bins": tuple(f"{index / N_BINS:g} … {(index + 1) / N_BINS:g}" for index in known),
    }


def gap_closed(
    kl: Float64[np.ndarray, " sequence"], reference: Float64[np.ndarray, " stored"], *, seed: int
) -> Estimate:
    """Return 1 − Σ KL / Σ KL of a reference, with its interval over sequences, in which both stay together.

    The first ones are used, whose KL of the reference is stored. Where no sequence is worse than exact, the interval
    allows for a sequence that fails: among n, at most 3 / n do with 95 % confidence.
    """
    kl = kl[: len(reference)]
    if not reference.sum() > 0:  # the exact predictive itself is context-free
        return Estimate.of(np.nan)
    if kl.sum() <= ROUNDING * reference.sum():
        least = max(0.0, 1 - _RULE_OF_THREE / len(kl))
        return Estimate.of(1 - kl.sum() / reference.sum(), (least, 1.0), n=len(kl), reason=Reason.CONSERVATIVE)
    interval = ratio_interval(kl, reference, seed=seed, is_positive=True)
    ends = replace(interval, lo=np.asarray(1 - interval.hi), hi=np.asarray(1 - interval.lo))
    return with_interval(1 - kl.sum() / reference.sum(), ends, n=len(kl))


def _window_fields(run: Run, window: EquivalentWindow | None) -> dict[str, Any]:
    """Return the fields on equivalent window; NaN or empty without latent dynamics."""
    if window is None or run.windows is None:
        none = np.zeros(0)
        return {
            "window_kl_bits": Estimate.of(none.reshape(0, 0)),
            "window_gain_bits": Estimate.of(none),
            "window_starts": (),
            "windows": (),
            "equivalent_window_symbols": Estimate.of(np.nan),
        }
    equal, n = Baseline.of("baseline", "equal to the window observer", 0.0), run.n
    ends = mean_interval(np.moveaxis(run.windows.kl_bits, 2, 0), seed=run.seed)
    is_exact = ~run.windows.kl_bits.any(axis=2)  # the observer is the exact filter, up to rounding
    ends = replace(ends, lo=np.where(is_exact, 0.0, ends.lo), hi=np.where(is_exact, 0.0, ends.hi))
    return {
        "window_kl_bits": with_interval(window.kl_bits, ends, n=n),
        "window_gain_bits": Estimate.of(
            window.gain_bits, window.gain_ends, n=n, baselines=[equal], reason=window.gain_code
        ),
        "window_starts": STARTS,
        "windows": tuple(map(str, range(window.length + 1))),
        "equivalent_window_symbols": Estimate.of(window.symbols, (window.symbols, window.most_symbols), n=n),
    }


def _baselines(levels: Mapping[str, Float64[np.ndarray, "*axes"] | np.float64]) -> tuple[Baseline, ...]:
    """Return the levels of the baseline predictors; the uniform one is first."""
    order = sorted(levels, key=lambda name: (name != "uniform", name))
    return tuple(Baseline.of("baseline", _shown(name), levels[name]) for name in order)


def _shown(name: str) -> str:
    """Return the name of a predictor as tables print it."""
    return name.replace("_", " ")
