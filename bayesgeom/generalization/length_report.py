"""The length report: errors by position, the discontinuity at the training length, and the layer where it appears."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core import Verdict, number_text
from bayesgeom.core.text import aligned_table
from bayesgeom.generalization.curves import LARGEST_WITHIN, N_TREND
from bayesgeom.report.estimate import Estimate, NonNegative, Quantity, Unit
from bayesgeom.report.findings import Finding, Opening, Value, is_stated
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of

EARLIER = "the same, one window earlier"  # the baseline of layers
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
    title: ClassVar[str] = "Length: does it hold beyond the training length?"

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
        return tuple(baseline.name for baseline in self.error_bits.baselines)

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
        beyond = self.kl_bits.value[:, int((self.at <= self.trained).sum())]
        return np.where(np.isnan(self.discontinuity_bits.value[KL]), np.nan, beyond)

    @property
    def predicted_kl_bits(self) -> Float[np.ndarray, " model"]:
        """KL that the trend within the training length predicts there."""
        return np.asarray(self.found_kl_bits - self.discontinuity_bits.value[KL])

    @property
    def entry_layer(self) -> Int[np.ndarray, " model"]:
        """The first layer whose excess has its whole interval above 0 and its baseline; −1 if there is none."""
        level = np.maximum(0.0, np.nan_to_num(self.layer_excess_bits.baseline(EARLIER).value))
        is_clear = self.layer_excess_bits.ends[0] > level
        return np.asarray(np.where(is_clear.any(axis=1), is_clear.argmax(axis=1), -1))

    def headlines(self) -> Sequence[Headline]:
        """Return the numbers by quantity: discontinuities, ratios, first failures, equivalent windows."""
        names = [f"{name}: " if len(self.models) > 1 else "" for name in self._short_names]
        over = f"first position with KL above {self.threshold_bits:g} bits"
        window = f"equivalent window, at length {self.lengths[-1]}"
        ratio = "KL beyond / within"
        lines = self._steps()
        lines += [headline_of(self, "extrapolation_ratio", (i,), f"{name}{ratio}") for i, name in enumerate(names)]
        lines += [headline_of(self, "critical_length", (i,), f"{name}{over}") for i, name in enumerate(names)]
        return lines + [
            headline_of(self, "equivalent_window_symbols", (i,), f"{name}{window}")
            for i, name in enumerate(names)
            if not math.isnan(float(self.equivalent_window_symbols.value[i]))
        ]

    def answer(self) -> Opening:
        names, lines, by_verdict = self._short_names, self._steps(), dict[str, list[str]]()
        if len(lines) == 1:
            (line,), ratio, is_beyond = lines, self.extrapolation_ratio[0], self.at > self.trained
            within, beyond = (float(self.kl_bits.value[0, mask].mean()) for mask in (~is_beyond, is_beyond))
            known: dict[str, Value] = {"rise" if line.value > 0 else "fall": abs(line.value)}
            if line.verdict == Verdict.UNDECIDED and line.interval:
                known = {"change": self.discontinuity_bits[KL, 0]}
            known |= {"ratio": ratio} if is_stated(ratio) else {"within": within, "beyond": beyond}
            return Finding.LENGTH_OF_ONE.of(verdict=line.verdict, **known)
        for name, line in zip(names, lines, strict=True):
            by_verdict.setdefault(line.verdict or str(Verdict.NOT_MEASURED), []).append(name)
        beyond = self.kl_bits.value[:, self.at > self.trained].mean(axis=1)
        return Finding.LENGTH_OF_SEVERAL.of(model=names[beyond.argmin()], bits=beyond.min(), verdicts=by_verdict)

    def _steps(self) -> list[Headline]:
        """Return the discontinuity of each model, with its verdict."""
        names = [f"{name}: " if len(self.models) > 1 else "" for name in self._short_names]
        n_within = int((self.at <= self.trained).sum())
        step = f"KL discontinuity at {self.at[n_within]}, {min(N_TREND, n_within)}-point trend"
        lines = [headline_of(self, "discontinuity_bits", (KL, i), f"{name}{step}") for i, name in enumerate(names)]
        return [replace(line, verdict=_verdict(line)) for line in lines]

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import add_baseline, add_note
        from bayesgeom.report.theme import BASELINE, label_axes

        position, lengths = (self.at, self.unit), (np.array([int(text) for text in self.lengths]), "requested length")
        drawn = (
            (self._finding(), self.kl_bits, *position, "KL(exact ‖ model) (bits)"),
            ("Entropy error by position", self.entropy_mae_bits, *position, "|H model − H exact| (bits)"),
            ("KL, mean over whole sequences", self.whole_error_bits[KL], *lengths, "mean KL (bits)"),
        )
        panels = list[Panel]()
        for title, estimate, x, x_title, y_title in drawn:
            panel = Panel.blank(f"{title} (log scale)", is_folded=len(panels) > 0)
            if not panels:
                add_baseline(panel.figure, x, self.threshold_bits, name=f"threshold: {self.threshold_bits:g} bits")
            _add(panel, x, estimate, self._short_names, is_log=True)
            named: dict[str, object] = {"annotation_text": "trained up to here", "annotation_position": "top right"}
            line = {"color": BASELINE, "dash": "dot", "width": 1.5}
            named |= {"annotation_font": {"size": 11, "color": BASELINE}}
            panel.figure.add_vline(x=self.trained, line=line, **named)
            label_axes(panel.figure, x_title, y_title)
            panels.append(panel)
        excess = Panel.blank("Excess beyond the training length, by layer", is_folded=True)
        layers = self.layer_excess_bits
        if np.isfinite(layers.value).any():
            _add(excess, np.arange(layers.value.shape[1]), layers, self._short_names, is_log=False)
            label_axes(excess.figure, "layer", "KL beyond − KL within (bits)")
        else:
            add_note(excess.figure, "not measured")
        return [*panels, excess]

    def _finding(self) -> str:
        """Return the title of the first panel: how KL changes beyond the training length."""
        from bayesgeom.charts.lines import brief, times_text

        is_beyond = self.at > self.trained
        if not is_beyond.any() or is_beyond.all():
            return "KL by position"
        if len(self.models) > 1:
            means = np.nanmean(self.kl_bits.value[:, is_beyond], axis=1)
            best = int(np.nanargmin(means))
            finding = f"“{self._short_names[best]}” errs least, {brief(means[best])} bits"
        else:
            within, beyond = (float(np.nanmean(self.kl_bits.value[0, mask])) for mask in (~is_beyond, is_beyond))
            finding = f"KL is {brief(beyond)} bits, and {brief(within)} within it"
            if is_stated(self.extrapolation_ratio[0]):
                finding = f"KL is {times_text(beyond, within, 'that within it')}"
        return f"Beyond the training length {finding}"

    def table(self) -> str:
        """Return one row per model, then whole-sequence means by length."""
        rows = [_HEADER, *(self._row(index) for index in range(len(self.models)))]
        means = [("whole-sequence KL (bits) at", *self.lengths)]
        means += [
            (model, *map(number_text, values))
            for model, values in zip(self.models, self.whole_error_bits.value[KL], strict=True)
        ]
        windows = [("model", "equivalent window", "untrained positions")]
        for index, (first, last) in enumerate(self.unreached_rows.tolist()):
            untrained = f"{first}–{last}" if first > 0 else "none"
            windows.append((self.models[index], self.equivalent_window_symbols[index].text(), untrained))
        return "\n".join([*aligned_table(rows), "", *aligned_table(means), "", *aligned_table(windows)])

    @property
    def _short_names(self) -> list[str]:
        return short_names(self.models)

    def _row(self, index: int) -> tuple[str, ...]:
        within, layer, kl = self.at <= self.trained, int(self.entry_layer[index]), self.kl_bits.value[index]
        discontinuity, ratio, critical = (
            number[index] for number in (self.discontinuity_bits[KL], self.extrapolation_ratio, self.critical_length)
        )
        largest, shortcut = discontinuity.baseline(LARGEST_WITHIN).value, ratio.baselines[0].value
        return (
            self.models[index],
            self.position_kinds[index],
            number_text(kl[within].mean()),
            number_text(kl[~within].mean()),
            f"{number_text(self.predicted_kl_bits[index])} → {number_text(self.found_kl_bits[index])}",
            f"{discontinuity.text()} ({number_text(float(largest))})",
            "never" if np.isinf(critical.value) else number_text(float(critical)),
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
    while len(models) > 1 and all(len(name) > n_shared + 1 and name[n_shared] == words[0][n_shared] for name in words):
        n_shared += 1
    return ["-".join(name[n_shared:]) for name in words]


def _add(panel: Panel, x: Int[np.ndarray, " x"], curves: Estimate, models: Sequence[str], *, is_log: bool) -> None:
    """Add the models' curves, and the mean over models of the strongest baseline: tables list the others."""
    from bayesgeom.charts.lines import LEAST_BITS, add_baseline, add_line, log_floor
    from bayesgeom.report.theme import MEASURED, SERIES, at_least, log_axes

    for baseline in curves.baselines[:1]:
        level = np.ma.masked_invalid(baseline.value).mean(axis=0).filled(np.nan)
        floor = log_floor(curves.value, level) if is_log else -np.inf
        add_baseline(panel.figure, x, level, name=f"baseline: {baseline.name.replace('_', ' ')}", floor=floor)
    for index, model in enumerate(models):
        color, curve = MEASURED if len(models) == 1 else SERIES[index % len(SERIES)], curves[index]
        if np.isfinite(curve.value).any():  # else the layers of this model are not read
            add_line(panel.figure, x, curve.value, name=model, color=color, band=curve.ends)
    if is_log:
        log_axes(panel.figure)
    else:
        at_least(panel.figure, LEAST_BITS)
