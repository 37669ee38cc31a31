"""The length report: errors by position, the jump at the training length, and the layer where the error appears."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core.numbers import number_text
from bayesgeom.generalization.curves import LARGEST_WITHIN, N_TREND
from bayesgeom.generalization.depth import EARLIER
from bayesgeom.results.estimate import Estimate, Quantity
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.tables import aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


ERRORS = ("KL", "entropy error")
KL, ENTROPY = range(2)  # entries of `errors`


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class LengthReport(Report):
    """Errors of every model ("arm") on the same sequences; entry i of a curve belongs to `at[i]`.

    `at` holds scored positions counted from 1 or, if length means distance, numbers of filler tokens (see `unit`).
    `position_kinds` states how each arm encodes positions, and which rows of a learned table were never trained.
    `errors` are the KL and the entropy error: at every position (`error_bits`), as means over whole sequences of each
    length (`whole_error_bits`), and their jump at the training length (`jump_bits`). `critical_length` is infinite if
    no position exceeds `threshold_bits`. Layers that cannot be read are NaN. If the task's hidden state moves,
    `effective_memory_symbols` (see `bayesgeom.stats.memory`) is measured over the longest sequences, and `transport`
    states whether such sequences can show transport; on other tasks they are NaN and empty.
    """

    name: ClassVar[str] = "length"
    title: ClassVar[str] = "Length: does the model generalize beyond its training length?"
    about: ClassVar[str] = (
        "Errors against the exact posterior at every position, up to many times the training length (dotted). Gray "
        "lines are shortcut predictors. A learned recursion continues beyond the training length; a table of learned "
        "positions fails at its end. The jump is the error at the first position beyond the training length, minus the "
        "value that a line through the last positions within predicts. The mean over whole sequences hides the jump, "
        "because positions within are still near zero. The last panel reads every layer's residual through the output "
        "and shows where the error beyond the training length first exceeds that just within it."
    )

    unit: str
    trained: int
    threshold_bits: float
    arms: tuple[str, ...]
    position_kinds: tuple[str, ...]
    weights_hashes: tuple[str, ...]
    lengths: tuple[str, ...]
    at: Int[np.ndarray, " position"]
    errors: tuple[str, ...]
    error_bits: Annotated[Estimate, Quantity("error arm position", unit="bits", better="lower", label="error")]
    whole_error_bits: Annotated[
        Estimate, Quantity("error arm length", unit="bits", better="lower", label="error, mean over whole sequences")
    ]
    jump_bits: Annotated[
        Estimate, Quantity("error arm", unit="bits", better="lower", label="the error's jump at the training length")
    ]
    critical_length: Annotated[Estimate, Quantity("arm", better="higher", label="first position above the threshold")]
    extrapolation_ratio: Annotated[Estimate, Quantity("arm", better="lower", label="KL beyond / within")]
    layer_within_kl_bits: Float[np.ndarray, "arm layer"]
    layer_excess_bits: Annotated[
        Estimate, Quantity("arm layer", unit="bits", better="lower", label="KL of the read-out, beyond − within")
    ]
    layer_shift: Annotated[
        Estimate, Quantity("arm layer", better="lower", label="shift of the mean residual, in its spread within")
    ]
    effective_memory_symbols: Annotated[
        Estimate, Quantity("arm", unit="symbols", better="higher", label="effective memory")
    ]
    transport: str
    n: int

    @property
    def predictors(self) -> tuple[str, ...]:
        """The predictors that the errors are compared with, the strongest first."""
        return tuple(own.name for own in self.error_bits.baselines)

    @property
    def kl_bits(self) -> Estimate:
        """KL(exact ‖ model) of each arm at every place."""
        return self.error_bits[KL]

    @property
    def entropy_mae_bits(self) -> Estimate:
        """The entropy error of each arm at every place."""
        return self.error_bits[ENTROPY]

    @property
    def untrained_positions(self) -> tuple[str, ...]:
        """The rows of each arm's learned position table that were never trained; "" if all were."""
        return tuple(kind.partition(" (")[2].removesuffix(")") for kind in self.position_kinds)

    @property
    def found_kl_bits(self) -> Float[np.ndarray, " arm"]:
        """KL at the first position beyond the training length; NaN where there is no jump."""
        found = self.kl_bits.value[:, int((self.at <= self.trained).sum())]
        return np.where(np.isnan(self.jump_bits.value[KL]), np.nan, found)

    @property
    def predicted_kl_bits(self) -> Float[np.ndarray, " arm"]:
        """KL that the trend within the training length predicts there."""
        predicted: np.ndarray = self.found_kl_bits - self.jump_bits.value[KL]
        return predicted

    @property
    def entry_layer(self) -> Int[np.ndarray, " arm"]:
        """The first layer whose excess has its whole interval above 0 and its baseline; −1 if there is none."""
        level = np.maximum(0.0, np.nan_to_num(self.layer_excess_bits.baseline(EARLIER).value))
        is_clear = self.layer_excess_bits.ends[0] > level
        first: np.ndarray = np.where(is_clear.any(axis=1), is_clear.argmax(axis=1), -1)
        return first

    def headlines(self) -> Sequence[Headline]:
        lines = []
        for index, arm in enumerate(self.arms):
            own = f"{arm}: " if len(self.arms) > 1 else ""
            jump = f"{own}KL jump at {self._first_beyond} over {self._trend}"
            over = f"{own}first position with KL above {self.threshold_bits:g} bits"
            lines += [
                headline_of(self, "jump_bits", at=(KL, index), label=jump),
                headline_of(self, "extrapolation_ratio", at=(index,), label=f"{own}KL beyond / within"),
                replace(headline_of(self, "critical_length", at=(index,), label=over), finding=self._reach(index)),
            ]
            if not math.isnan(float(self.effective_memory_symbols.value[index])):
                label = f"{own}effective memory, at length {self.lengths[-1]}"
                lines.append(headline_of(self, "effective_memory_symbols", at=(index,), label=label))
        return tuple(lines)

    def _reach(self, index: int) -> str:
        """Return a sentence on the first failed position and the error beyond the training length."""
        first, ratio = float(self.critical_length.value[index]), float(self.extrapolation_ratio.value[index])
        where = "never" if math.isinf(first) else f"first at {number_text(first)}"
        name = f"{self.arms[index]}: " if len(self.arms) > 1 else ""
        return (
            f"{name}KL exceeds {self.threshold_bits:g} bits {where}; beyond the training length ({self.trained}) it is "
            f"{number_text(ratio)} times as large as within."
        )

    def plot(self) -> "Figure":
        from bayesgeom.generalization.length_drawing import length_figure

        return length_figure(
            self.title,
            arms=self.arms,
            at=(self.at, self.unit, self.trained),
            curves=(self.kl_bits, self.entropy_mae_bits, self.whole_error_bits[KL], self.layer_excess_bits),
            lengths=np.array([int(length) for length in self.lengths]),
            threshold_bits=self.threshold_bits,
        )

    def table(self) -> str:
        """Return one row per arm, then whole-sequence means by length."""
        rows = [_HEADER, *(self._row(index) for index in range(len(self.arms)))]
        means = [("whole-sequence KL (bits) at", *self.lengths)]
        means += [
            (arm, *map(number_text, own)) for arm, own in zip(self.arms, self.whole_error_bits.value[KL], strict=True)
        ]
        notes = self._memories() if self.transport else []
        notes += [f"{arm}: {note}" for arm, note in zip(self.arms, self.untrained_positions, strict=True) if note]
        if (n := self._n_trend) < N_TREND:
            is_known = "so no trend can be extrapolated" if n < 2 else f"so the trend is {self._trend}"
            unknown = ", without a baseline" if n == 2 else ""
            notes.append(f"within the training length there are fewer than {N_TREND} positions, {is_known}{unknown}")
        return "\n".join([*aligned(rows), "", *aligned(means), *([""] if notes else []), *notes])

    @property
    def _first_beyond(self) -> int:
        return int(self.at[self.at > self.trained][0])

    @property
    def _n_trend(self) -> int:
        """Number of positions to which the trend is fitted."""
        return min(N_TREND, int((self.at <= self.trained).sum()))

    @property
    def _trend(self) -> str:
        few = {N_TREND: "the trend before it", 1: "the single position before it, which gives no trend"}
        return few.get(self._n_trend, f"a line through the {self._n_trend} positions before it")

    def _memories(self) -> list[str]:
        found = zip(self.arms, *self.effective_memory_symbols.ends, strict=True)
        notes = [
            f"{arm}: effective memory {number_text(low)} … {number_text(high)} symbols"
            for arm, low, high in found
            if not math.isnan(low)
        ]
        return [*notes, self.transport]

    def _row(self, index: int) -> tuple[str, ...]:
        within, layer, kl = self.at <= self.trained, int(self.entry_layer[index]), self.kl_bits.value[index]
        jump, ratio, critical = (
            own[index] for own in (self.jump_bits[KL], self.extrapolation_ratio, self.critical_length)
        )
        largest, shortcut = jump.baseline(LARGEST_WITHIN).value, ratio.baselines[0].value
        return (
            self.arms[index],
            self.position_kinds[index].partition(" (")[0],
            number_text(kl[within].mean(), is_exact=True),
            number_text(kl[~within].mean(), is_exact=True),
            f"{_exact(self.predicted_kl_bits[index])} → {_exact(self.found_kl_bits[index])}",
            f"{jump.text(is_exact=True)} ({_exact(float(largest))})",
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
    "jump (largest within)",
    "critical length",
    "beyond / within (shortcut)",
    "first layer with excess",
)


def positions_text(kind: str, untrained: str) -> str:
    """Return how positions are encoded, and which rows of the table were never trained."""
    return f"{kind} ({untrained})" if untrained else kind


def _exact(value: float) -> str:
    return number_text(value, is_exact=True)


def _length(value: float) -> str:
    return "never" if math.isinf(value) else number_text(value)
