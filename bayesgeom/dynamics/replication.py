"""The replication report: one recipe under several seeds, its scores, their spread, and every seed's curve."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.results.cells import number_cell
from bayesgeom.results.report import Headline, Report, aligned
from bayesgeom.stats.bootstrap import mean_interval, seed_interval
from bayesgeom.training.scores import Scores

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_SCORED = {  # the scores behind each number, and those of its null
    "kl_bits": ("kl_bits", "context_free_kl_bits"),
    "entropy_mae_bits": ("entropy_error_bits", "context_free_entropy_error_bits"),
}
METRICS = tuple(_SCORED)
_LABELS = {"kl_bits": "KL(exact ‖ model)", "entropy_mae_bits": "entropy error"}


@final
@dataclass(frozen=True, kw_only=True)
class Replica:
    """One training: its scores, and its log: steps, KL, loss."""

    name: str
    scores: Scores
    log: Mapping[int, tuple[float, float]]


@final
@dataclass(frozen=True, kw_only=True)
class ReplicationReport(Report):
    """One row per seed, all scored on the same sequences; intervals of rows are over sequences.

    `mean_…` is over seeds with Student's interval, NaN for one; `spread_…` is their standard deviation. `curve_kl_bits`
    is each training's own log, on 256 held-out sequences of its own; NaN where no log was kept.
    """

    name: ClassVar[str] = "replication"
    title: ClassVar[str] = "The same training under several seeds"
    about: ClassVar[str] = (
        "Data and initialisation are drawn anew, all else is the same recipe. Dots are single trainings "
        "with intervals over sequences, which say nothing of other seeds; the mean's interval is over seeds "
        "(Student's). The null is the best predictor that reads nothing. The curves are the "
        "trainings' own logs."
    )

    recipe: str
    replicas: tuple[str, ...]
    weights_hashes: tuple[str, ...]
    missing: tuple[str, ...]
    steps: tuple[str, ...]
    kl_bits: Float[np.ndarray, " replica"]
    kl_bits_lo: Float[np.ndarray, " replica"]
    kl_bits_hi: Float[np.ndarray, " replica"]
    kl_bits_null: Float[np.ndarray, " replica"]
    entropy_mae_bits: Float[np.ndarray, " replica"]
    entropy_mae_bits_lo: Float[np.ndarray, " replica"]
    entropy_mae_bits_hi: Float[np.ndarray, " replica"]
    entropy_mae_bits_null: Float[np.ndarray, " replica"]
    curve_kl_bits: Float[np.ndarray, "replica step"]
    curve_loss_nats: Float[np.ndarray, "replica step"]
    mean_kl_bits: float
    spread_kl_bits: float
    mean_entropy_mae_bits: float
    spread_entropy_mae_bits: float
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        of = f"of {len(self.replicas)} seed(s)"
        means = (
            self.scalar(f"mean_{m}", f"{_LABELS[m]}, mean {of}", unit="bits", null_label="context-free")
            for m in METRICS
        )
        spreads = (self.scalar(f"spread_{m}", f"{_LABELS[m]}, standard deviation {of}", unit="bits") for m in METRICS)
        return (*means, *spreads)

    def figure(self) -> "Figure":
        from bayesgeom.charts.curves import Curve, add_curves
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.charts.heads import add_note
        from bayesgeom.results.theme import name_once, panels, with_room_for_legend

        titles = ("KL over training", "Loss over training", "KL by seed", "Entropy error by seed")
        figure = panels(f"{self.title} — {self.recipe}", titles, row_height=380)
        steps = np.array([int(step) for step in self.steps], dtype=float)
        drawn = ((self.curve_kl_bits, "KL (bits, log scale)"), (self.curve_loss_nats, "loss (nats)"))
        for column, (values, unit) in enumerate(drawn, start=1):
            curves = [
                Curve(name=n, values=v) for n, v in zip(self.replicas, values, strict=True) if np.isfinite(v).any()
            ]
            if curves:
                add_curves(figure, (1, column), steps, curves, unit=unit, log_steps=True)
            else:
                add_note(figure, (1, column), "no training kept its log")
        figure.update_yaxes(type="log", exponentformat="power", row=1, col=1)
        for column, metric in enumerate(METRICS, start=1):
            of, (lo, hi) = vars(self), self.intervals[f"mean_{metric}"]
            ends = (np.append(of[f"{metric}_lo"], lo), np.append(of[f"{metric}_hi"], hi))
            values = np.append(of[metric], of[f"mean_{metric}"])
            # The recipe stands in the title; its name before every seed would reach into the panel to the left.
            labels = [name.removeprefix(self.recipe).lstrip("-") or "seed0" for name in self.replicas]
            labels = [*labels, "mean over seeds"]
            add_forest(figure, (2, column), labels, values, ends, unit=f"{_LABELS[metric]} (bits)", null=0.0)
        name_once(figure)
        return with_room_for_legend(figure)

    def table(self) -> str:
        """What the command line prints: one line per seed, then mean and spread."""
        rows: list[tuple[str, ...]] = [("seed", "KL (bits)", "entropy error (bits)", "weights")]
        for at, name in enumerate(self.replicas):
            cells = (str(self.entry(metric, (at,), "")).strip().split(";")[0] for metric in METRICS)
            rows.append((name, *cells, self.weights_hashes[at]))
        below = ("mean", "spread")
        rows += [(what, *(number_cell(vars(self)[f"{what}_{metric}"]) for metric in METRICS), "") for what in below]
        return "\n".join(aligned(rows))


def replication_report(
    recipe: str, replicas: Sequence[Replica], *, missing: Sequence[str], seed: int
) -> ReplicationReport:
    """Scores by seed with intervals over sequences, their mean with one over seeds, and the logs on common steps."""
    n = len(replicas[0].scores.kl_bits)
    steps = sorted({step for own in replicas for step in own.log})
    logs = np.array([[own.log.get(step, (np.nan, np.nan)) for step in steps] for own in replicas]).reshape(
        len(replicas), len(steps), 2
    )
    found, intervals, nulls = dict[str, Any](), dict[str, tuple[float, float]](), dict[str, float]()
    for metric, names in _SCORED.items():
        scores, free = (np.stack([vars(own.scores)[field] for own in replicas]) for field in names)
        by_seed = scores.mean(axis=1)
        lo, hi = mean_interval(scores.T, seed=seed)
        null = free.mean(axis=1)
        found |= {metric: by_seed, f"{metric}_lo": lo, f"{metric}_hi": hi, f"{metric}_null": null}
        ends = seed_interval(by_seed)
        found[f"mean_{metric}"] = float(by_seed.mean())
        found[f"spread_{metric}"] = float(by_seed.std(ddof=1)) if len(by_seed) > 1 else float("nan")
        intervals[f"mean_{metric}"] = (float(ends[0]), float(ends[1]))
        nulls[f"mean_{metric}"] = float(null.mean())
    return ReplicationReport(
        recipe=recipe,
        replicas=tuple(own.name for own in replicas),
        weights_hashes=tuple(own.scores.weights_hash for own in replicas),
        missing=tuple(missing),
        steps=tuple(map(str, steps)),
        curve_kl_bits=logs[:, :, 0],
        curve_loss_nats=logs[:, :, 1],
        intervals=intervals,
        nulls=nulls,
        n=n,
        **found,
    )
