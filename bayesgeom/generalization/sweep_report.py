"""Noise and evidence: how fast the posterior converges, and how far the model is off, as a task's parameter varies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.run import Behaviour
from bayesgeom.generalization.convergence import settled_bits, tokens_to_converge
from bayesgeom.generalization.curves import Estimate, strongest
from bayesgeom.results.report import Headline, Report, aligned
from bayesgeom.stats.bootstrap import mean_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@final
@dataclass(frozen=True, kw_only=True)
class SweepReport(Report):
    """One row per value of the parameter; the model's numbers are NaN where there is no model, or it cannot be asked.

    `notes` says of each value why it could not, and is empty where it could. `…_tokens` count scored positions until
    mean entropy is within `threshold_bits` of its floor, which is its mean over the last quarter of the positions; the
    model's has a floor of its own. Nulls are those of the task's strongest shortcut at that value, `null_names`.
    """

    name: ClassVar[str] = "sweep"
    title: ClassVar[str] = "Noise and evidence: how fast does the posterior converge?"
    about: ClassVar[str] = (
        "One parameter of the task is varied and everything else kept, seeds too. The first panel shows the "
        "uncertainty of the exact posterior (solid) and of the model (dotted) as evidence comes in; the second, how "
        "many observations either takes to settle. The others show the model's error at each value beside what the "
        "task's strongest shortcut would get. A model that infers follows the exact posterior to values that it was "
        "not trained on; one that learned the speed of convergence by heart does not."
    )

    task: str
    vary: str
    values: tuple[str, ...]
    trained_value: str  # empty where there is no model
    notes: tuple[str, ...]
    null_names: tuple[str, ...]
    threshold_bits: float
    exact_entropy_bits: Float[np.ndarray, "value position"]
    model_entropy_bits: Float[np.ndarray, "value position"]
    exact_floor_bits: Float[np.ndarray, " value"]
    model_floor_bits: Float[np.ndarray, " value"]
    exact_tokens: Float[np.ndarray, " value"]
    exact_tokens_lo: Float[np.ndarray, " value"]
    exact_tokens_hi: Float[np.ndarray, " value"]
    model_tokens: Float[np.ndarray, " value"]
    model_tokens_lo: Float[np.ndarray, " value"]
    model_tokens_hi: Float[np.ndarray, " value"]
    kl_bits: Float[np.ndarray, " value"]
    kl_bits_lo: Float[np.ndarray, " value"]
    kl_bits_hi: Float[np.ndarray, " value"]
    kl_bits_null: Float[np.ndarray, " value"]
    entropy_mae_bits: Float[np.ndarray, " value"]
    entropy_mae_bits_lo: Float[np.ndarray, " value"]
    entropy_mae_bits_hi: Float[np.ndarray, " value"]
    entropy_mae_bits_null: Float[np.ndarray, " value"]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        lines = []
        for index, value in enumerate(self.values):
            place = f"{self.vary}={value}"
            if np.isfinite(self.kl_bits[index]):
                null = self.null_names[index]
                lines.append(self.entry("kl_bits", (index,), f"{place}: KL", unit="bits", null_label=null))
                lines.append(self.entry("model_tokens", (index,), f"{place}: tokens to converge, model"))
            lines.append(self.entry("exact_tokens", (index,), f"{place}: tokens to converge, exact"))
        return tuple(lines)

    def figure(self) -> "Figure":
        from bayesgeom.generalization.sweep_drawing import Estimates, sweep_figure

        def row(metric: str) -> Estimates:
            held = vars(self)
            return Estimates(values=held[metric], lo=held[f"{metric}_lo"], hi=held[f"{metric}_hi"])

        return sweep_figure(
            self.title,
            (self.vary, self.values),
            entropies=(self.exact_entropy_bits, self.model_entropy_bits),
            tokens=(row("exact_tokens"), row("model_tokens")),
            errors=(row("kl_bits"), row("entropy_mae_bits")),
            nulls=(self.kl_bits_null, self.entropy_mae_bits_null),
        )

    def table(self) -> str:
        """One row per value, errors with their 95 % intervals, and below why a model was not asked."""
        rows = [(self.vary, *_HEADER), *(self._row(index) for index in range(len(self.values)))]
        notes = [f"{self.vary}={v}: {note}" for v, note in zip(self.values, self.notes, strict=True) if note]
        return "\n".join([*aligned(rows), *([""] if notes else []), *notes])

    def _row(self, index: int) -> tuple[str, ...]:
        def cell(metric: str, form: str) -> str:
            line = self.entry(metric, (index,), "")
            if np.isnan(line.value):
                return "–"
            return f"{line.value:{form}} [{line.lo:{form}}, {line.hi:{form}}]"

        trained = " (trained)" if self.values[index] == self.trained_value else ""
        return (
            self.values[index] + trained,
            f"{self.exact_floor_bits[index]:.3f}",
            cell("exact_tokens", ".0f"),
            cell("model_tokens", ".0f"),
            cell("kl_bits", ".1e"),
            f"{self.kl_bits_null[index]:.1e} ({self.null_names[index]})",
            cell("entropy_mae_bits", ".1e"),
            f"{self.entropy_mae_bits_null[index]:.1e}",
        )


_HEADER = (
    "least entropy (bits)", "tokens, exact", "tokens, model", "KL (bits)", "KL of the null", "entropy error (bits)",
    "its null",
)  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Value:
    """What was found at one value of the parameter. Without a model, `own` is missing, and `note` may say why."""

    label: str
    note: str
    exact_entropy_bits: Float[np.ndarray, "sequence position"]
    own: Behaviour | None
    nulls: Mapping[str, Behaviour]


def sweep_report(
    found: Sequence[Value], *, task: str, vary: str, trained_value: str, threshold_bits: float, seed: int
) -> SweepReport:
    """Every value's numbers, in the given order."""
    best = [strongest({k: b.kl_bits.mean(axis=0, dtype=np.float64) for k, b in value.nulls.items()}) for value in found]
    n_positions = max(value.exact_entropy_bits.shape[1] for value in found)
    columns: dict[str, list[float]] = {}
    for value, null in zip(found, best, strict=True):
        for name, number in _numbers(value, value.nulls[null], threshold_bits, seed).items():
            columns.setdefault(name, []).append(number)
    return SweepReport(
        task=task,
        vary=vary,
        values=tuple(value.label for value in found),
        trained_value=trained_value,
        notes=tuple(value.note for value in found),
        null_names=tuple(best),
        threshold_bits=threshold_bits,
        exact_entropy_bits=np.stack([_padded(value.exact_entropy_bits, n_positions) for value in found]),
        model_entropy_bits=np.stack(
            [_padded(None if v.own is None else v.own.model_entropy_bits, n_positions) for v in found]
        ),
        **{name: np.array(numbers) for name, numbers in columns.items()},
        intervals={},
        nulls={},
        n=len(found[0].exact_entropy_bits),
    )


def _numbers(value: Value, null: Behaviour, threshold_bits: float, seed: int) -> dict[str, float]:
    exact = value.exact_entropy_bits.astype(np.float64)
    unknown = Estimate(value=np.nan, lo=np.nan, hi=np.nan)
    estimates: dict[str, Any] = {
        "exact_tokens": tokens_to_converge(exact, threshold_bits, seed=seed), "model_tokens": unknown,
        "kl_bits": unknown, "entropy_mae_bits": unknown,
    }  # fmt: skip
    model_floor = float("nan")
    if value.own is not None:
        model = value.own.model_entropy_bits.astype(np.float64)
        estimates["model_tokens"] = tokens_to_converge(model, threshold_bits, seed=seed)
        estimates["kl_bits"] = _mean(value.own.kl_bits, seed)
        estimates["entropy_mae_bits"] = _mean(np.abs(model - exact), seed)
        model_floor = settled_bits(model)
    found = {"exact_floor_bits": settled_bits(exact), "model_floor_bits": model_floor}
    found["kl_bits_null"] = float(null.kl_bits.mean(dtype=np.float64))
    found["entropy_mae_bits_null"] = float(np.abs(null.model_entropy_bits.astype(np.float64) - exact).mean())
    for name, estimate in estimates.items():
        found |= {name: estimate.value, f"{name}_lo": estimate.lo, f"{name}_hi": estimate.hi}
    return found


def _mean(values: Float[np.ndarray, "sequence position"], seed: int) -> Estimate:
    by_sequence = values.mean(axis=1, dtype=np.float64)
    lo, hi = mean_interval(by_sequence, seed=seed)
    return Estimate(value=float(by_sequence.mean()), lo=float(lo), hi=float(hi))


def _padded(values: Float[np.ndarray, "sequence position"] | None, n_positions: int) -> Float[np.ndarray, " longest"]:
    """The mean along the sequence, NaN beyond its end; where the length varies, ends do."""
    padded = np.full(n_positions, np.nan)
    if values is not None:
        padded[: values.shape[1]] = values.mean(axis=0, dtype=np.float64)
    return padded
