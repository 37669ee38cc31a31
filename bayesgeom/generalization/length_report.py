"""What length costs: errors position by position, the break at the training length, and where it enters."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as default
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.generalization.curves import N_TREND
from bayesgeom.results.report import Headline, Report, aligned

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def _none() -> Float[np.ndarray, " arm"]:
    """Of a task without latent dynamics, and of reports that were saved before there were window observers."""
    return np.zeros(0)


@final
@dataclass(frozen=True, kw_only=True)
class LengthReport(Report):
    """One row per model ("arm"), all on the same sequences; position i of a curve is the place `at[i]`.

    Places are scored positions counted from 1, or, where length is distance, filler tokens (`unit` says which). Arms'
    `untrained` says which rows of a learned table training never reached. `critical_length` is infinite where no place
    exceeds `threshold_bits`. `entry_layer` is the first layer whose excess is clear of its null, −1 where there is
    none; layers that cannot be read are NaN. `whole_…` are means over whole sequences of each length. On tasks whose
    hidden state moves, `effective_memory_symbols` is that of `bayesgeom.core.memory` over the longest sequences, and
    `transport` says whether such sequences can show transport.
    """

    name: ClassVar[str] = "length"
    title: ClassVar[str] = "Length: does it carry beyond what was trained?"
    about: ClassVar[str] = (
        "Errors against the exact posterior at every position, up to many times the training length (dotted). Grey "
        "lines are predictors that carry nothing. A recursion that was learned goes on as before; a table of positions "
        "breaks at its edge. The break is what is found at the first position beyond, less what a line through the "
        "last ones within predicts. The mean over whole sequences hides it: the positions within are still near zero. "
        "The last panel reads every layer's residual through the output and shows where the excess beyond the training "
        "length over that just within it first stands out."
    )

    task: str
    field: str
    unit: str
    trained: int
    tokens_trained: int
    threshold_bits: float
    arms: tuple[str, ...]
    position_kinds: tuple[str, ...]
    untrained: tuple[str, ...]
    tasks_of: tuple[str, ...]  # what each arm was trained on
    weights_hashes: tuple[str, ...]
    predictors: tuple[str, ...]  # of nulls, the strongest first
    lengths: tuple[str, ...]
    at: Int[np.ndarray, " position"]
    kl_bits: Float[np.ndarray, "arm position"]
    kl_bits_lo: Float[np.ndarray, "arm position"]
    kl_bits_hi: Float[np.ndarray, "arm position"]
    kl_bits_null: Float[np.ndarray, " position"]
    entropy_mae_bits: Float[np.ndarray, "arm position"]
    entropy_mae_bits_lo: Float[np.ndarray, "arm position"]
    entropy_mae_bits_hi: Float[np.ndarray, "arm position"]
    entropy_mae_bits_null: Float[np.ndarray, " position"]
    null_kl_bits: Float[np.ndarray, "predictor position"]
    null_entropy_mae_bits: Float[np.ndarray, "predictor position"]
    whole_kl_bits: Float[np.ndarray, "arm length"]
    whole_kl_bits_lo: Float[np.ndarray, "arm length"]
    whole_kl_bits_hi: Float[np.ndarray, "arm length"]
    whole_entropy_mae_bits: Float[np.ndarray, "arm length"]
    whole_entropy_mae_bits_lo: Float[np.ndarray, "arm length"]
    whole_entropy_mae_bits_hi: Float[np.ndarray, "arm length"]
    jump_kl_bits: Float[np.ndarray, " arm"]
    jump_kl_bits_lo: Float[np.ndarray, " arm"]
    jump_kl_bits_hi: Float[np.ndarray, " arm"]
    jump_kl_bits_null: Float[np.ndarray, " arm"]
    predicted_kl_bits: Float[np.ndarray, " arm"]
    found_kl_bits: Float[np.ndarray, " arm"]
    jump_entropy_mae_bits: Float[np.ndarray, " arm"]
    jump_entropy_mae_bits_lo: Float[np.ndarray, " arm"]
    jump_entropy_mae_bits_hi: Float[np.ndarray, " arm"]
    jump_entropy_mae_bits_null: Float[np.ndarray, " arm"]
    critical_length: Float[np.ndarray, " arm"]
    critical_length_lo: Float[np.ndarray, " arm"]
    critical_length_hi: Float[np.ndarray, " arm"]
    extrapolation_ratio: Float[np.ndarray, " arm"]
    extrapolation_ratio_lo: Float[np.ndarray, " arm"]
    extrapolation_ratio_hi: Float[np.ndarray, " arm"]
    extrapolation_ratio_null: Float[np.ndarray, " arm"]
    entry_layer: Int[np.ndarray, " arm"]
    layer_within_kl_bits: Float[np.ndarray, "arm layer"]
    layer_beyond_kl_bits: Float[np.ndarray, "arm layer"]
    layer_excess_bits: Float[np.ndarray, "arm layer"]
    layer_excess_bits_lo: Float[np.ndarray, "arm layer"]
    layer_excess_bits_hi: Float[np.ndarray, "arm layer"]
    layer_excess_bits_null: Float[np.ndarray, "arm layer"]
    layer_shift: Float[np.ndarray, "arm layer"]
    layer_shift_null: Float[np.ndarray, "arm layer"]
    effective_memory_symbols: Float[np.ndarray, " arm"] = default(default_factory=_none)
    effective_memory_symbols_lo: Float[np.ndarray, " arm"] = default(default_factory=_none)
    effective_memory_symbols_hi: Float[np.ndarray, " arm"] = default(default_factory=_none)
    transport: str = ""
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        lines = []
        for index, arm in enumerate(self.arms):
            own = f"{arm}: " if len(self.arms) > 1 else ""
            jump = f"{own}KL jump at {self._first_beyond} over {self._trend}"
            lines += [
                self.entry("jump_kl_bits", (index,), jump, unit="bits", null_label="largest within"),
                self.entry("extrapolation_ratio", (index,), f"{own}KL beyond / within", null_label=self.predictors[0]),
                self.entry("critical_length", (index,), f"{own}first place with KL over {self.threshold_bits:g} bits"),
            ]
            if self.transport:
                label = f"{own}effective memory, at length {self.lengths[-1]}"
                lines.append(self.entry("effective_memory_symbols", (index,), label, unit="symbols"))
        return tuple(lines)

    def figure(self) -> "Figure":
        from bayesgeom.generalization.length_drawing import Curves, length_figure

        def curves(metric: str, null: str) -> Curves:
            values = vars(self)
            return Curves(
                values=values[metric], lo=values[f"{metric}_lo"], hi=values[f"{metric}_hi"],
                nulls=dict(zip(self.predictors, values[null], strict=True)),
            )  # fmt: skip

        return length_figure(
            self.title,
            arms=self.arms,
            at=(self.at, self.unit, self.trained),
            curves=(
                curves("kl_bits", "null_kl_bits"),
                curves("entropy_mae_bits", "null_entropy_mae_bits"),
                Curves(values=self.whole_kl_bits, lo=self.whole_kl_bits_lo, hi=self.whole_kl_bits_hi, nulls={}),
                Curves(
                    values=self.layer_excess_bits, lo=self.layer_excess_bits_lo, hi=self.layer_excess_bits_hi,
                    nulls={"the same, one window earlier": self._mean_layer_null()},
                ),
            ),
            lengths=np.array([int(length) for length in self.lengths]),
            threshold_bits=self.threshold_bits,
        )  # fmt: skip

    def table(self) -> str:
        """One row per arm, then whole-sequence means by length, as the command line prints them."""
        rows = [_HEADER, *(self._row(index) for index in range(len(self.arms)))]
        means = [("whole-sequence KL (bits) at", *self.lengths)]
        means += [(arm, *(f"{v:.4f}" for v in own)) for arm, own in zip(self.arms, self.whole_kl_bits, strict=True)]
        memories = zip(
            self.arms, self.effective_memory_symbols, self.effective_memory_symbols_hi, strict=bool(self.transport)
        )
        notes = [f"{arm}: effective memory {_whole(lo)} … {_whole(hi)} symbols" for arm, lo, hi in memories]
        notes += [self.transport] if self.transport else []
        notes += [f"{arm}: {note}" for arm, note in zip(self.arms, self.untrained, strict=True) if note]
        if (n := self._n_trend) < N_TREND:
            is_known = "so that no line says what to expect beyond" if n < 2 else f"so that the trend is {self._trend}"
            no_null = ", and nothing is left to hold such a line to within" if n == 2 else ""
            notes.append(f"within the training length there are fewer than {N_TREND} places, {is_known}{no_null}")
        return "\n".join([*aligned(rows), "", *aligned(means), *([""] if notes else []), *notes])

    @property
    def _first_beyond(self) -> int:
        return int(self.at[self.at > self.trained][0])

    @property
    def _n_trend(self) -> int:
        """Places within through which the trend is drawn."""
        return min(N_TREND, int((self.at <= self.trained).sum()))

    @property
    def _trend(self) -> str:
        few = {N_TREND: "the trend before it", 1: "the one place before it, which is no trend"}
        return few.get(self._n_trend, f"a line through the {self._n_trend} places before it")

    def _mean_layer_null(self) -> Float[np.ndarray, " layer"]:
        known = np.isfinite(self.layer_excess_bits_null)
        total = np.where(known, self.layer_excess_bits_null, 0.0).sum(axis=0)
        return np.where(known.any(axis=0), total / known.sum(axis=0).clip(min=1), np.nan)

    def _row(self, index: int) -> tuple[str, ...]:
        within, layer = self.at <= self.trained, int(self.entry_layer[index])
        jump, ratio, critical = (
            self.entry(metric, (index,), "") for metric in ("jump_kl_bits", "extrapolation_ratio", "critical_length")
        )
        return (
            self.arms[index],
            self.position_kinds[index],
            f"{self.kl_bits[index, within].mean():.2e}",
            f"{self.kl_bits[index, ~within].mean():.2e}",
            f"{self.predicted_kl_bits[index]:.1e} → {self.found_kl_bits[index]:.1e}",
            f"{_signed(jump.value)} [{_signed(jump.lo)}, {_signed(jump.hi)}] ({jump.null:.1e})",
            f"{_length(critical.value)} [{_length(critical.lo)}, {_length(critical.hi)}]",
            f"{ratio.value:.3g} [{ratio.lo:.3g}, {ratio.hi:.3g}] ({ratio.null:.2f})",
            "–" if layer < 0 else f"{layer}",
        )


_HEADER = (
    "model", "positions", "KL within", "KL beyond", "predicted → found", "jump (largest within)", "critical length",
    "beyond / within (null)", "enters at layer",
)  # fmt: skip


def _signed(value: float) -> str:
    return f"{value:+.1e}"


def _whole(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0f}"


def _length(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.0f}"
