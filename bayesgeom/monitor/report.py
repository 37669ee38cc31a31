"""The report of a monitored training: measurements over steps with their baselines, and events."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.monitor.measures import Measures
from bayesgeom.monitor.rules import Event, Thresholds
from bayesgeom.report.estimate import Baseline, Estimate, Kind, NonNegative, Quantity, Unit, mean_estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import quantities_of
from bayesgeom.report.tables import Headline, headline_of

UNIFORM, DIRECTIONS, ATTENTION = "uniform predictor", "random directions", "uniform attention"
_RANGES = {"separation": "−1 … 1"}  # where it is not 0 … 1
OTHERS, UNTRAINED = "other sequences' posteriors", "untrained network"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class MonitorReport(Report):
    """The model was measured at regular steps on the same few sequences.

    Each number has its chance level and the level of an untrained network. Thresholds are drawn as lines: they say
    where to look, not what is true. Random directions of a head's width may pass them, and a model that predicts
    exactly may fail them; KL to the exact posterior is the number that decides.

    Fields: measurements by step, always on the same sequences; the interval of KL is over these sequences.

    Baselines are random directions of the same width and number, uniform attention, the uniform predictor, posteriors
    permuted within positions, and an untrained network of the same architecture if it was measured. `threshold` is the
    level of each of the `rules`: a measurement of that name, or `degenerate_orthogonality`.
    """

    name: ClassVar[str] = "monitor"
    title: ClassVar[str] = "Monitor: how training went"

    steps: tuple[str, ...]
    # Without `better`: the uniform predictor is a scale. `calibration` compares with the task's strongest baseline.
    kl_bits: Annotated[Estimate, NonNegative("step", unit="bits", label="KL(exact ‖ model)")]
    key_orthogonality: Annotated[
        Estimate, Quantity("step", better="higher", label="orthogonality of hypothesis keys, layer 0")
    ]
    coverage: Annotated[
        Estimate, Quantity("step", better="higher", label="hypotheses with a direction of their own, layer 0")
    ]
    separation: Annotated[
        Estimate, Quantity("step", better="higher", label="separation of the last values by posterior")
    ]
    attention_entropy_bits: Annotated[
        Estimate, Quantity("step", unit="bits", better="lower", label="attention entropy")
    ]
    key_orthogonality_by_head: Annotated[Float[np.ndarray, "step layer kv_head"], Unit("1")]
    coverage_by_head: Annotated[Float[np.ndarray, "step layer kv_head"], Unit("1")]
    attention_entropy_bits_by_head: Annotated[Float[np.ndarray, "step layer head"], Unit("bits")]
    rules: tuple[str, ...]
    threshold: Annotated[Float[np.ndarray, " rule"], Unit("bits or 1, as the name of each rule states")]
    events: tuple[str, ...]  # their kinds
    event_metrics: Annotated[tuple[str, ...], "event"]
    event_step: Annotated[Int[np.ndarray, " event"], Unit("steps")]
    event_value: Annotated[Float[np.ndarray, " event"], Unit("bits or 1, as the metric states")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        last, quantities = (len(self.steps) - 1,), quantities_of(type(self))
        return [
            headline_of(self, m, at=last, label=f"{quantities[m].label}, step {int(self.steps[-1]):,}")
            for m in self._measured
        ]

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.curves import Curve, add_curves
        from bayesgeom.report.theme import BASELINE

        quantities, at = quantities_of(type(self)), np.array([int(step) for step in self.steps])
        thresholds, drawn = dict(zip(self.rules, self.threshold, strict=True)), list[Panel]()
        for metric, own in self._measured.items():
            panel = Panel.blank(quantities[metric].label, height=330)
            levels = [(level.name, level.value) for level in own.baselines]
            if metric in thresholds:
                levels.append(("threshold", np.full(len(at), thresholds[metric])))
            curve = Curve(name="measured", values=own.value, band=own.ends)
            unit = quantities[metric].unit or _RANGES.get(metric, "0 … 1")
            add_curves(panel.figure, at, [curve], unit=unit, levels=levels)
            for step in self.event_step[np.array(self.events) != "reached"]:
                panel.figure.add_vline(x=int(step), line={"color": BASELINE, "width": 1})
            drawn.append(panel)
        drawn[0].figure.update_yaxes(type="log", exponentformat="power")
        return drawn

    @property
    def _measured(self) -> dict[str, Estimate]:
        """The measurements over steps, in display order."""
        return {
            "kl_bits": self.kl_bits,
            "key_orthogonality": self.key_orthogonality,
            "coverage": self.coverage,
            "separation": self.separation,
            "attention_entropy_bits": self.attention_entropy_bits,
        }


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
    """Return the report of all measurements so far."""
    kl = np.stack([own.kl_bits for own in measures], axis=1)
    n, summaries = len(kl), [own.summary() for own in measures]
    shuffled = np.array([own.shuffled_separation for own in measures])

    def levels(metric: str, kind: Kind, name: str, level: float | Float[np.ndarray, " step"]) -> list[Baseline]:
        """The known levels among chance and the untrained network."""
        both = [Baseline.of(kind, name, level), Baseline.of("baseline", UNTRAINED, untrained[metric])]
        return [own for own in both if np.isfinite(own.value).any()]

    def over_steps(metric: str, baselines: Sequence[Baseline]) -> Estimate:
        return Estimate.of([own[metric] for own in summaries], n=n, baselines=baselines)

    def at_chance(metric: str, name: str) -> Estimate:
        return over_steps(metric, levels(metric, "chance", name, chance[metric]))

    return MonitorReport(
        steps=tuple(str(step) for step in steps),
        kl_bits=mean_estimate(kl, seed=seed, baselines=levels("kl_bits", "baseline", UNIFORM, chance["kl_bits"])),
        key_orthogonality=at_chance("key_orthogonality", DIRECTIONS),
        coverage=at_chance("coverage", DIRECTIONS),
        separation=over_steps("separation", levels("separation", "permutation", OTHERS, shuffled)),
        attention_entropy_bits=at_chance("attention_entropy_bits", ATTENTION),
        key_orthogonality_by_head=np.stack([own.key_orthogonality for own in measures]),
        coverage_by_head=np.stack([own.coverage for own in measures]),
        attention_entropy_bits_by_head=np.stack([own.attention_entropy_bits for own in measures]),
        rules=tuple(asdict(thresholds)),
        threshold=np.array([*asdict(thresholds).values()], dtype=np.float64),
        events=tuple(event.kind for event in events),
        event_metrics=tuple(event.metric for event in events),
        event_step=np.array([event.step for event in events], dtype=np.int64),
        event_value=np.array([event.value for event in events], dtype=np.float64),
        n=n,
    )
