"""The report of a monitored training: every number over steps beside its chance levels, and what happened when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.results.report import Headline, Report
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.training.monitor.measures import METRICS, Measures
from bayesgeom.training.monitor.rules import Event, Thresholds

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_LABELS = {
    "kl_bits": ("KL(exact ‖ model)", "bits", "uniform predictor"),
    "key_orthogonality": ("orthogonality of hypothesis keys, layer 0", "", "random directions"),
    "coverage": ("hypotheses with a direction of their own, layer 0", "", "random directions"),
    "separation": ("separation of the last values by posterior", "", "other sequences' posteriors"),
    "attention_entropy_bits": ("attention entropy", "bits", "uniform attention"),
}


@final
@dataclass(frozen=True, kw_only=True)
class MonitorReport(Report):
    """Numbers by step, on the same sequences throughout; the interval of KL is over these sequences.

    `_null` is chance (random directions of that width and count, uniform attention, the uniform predictor, posteriors
    exchanged within positions), `_initialisation` an untrained copy of the architecture, NaN where none was made.
    """

    name: ClassVar[str] = "monitor"
    title: ClassVar[str] = "Monitor: how training went"
    about: ClassVar[str] = (
        "Every so many steps the model was measured on the same few sequences. Each number stands beside what it is by "
        "chance, and beside an untrained model. Thresholds are drawn as lines: they say where someone should look, not "
        "what is true. Random directions of a head's width may pass them, and a model that predicts exactly may fail "
        "them; KL to the exact posterior is the number that decides."
    )

    steps: tuple[str, ...]
    kl_bits: Float[np.ndarray, " step"]
    kl_bits_lo: Float[np.ndarray, " step"]
    kl_bits_hi: Float[np.ndarray, " step"]
    kl_bits_null: Float[np.ndarray, " step"]
    kl_bits_initialisation: float
    key_orthogonality: Float[np.ndarray, " step"]
    key_orthogonality_null: Float[np.ndarray, " step"]
    key_orthogonality_initialisation: float
    coverage: Float[np.ndarray, " step"]
    coverage_null: Float[np.ndarray, " step"]
    coverage_initialisation: float
    separation: Float[np.ndarray, " step"]
    separation_null: Float[np.ndarray, " step"]
    separation_initialisation: float
    attention_entropy_bits: Float[np.ndarray, " step"]
    attention_entropy_bits_null: Float[np.ndarray, " step"]
    attention_entropy_bits_initialisation: float
    key_orthogonality_by_head: Float[np.ndarray, "step layer kv_head"]
    coverage_by_head: Float[np.ndarray, "step layer kv_head"]
    attention_entropy_bits_by_head: Float[np.ndarray, "step layer head"]
    thresholds: Mapping[str, float]
    events: tuple[str, ...]
    marked_steps: tuple[int, ...]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        last = len(self.steps) - 1
        return [
            self.entry(metric, (last,), f"{label}, step {self.steps[-1]}", unit=unit, null_label=null_label)
            for metric, (label, unit, null_label) in _LABELS.items()
        ]

    def figure(self) -> "Figure":
        from bayesgeom.charts.curves import Curve, add_curves
        from bayesgeom.results.theme import NULL, panels, with_room_for_legend

        figure = panels(self.title, tuple(label for label, _, _ in _LABELS.values()), row_height=330)
        at, of = np.array([int(step) for step in self.steps]), vars(self)
        for index, (metric, (_, unit, _)) in enumerate(_LABELS.items()):
            panel = (index // 2 + 1, index % 2 + 1)
            band = (self.kl_bits_lo, self.kl_bits_hi) if metric == "kl_bits" else None
            levels = [
                ("null: chance", of[f"{metric}_null"]),
                ("null: initialisation", of[f"{metric}_initialisation"]),
                ("threshold", self.thresholds.get(metric, np.nan)),
            ]
            curve = Curve(name="measured", values=of[metric], band=band)
            add_curves(figure, panel, at, [curve], unit=unit or "0 … 1", levels=levels)
            for step in self.marked_steps:
                figure.add_vline(x=step, line={"color": NULL, "width": 1}, row=panel[0], col=panel[1])
        figure.update_yaxes(type="log", exponentformat="power", row=1, col=1)
        return with_room_for_legend(figure)


def monitor_report(
    steps: Sequence[int],
    measures: Sequence[Measures],
    *,
    chance: Mapping[str, float],
    untrained: Mapping[str, float],
    thresholds: Thresholds,
    events: Sequence[Event],
    seed: int,
) -> MonitorReport:
    """The report of what was measured so far."""
    kl = np.stack([m.kl_bits for m in measures])
    lo, hi = mean_interval(kl.T, seed=seed)
    summaries = [m.summary() for m in measures]
    found: dict[str, Any] = {name: np.array([s[name] for s in summaries]) for name in METRICS}
    found |= {f"{name}_null": np.full(len(steps), chance[name]) for name in METRICS}
    found["separation_null"] = np.array([m.separation_null for m in measures])
    found |= {f"{name}_initialisation": float(untrained[name]) for name in METRICS}
    of: dict[str, Any] = {
        name: np.stack([vars(m)[name] for m in measures]) for name in METRICS if name not in ("kl_bits", "separation")
    }
    return MonitorReport(
        steps=tuple(str(step) for step in steps),
        **found,
        kl_bits_lo=lo,
        kl_bits_hi=hi,
        **{f"{name}_by_head": values for name, values in of.items()},
        thresholds=dict(vars(thresholds)),
        events=tuple(str(event) for event in events),
        marked_steps=tuple(event.step for event in events if event.is_warning),
        intervals={},
        nulls={},
        n=kl.shape[1],
    )
