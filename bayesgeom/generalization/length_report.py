"""The length report: errors by position, the discontinuity at the training length, and the layer where it appears."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core.text import number_text, with_unit
from bayesgeom.generalization.curves import LARGEST_WITHIN, N_TREND
from bayesgeom.generalization.model_errors import EARLIER
from bayesgeom.results.estimate import Estimate, NonNegative, Quantity, Unit
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


ERRORS = ("KL", "entropy error")
KL, ENTROPY = range(2)  # entries of `errors`
RULE = (
    "Discontinuity: the 95 % interval of the step in KL lies above zero and above the largest such step at "
    f"the last {N_TREND} positions within the training length. No discontinuity: it lies below that change. Undecided: "
    "everything else."
)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class LengthReport(Report):
    """Errors of every model on the same sequences; entry i of a curve belongs to `at[i]`.

    `at` holds scored positions counted from 1 or, if length means distance, numbers of filler tokens (see `unit`).
    `position_kinds` states how each model encodes positions, and which rows of a learned table were never trained.
    `errors` are the KL and the entropy error: at every position (`error_bits`), as means over whole sequences of each
    length (`whole_error_bits`), and their discontinuity at the training length (`discontinuity_bits`).
    `critical_length` is infinite if no position exceeds `threshold_bits`. Layers that cannot be read are NaN. If
    the task's hidden state moves, `effective_memory_symbols` (see `bayesgeom.stats.memory`) is measured over the
    longest sequences, and `transport` states whether such sequences can show transport; on other tasks they are NaN
    and empty.
    """

    name: ClassVar[str] = "length"
    title: ClassVar[str] = "Length: does the model generalize beyond its training length?"
    about: ClassVar[str] = (
        "Errors against the exact posterior at every position, up to many times the training length (dotted). The "
        "dashed gray line is the strongest baseline. A learned recursion continues beyond the training length; a "
        "table of learned positions fails at its end. The discontinuity is the error at the first position beyond the "
        "training length, minus the value that a line through the last positions within predicts. The mean over whole "
        "sequences hides it, because positions within are still near zero."
    )

    rule: ClassVar[str] = RULE

    unit: str
    trained: int
    threshold_bits: float
    models: tuple[str, ...]
    position_kinds: Annotated[tuple[str, ...], "model"]
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
    effective_memory_symbols: Annotated[
        Estimate, Quantity("model", unit="symbols", better="higher", label="effective memory")
    ]
    transport: str
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
    def untrained_positions(self) -> tuple[str, ...]:
        """The rows of each model's learned position table that were never trained; "" if all were."""
        return tuple(kind.partition(" (")[2].removesuffix(")") for kind in self.position_kinds)

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
        """Return the numbers by quantity: discontinuities in the order of rulings, ratios, first failures, memories."""
        names = [f"{name}: " if len(self.models) > 1 else "" for name in self._short_names]
        memories = [
            headline_of(
                self,
                "effective_memory_symbols",
                at=(index,),
                label=f"{name}effective memory, at length {self.lengths[-1]}",
            )
            for index, name in enumerate(names)
            if not math.isnan(float(self.effective_memory_symbols.value[index]))
        ]
        return *self._discontinuities(names), *self._ratios(names), *self._reaches(names), *memories

    def _discontinuities(self, names: Sequence[str]) -> list[Headline]:
        """Return each variant's discontinuity with its ruling; the largest of each ruling lists the others."""
        label = f"KL discontinuity at {self._first_beyond} over {self._trend}"
        lines = [
            headline_of(self, "discontinuity_bits", at=(KL, i), label=f"{own}{label}") for i, own in enumerate(names)
        ]
        lines = [replace(line, ruling=_discontinuity_ruling(line)) for line in lines]
        for ruling, verb in _RULINGS.items():
            group = [index for index, line in enumerate(lines) if line.ruling == ruling]
            if group:
                finding = verb.format(place=self._place, first=self._first_beyond, of=self._of_variants(group))
                largest = max(group, key=lambda index: lines[index].value)
                lines[largest] = replace(lines[largest], finding=finding)
        return sorted(lines, key=lambda line: [*_RULINGS, ""].index(line.ruling))

    def _ratios(self, names: Sequence[str]) -> list[Headline]:
        """Return each variant's error ratio; the smallest, which decides about the baseline, states the range."""
        lines = [
            headline_of(self, "extrapolation_ratio", at=(index,), label=f"{own}KL beyond / within")
            for index, own in enumerate(names)
        ]
        subject = "ratio of the KL beyond the training length to that within"
        lines = [
            replace(line, short_label=f"{subject} ({name})" if len(self.models) > 1 else subject)
            for line, name in zip(lines, self._short_names, strict=True)
        ]
        known = [index for index, line in enumerate(lines) if not math.isnan(line.value)]
        if known:
            order, short = sorted(known, key=lambda index: lines[index].value), self._short_names
            ends = [
                number_text(lines[index].value) + (f" ({short[index]})" if len(self.models) > 1 else "")
                for index in (order[0], order[-1])
            ]
            found = f"Beyond the training length ({self.trained}), the KL is {' to '.join(dict.fromkeys(ends))} times"
            lines[order[0]] = replace(lines[order[0]], finding=f"{found} as large as within.")
        return lines

    def _reaches(self, names: Sequence[str]) -> list[Headline]:
        """Return where each variant first exceeds the threshold; the first line states it for all of them."""
        over = f"first position with KL above {self.threshold_bits:g} bits"
        lines = [headline_of(self, "critical_length", at=(i,), label=f"{own}{over}") for i, own in enumerate(names)]
        groups: dict[float, list[str]] = {}
        for line, name in sorted(zip(lines, self._short_names, strict=True), key=lambda own: own[0].value):
            groups.setdefault(line.value, []).append(name)
        where_of = {first: f" ({', '.join(own)})" if len(groups) > 1 else "" for first, own in groups.items()}
        reached = [f"{number_text(first)}{own}" for first, own in where_of.items() if not math.isinf(first)]
        where = [f"first at {self._place} {', '.join(reached)}"] if reached else []
        where += [f"nowhere{where_of[math.inf]}"] if math.inf in where_of else []
        sentence = f"The KL exceeds {self.threshold_bits:g} bits {', '.join(where)}."
        return [replace(lines[0], finding=sentence), *lines[1:]]

    def _of_variants(self, group: Sequence[int]) -> str:
        """Return which of several variants are meant; "" for a single model."""
        if len(self.models) == 1:
            return ""
        short = self._short_names
        names = ", ".join(short[index] for index in group)
        return f", in {len(group)} of {len(short)} variants: {names}"

    def plot(self) -> "Figure":
        from bayesgeom.generalization.length_drawing import length_figure

        return length_figure(
            self.title,
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
        notes = self._memories() if self.transport else []
        notes += [f"{model}: {note}" for model, note in zip(self.models, self.untrained_positions, strict=True) if note]
        if (n := self._n_trend) < N_TREND:
            is_known = "so no trend can be extrapolated" if n < 2 else f"so the trend is {self._trend}"
            unknown = ", without a baseline" if n == 2 else ""
            notes.append(f"within the training length there are fewer than {N_TREND} positions, {is_known}{unknown}")
        return "\n".join([*aligned(rows), "", *aligned(means), *([""] if notes else []), *notes])

    @property
    def _first_beyond(self) -> int:
        return int(self.at[self.at > self.trained][0])

    @property
    def _short_names(self) -> list[str]:
        return short_names(self.models)

    @property
    def _place(self) -> str:
        return "position" if "position" in self.unit else "distance"

    @property
    def _n_trend(self) -> int:
        """Number of positions to which the trend is fitted."""
        return min(N_TREND, int((self.at <= self.trained).sum()))

    @property
    def _trend(self) -> str:
        few = {N_TREND: "the trend before it", 1: "the single position before it, which gives no trend"}
        return few.get(self._n_trend, f"a line through the {self._n_trend} positions before it")

    def _memories(self) -> list[str]:
        found = zip(self.models, *self.effective_memory_symbols.ends, strict=True)
        notes = [
            f"{model}: effective memory {number_text(low)} … {with_unit(number_text(high), 'symbols')}"
            for model, low, high in found
            if not math.isnan(low)
        ]
        return [*notes, self.transport]

    def _row(self, index: int) -> tuple[str, ...]:
        within, layer, kl = self.at <= self.trained, int(self.entry_layer[index]), self.kl_bits.value[index]
        discontinuity, ratio, critical = (
            own[index] for own in (self.discontinuity_bits[KL], self.extrapolation_ratio, self.critical_length)
        )
        largest, shortcut = discontinuity.baseline(LARGEST_WITHIN).value, ratio.baselines[0].value
        return (
            self.models[index],
            self.position_kinds[index].partition(" (")[0],
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


_RULINGS = {
    "discontinuity": "The KL has a discontinuity at {place} {first}, the first beyond the training length{of}.",
    "no discontinuity": "The KL has no discontinuity at {place} {first}, the first beyond the training length{of}.",
    "undecided": (
        "It is undecided whether the KL has a discontinuity at {place} {first}, the first beyond the training "
        "length{of}."
    ),
}


def _discontinuity_ruling(line: Headline) -> str:
    """Return whether the discontinuity exceeds any within the training length; "" where it is unknown."""
    if math.isnan(line.value):
        return ""
    if line.low > max(0.0, line.baseline):
        return "discontinuity"
    return "no discontinuity" if line.high < line.baseline else "undecided"


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


def positions_text(kind: str, untrained: str) -> str:
    """Return how positions are encoded, and which rows of the table were never trained."""
    return f"{kind} ({untrained})" if untrained else kind


def _exact(value: float) -> str:
    return number_text(value)


def _length(value: float) -> str:
    return "never" if math.isinf(value) else number_text(value)
