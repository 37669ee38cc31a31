"""The length report: errors by position, the discontinuity at the training length, and the layer where it appears."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core.text import number_text
from bayesgeom.core.verdict import Verdict
from bayesgeom.generalization.curves import LARGEST_WITHIN, N_TREND
from bayesgeom.generalization.model_errors import EARLIER
from bayesgeom.report.columns import fitted
from bayesgeom.report.estimate import Estimate, NonNegative, Quantity, Unit
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of

ERRORS = ("KL", "entropy error")
KL, ENTROPY = range(2)  # entries of `errors`


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class LengthReport(Report):
    """Errors against the exact posterior at every position, up to many times the training length (dotted).

    The dashed gray line is the strongest baseline. A learned recursion continues beyond the training length; a table of
    learned positions fails at its end. The discontinuity is the error at the first position beyond the training length,
    minus the value that a line through the last positions within predicts. The mean over whole sequences hides it,
    because positions within are still near zero. Every layer's residual is read through the output; the error appears
    where the excess first exceeds 0.

    Discontinuity: the 95 % interval of the step in KL lies above zero and above the largest such step at the last 5
    positions within the training length. No discontinuity: it lies below that change. Undecided: everything else.

    Fields: errors of every model on the same sequences; entry i of a curve belongs to `at[i]`.

    `at` holds scored positions counted from 1 or, if length means distance, numbers of filler tokens (see `unit`).
    `position_kinds` states how each model encodes positions, and `unreached_rows` which positions of a learned table
    were never trained, first and last; −1 if all were.
    `errors` are the KL and the entropy error: at every position (`error_bits`), as means over whole sequences of each
    length (`whole_error_bits`), and their discontinuity at the training length (`discontinuity_bits`).
    `critical_length` is infinite if no position exceeds `threshold_bits`. Layers that cannot be read are NaN. If
    the task's hidden state moves, `equivalent_window_symbols` (see `bayesgeom.stats.windows`) is measured over the
    longest sequences; on other tasks it is NaN.
    """

    name: ClassVar[str] = "length"
    title: ClassVar[str] = "Length: beyond the training length"

    unit: str
    trained: int
    threshold_bits: float
    models: tuple[str, ...]
    position_kinds: Annotated[tuple[str, ...], "model"]
    unreached_rows: Annotated[Int[np.ndarray, "model side"], Unit("1")]
    weights_hashes: Annotated[tuple[str, ...], "model"]
    lengths: tuple[str, ...]
    at: Annotated[Int[np.ndarray, " position"], Unit("scored positions or filler tokens, as the attribute unit states")]
    errors: tuple[str, ...]
    error_bits: Annotated[Estimate, NonNegative("error model position", unit="bits", better="lower", label="error")]
    whole_error_bits: Annotated[
        Estimate,
        NonNegative("error model length", unit="bits", better="lower", label="error, mean over whole sequences"),
    ]
    discontinuity_bits: Annotated[
        Estimate,
        Quantity("error model", unit="bits", better="lower", label="discontinuity at the training length"),
    ]
    critical_length: Annotated[Estimate, Quantity("model", better="higher", label="first position above the threshold")]
    extrapolation_ratio: Annotated[Estimate, NonNegative("model", better="lower", label="KL beyond / within")]
    layer_within_kl_bits: Annotated[Float[np.ndarray, "model layer"], Unit("bits")]
    layer_excess_bits: Annotated[
        Estimate, Quantity("model layer", unit="bits", better="lower", label="KL of the read-out, beyond − within")
    ]
    layer_shift: Annotated[
        Estimate, Quantity("model layer", better="lower", label="shift of the mean residual, in its spread within")
    ]
    equivalent_window_symbols: Annotated[
        Estimate, Quantity("model", unit="symbols", better="higher", label="equivalent window")
    ]
    n: int

    @property
    def predictors(self) -> tuple[str, ...]:
        """The predictors that the errors are compared with, the strongest first."""
        return tuple(own.name for own in self.error_bits.baselines)

    @property
    def kl_bits(self) -> Estimate:
        """KL(exact ‖ model) of each model at every position."""
        return self.error_bits[KL]

    @property
    def entropy_mae_bits(self) -> Estimate:
        """The entropy error of each model at every position."""
        return self.error_bits[ENTROPY]

    @property
    def found_kl_bits(self) -> Float[np.ndarray, " model"]:
        """KL at the first position beyond the training length; NaN where there is no discontinuity."""
        found = self.kl_bits.value[:, int((self.at <= self.trained).sum())]
        return np.where(np.isnan(self.discontinuity_bits.value[KL]), np.nan, found)

    @property
    def predicted_kl_bits(self) -> Float[np.ndarray, " model"]:
        """KL that the trend within the training length predicts there."""
        predicted: np.ndarray = self.found_kl_bits - self.discontinuity_bits.value[KL]
        return predicted

    @property
    def entry_layer(self) -> Int[np.ndarray, " model"]:
        """The first layer whose excess has its whole interval above 0 and its baseline; −1 if there is none."""
        level = np.maximum(0.0, np.nan_to_num(self.layer_excess_bits.baseline(EARLIER).value))
        is_clear = self.layer_excess_bits.ends[0] > level
        first: np.ndarray = np.where(is_clear.any(axis=1), is_clear.argmax(axis=1), -1)
        return first

    def headlines(self) -> Sequence[Headline]:
        """Return the numbers by quantity: discontinuities, ratios, first failures, equivalent windows."""
        names = [f"{name}: " if len(self.models) > 1 else "" for name in self._short_names]
        step = f"KL discontinuity at {self._first_beyond}, {self._n_trend}-point trend"
        over = f"first position with KL above {self.threshold_bits:g} bits"
        window = f"equivalent window, at length {self.lengths[-1]}"
        lines = [headline_of(self, "discontinuity_bits", (KL, i), f"{own}{step}") for i, own in enumerate(names)]
        lines = [replace(line, verdict=_verdict(line)) for line in lines]
        lines += [
            headline_of(self, "extrapolation_ratio", (i,), f"{own}KL beyond / within") for i, own in enumerate(names)
        ]
        lines += [headline_of(self, "critical_length", (i,), f"{own}{over}") for i, own in enumerate(names)]
        return lines + [
            headline_of(self, "equivalent_window_symbols", (i,), f"{own}{window}")
            for i, own in enumerate(names)
            if not math.isnan(float(self.equivalent_window_symbols.value[i]))
        ]

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.generalization.length_drawing import length_panels

        return length_panels(
            models=self._short_names,
            at=(self.at, self.unit, self.trained),
            curves=(self.kl_bits, self.entropy_mae_bits, self.whole_error_bits[KL], self.layer_excess_bits),
            lengths=np.array([int(length) for length in self.lengths]),
            threshold_bits=self.threshold_bits,
        )

    def table(self) -> str:
        """Return one row per model, then whole-sequence means by length."""
        rows = [_HEADER, *(self._row(index) for index in range(len(self.models)))]
        means = [("whole-sequence KL (bits) at", *self.lengths)]
        means += [
            (model, *map(number_text, own))
            for model, own in zip(self.models, self.whole_error_bits.value[KL], strict=True)
        ]
        windows = [("model", "equivalent window", "untrained positions")]
        windows += [
            (model, own.text(), f"{first}–{last}" if first > 0 else "none")
            for model, own, (first, last) in zip(
                self.models,
                (self.equivalent_window_symbols[i] for i in range(len(self.models))),
                self.unreached_rows.tolist(),
                strict=True,
            )
        ]
        return "\n".join([*fitted(rows), "", *fitted(means), "", *fitted(windows)])

    @property
    def _first_beyond(self) -> int:
        return int(self.at[self.at > self.trained][0])

    @property
    def _short_names(self) -> list[str]:
        return short_names(self.models)

    @property
    def _n_trend(self) -> int:
        """Number of positions to which the trend is fitted."""
        return min(N_TREND, int((self.at <= self.trained).sum()))

    def _row(self, index: int) -> tuple[str, ...]:
        within, layer, kl = self.at <= self.trained, int(self.entry_layer[index]), self.kl_bits.value[index]
        discontinuity, ratio, critical = (
            own[index] for own in (self.discontinuity_bits[KL], self.extrapolation_ratio, self.critical_length)
        )
        largest, shortcut = discontinuity.baseline(LARGEST_WITHIN).value, ratio.baselines[0].value
        return (
            self.models[index],
            self.position_kinds[index],
            number_text(kl[within].mean()),
            number_text(kl[~within].mean()),
            f"{_exact(self.predicted_kl_bits[index])} → {_exact(self.found_kl_bits[index])}",
            f"{discontinuity.text()} ({_exact(float(largest))})",
            _length(float(critical)),
            f"{ratio.text()} ({number_text(float(shortcut))})",
            "–" if layer < 0 else f"{layer}",
        )


_HEADER = (
    "model",
    "positions",
    "KL within",
    "KL beyond",
    "predicted → measured",
    "discontinuity (largest within)",
    "critical length",
    "beyond / within (shortcut)",
    "first layer with excess",
)


def _verdict(line: Headline) -> str:
    """Return whether the discontinuity exceeds any within the training length; "" where it is unknown."""
    if math.isnan(line.value):
        return ""
    if line.low > max(0.0, line.baseline):
        return str(Verdict.DISCONTINUITY)
    return str(Verdict.NO_DISCONTINUITY if line.high < line.baseline else Verdict.UNDECIDED)


def short_names(models: Sequence[str]) -> list[str]:
    """Return names without the first words that all of them share.

    Example:
        >>> short_names(["hmm-variant-rotary", "hmm-variant-no-top-attention"])
        ['rotary', 'no-top-attention']
    """
    words = [model.split("-") for model in models]
    n_shared = 0
    while len(models) > 1 and all(len(own) > n_shared + 1 and own[n_shared] == words[0][n_shared] for own in words):
        n_shared += 1
    return ["-".join(own[n_shared:]) for own in words]


def _exact(value: float) -> str:
    return number_text(value)


def _length(value: float) -> str:
    return "never" if math.isinf(value) else number_text(value)
