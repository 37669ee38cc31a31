"""What an audit found: seven parts, each with its interval and the exact observer's value."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np

from bayesgeom.core import Reason, Verdict
from bayesgeom.report import (
    ROUNDING,
    Estimate,
    Headline,
    Level,
    NonNegative,
    Panel,
    Quantity,
    Report,
    Share,
    Signed,
    headline_of,
)

EXACT = "exact"
MOST_LINES = 6  # of predictors in the panel: those with the largest weights
_FURTHER = ("log_odds_slope", "information_slope", "averaging_gain_bits")  # listed where they are measured
_SEEN = 0.02  # weight below which a predictor is not drawn


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
    `martingale_gap` is the mean total variation between Σ_y p_t(y) p_{t+1}(· | y) and p_t, over `steps`: scored
    positions, from 1; `martingale_drift` is the mean of that difference at the answer that was most probable before.
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
    martingale_gap_by_step: Annotated[Estimate, Share("step", better="lower", label="martingale gap")]
    steps: tuple[str, ...]
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

    def _line(self, metric: str, at: tuple[int, ...] = (), label: str = "") -> Headline:
        """Return an entry next to the exact observer's, or why it was not measured."""
        own, line = self.estimate(metric)[at], headline_of(self, metric, at, label, verdict="")
        if np.isnan(own.value):
            return replace(line, verdict=str(Verdict.NOT_MEASURED), why=own.reason_at().label)
        return replace(line, levels=(Level(name=EXACT, value=float(own.ceiling)), *line.levels))

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
        from bayesgeom.report import SERIES, label_axes

        x = np.arange(1, len(self.regret_bits_by_position.value) + 1)
        position, uniform = "scored position (1 is the first)", self.regret_bits.baseline("uniform")
        compared = times_text(float(self.regret_bits), float(uniform.value), "uniform")
        title = f"Regret: {brief(self.regret_bits.value)} bits a sequence, {compared}"
        own = self.regret_bits_by_position
        strongest = sorted(own.compared, key=lambda level: float(level.value[-1]))[:N_BASELINES]
        regret = Panel.blank(title)
        add_estimate(regret.figure, x, own, baselines={level.name: level.value for level in strongest})
        label_axes(regret.figure, position, "cumulative KL (bits)")
        drawn = [regret]
        for metric, names, axes, what in (
            ("response", self.ages, ("newest pieces that stay", "slope"), "Response to old evidence"),
            ("martingale_gap_by_step", self.steps, ("scored position", "total variation"), "Martingale gap"),
        ):
            own, places = self.estimate(metric), np.arange(len(names), dtype=float)
            title = f"{what}, where {brief(own.ceiling[0])} is exact"
            if np.isfinite(own.value).any():
                panel = estimate_panel(title, axes, places, own, is_folded=metric != "response")
                add_reference(panel.figure, places, own.ceiling, name=EXACT)
                panel.figure.layout.xaxis.update(tickvals=places.tolist(), ticktext=list(names))
                drawn.append(panel)
        top = int(np.nanargmax(self.weights.value))
        title = f"Nearest mixture: {float(self.weights.value[top]):.0%} “{self.predictors[top]}”"
        strategy = Panel.blank(title)
        order = np.argsort(-np.nan_to_num(self.weights_by_position.value).max(axis=1), kind="stable")[:MOST_LINES]
        for at, color in zip(sorted(order), SERIES, strict=False):
            own = self.weights_by_position[at]
            if np.nan_to_num(own.value).max() >= _SEEN:
                add_line(strategy.figure, x, own.value, name=self.predictors[at], color=color, band=own.ends)
        label_axes(strategy.figure, position, "weight")
        strategy.figure.update_yaxes(range=(-0.02, 1.02))
        return [*drawn, strategy]
