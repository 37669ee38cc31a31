"""The replication report: scores of one recipe with several seeds, their spread, and every seed's curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core.text import aligned_table, count_text, number_text
from bayesgeom.core.verdict import Reason
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Unit, mean_estimate
from bayesgeom.report.report import Report
from bayesgeom.report.storage import quantities_of
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import seed_interval
from examples.replication.comparison.scores import Scores

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel

CONTEXT_FREE = "context-free predictor"
_KL, _ERROR = "KL(exact ‖ model)", "entropy error"


@final
@dataclass(frozen=True, kw_only=True)
class Replica:
    """One training: its scores, and its log: steps, KL, loss."""

    name: str
    scores: Scores
    log: Mapping[int, tuple[float, float]]


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ReplicationReport(Report):
    """Scores of every seed on the same sequences; intervals of single seeds are over sequences.

    `mean_…` is the mean over trainings with Student's interval, NaN for one; `spread_…` is the standard deviation.
    `curve_kl_bits` is from each training's log, on its own 256 held-out sequences; NaN without a log.
    """

    name: ClassVar[str] = "replication"
    title: ClassVar[str] = "The same training under several seeds"
    about: ClassVar[str] = (
        "Data and initialization differ by seed (only data, if the recipe starts from shipped weights). "
        "Dots are single trainings with "
        "intervals over sequences, which do not cover other seeds. The interval of the mean is over seeds (Student's). "
        "The baseline is the best context-free predictor. The curves are from the training logs."
    )

    recipe: str
    replicas: tuple[str, ...]
    weights_hashes: Annotated[tuple[str, ...], "replica"]
    missing: tuple[str, ...]
    steps: tuple[str, ...]
    # No `better`: the context-free predictor is a scale. `calibration` has the strongest baseline of the task.
    kl_bits: Annotated[Estimate, NonNegative("replica", unit="bits", label=_KL)]
    entropy_mae_bits: Annotated[Estimate, NonNegative("replica", unit="bits", label=_ERROR)]
    curve_kl_bits: Annotated[Float[np.ndarray, "replica step"], Unit("bits")]
    curve_loss_nats: Annotated[Float[np.ndarray, "replica step"], Unit("nats")]
    mean_kl_bits: Annotated[Estimate, NonNegative(unit="bits", label=f"{_KL}, mean")]
    mean_entropy_mae_bits: Annotated[Estimate, NonNegative(unit="bits", label=f"{_ERROR}, mean")]
    spread_kl_bits: Annotated[Estimate, Quantity(unit="bits", label=f"{_KL}, standard deviation")]
    spread_entropy_mae_bits: Annotated[Estimate, Quantity(unit="bits", label=f"{_ERROR}, standard deviation")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        shown = ("mean_kl_bits", "mean_entropy_mae_bits", "spread_kl_bits", "spread_entropy_mae_bits")
        quantities = quantities_of(type(self))
        seeds = count_text(len(self.replicas), "seed")
        return tuple(headline_of(self, m, label=f"{quantities[m].label} of {seeds}") for m in shown)

    def panels(self) -> "Sequence[Panel]":
        from bayesgeom.charts.curves import Curve, add_curves
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.charts.lines import add_note
        from bayesgeom.report.panels import Panel
        from bayesgeom.report.theme import log_axes

        titles = ("KL over training", "Loss over training", "KL by seed", "Entropy error by seed")
        panels = [Panel.blank(title, height=380) for title in titles]
        steps = np.array([int(step) for step in self.steps], dtype=float)
        drawn = ((self.curve_kl_bits, "KL (bits, log scale)"), (self.curve_loss_nats, "loss (nats)"))
        for panel, (values, unit) in zip(panels, drawn, strict=False):
            curves = [
                Curve(name=n, values=v) for n, v in zip(self.replicas, values, strict=True) if np.isfinite(v).any()
            ]
            if curves:
                add_curves(panel.figure, steps, curves, unit=unit, log_steps=True)
            else:
                add_note(panel.figure, "no training kept its log")
        log_axes(panels[0].figure)
        labels = [name.removeprefix(self.recipe).lstrip("-") or "seed0" for name in self.replicas]
        labels = [*labels, "mean over seeds"]
        scored = ((self.kl_bits, self.mean_kl_bits, _KL), (self.entropy_mae_bits, self.mean_entropy_mae_bits, _ERROR))
        for panel, (rows, mean, label) in zip(panels[2:], scored, strict=True):
            low, high = (np.append(*ends) for ends in zip(rows.ends, mean.ends, strict=True))
            values = np.append(rows.value, mean.value)
            add_forest(panel.figure, labels, values, (low, high), unit=f"{label} (bits)", levels={})
            panel.figure.update_xaxes(rangemode="tozero")  # a difference of 1e-5 bits is no split between seeds
        return panels

    def table(self) -> str:
        """Return one line per seed, then mean and spread."""
        rows: list[tuple[str, ...]] = [("seed", "KL (bits)", "entropy error (bits)", "weights")]
        for at, name in enumerate(self.replicas):
            rows.append((name, self.kl_bits[at].text(), self.entropy_mae_bits[at].text(), self.weights_hashes[at]))
        means = (self.mean_kl_bits, self.mean_entropy_mae_bits)
        spreads = (self.spread_kl_bits, self.spread_entropy_mae_bits)
        for what, both in (("mean", means), ("spread", spreads)):
            rows.append((what, *(number_text(float(own)) for own in both), ""))
        return "\n".join(aligned_table(rows))


def replication_report(
    recipe: str, replicas: Sequence[Replica], *, missing: Sequence[str], seed: int
) -> ReplicationReport:
    """Return the report: scores by seed with intervals over sequences, their mean with an interval over seeds."""
    n = len(replicas[0].scores.kl_bits)
    steps = sorted({step for own in replicas for step in own.log})
    logs = np.array([[own.log.get(step, (np.nan, np.nan)) for step in steps] for own in replicas]).reshape(
        len(replicas), len(steps), 2
    )
    scores = [own.scores for own in replicas]
    kl = _by_seed([own.kl_bits for own in scores], [own.context_free_kl_bits for own in scores], seed)
    error = _by_seed(
        [own.entropy_error_bits for own in scores], [own.context_free_entropy_error_bits for own in scores], seed
    )
    return ReplicationReport(
        recipe=recipe,
        replicas=tuple(own.name for own in replicas),
        weights_hashes=tuple(own.scores.weights_hash for own in replicas),
        missing=tuple(missing),
        steps=tuple(map(str, steps)),
        kl_bits=kl,
        entropy_mae_bits=error,
        curve_kl_bits=logs[:, :, 0],
        curve_loss_nats=logs[:, :, 1],
        mean_kl_bits=_mean(kl),
        mean_entropy_mae_bits=_mean(error),
        spread_kl_bits=_spread(kl),
        spread_entropy_mae_bits=_spread(error),
        n=n,
    )


def _by_seed(
    scores: Sequence[Float[np.ndarray, " sequence"]], free: Sequence[Float[np.ndarray, " sequence"]], seed: int
) -> Estimate:
    """Return the mean over sequences of every training, with the context-free predictor as baseline."""
    level = np.stack(free).mean(axis=1)
    return mean_estimate(np.stack(scores, axis=1), seed=seed, baselines=[Baseline.of("baseline", CONTEXT_FREE, level)])


def _mean(own: Estimate) -> Estimate:
    """Return the mean over trainings with Student's interval."""
    free = float(own.baseline(CONTEXT_FREE).value.mean())
    level = Baseline.of("baseline", CONTEXT_FREE, free)
    n = len(own.value)
    reason = Reason.ONE_TRAINING if n < 2 else None
    ends = seed_interval(own.value)
    return Estimate.of(own.value.mean(), ends, resampled="trainings", n=n, baselines=[level], reason=reason)


def _spread(own: Estimate) -> Estimate:
    """Return the standard deviation over trainings; NaN for one."""
    return Estimate.of(own.value.std(ddof=1) if len(own.value) > 1 else np.nan, n=len(own.value))
