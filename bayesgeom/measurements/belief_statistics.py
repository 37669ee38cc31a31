"""Belief statistics: can a linear map decode what summarizes the belief, such as its mean and log variance?

Only tasks that declare statistics are measured. Each is read by a map of its own, as the belief is in `belief_readout`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import RESID_POST, RESID_PRE, STATE, Run, Trials, Verdict
from bayesgeom.measurements._beliefs import (
    ANSWERS,
    IDENTIFIED,
    LOG_ANSWERS,
    Clouds,
    clouds_of,
    compared_scores,
    next_token_score,
    read_layers,
    readout_panel,
    shuffles,
)
from bayesgeom.measurements.base import Control, Needs, Probe, planted_run, planted_trials, with_untrained
from bayesgeom.report.estimate import R2, Baseline, Estimate, Unit, stacked
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.report.theme import MEASURED, label_axes
from bayesgeom.stats.readout import BELIEF, belief_targets

N_DOTS = 300  # held-out points that are drawn


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BeliefStatisticsReport(Report):
    """Named statistics of the belief are read one by one, each by a linear map fitted on half of the sequences.

    R² is 1 if the statistic is decoded exactly, and 0 if the map is no better than its average. Compare with the gray
    lines: those of the belief read-out, and log probabilities of the next token. These an accurate network unembeds
    linearly: where a map from them gives the statistic, its read-out is not identified.

    Fields: linear read-out of each of the task's `statistics`, by site and layer, on held-out sequences.

    `sites` are `resid_post`, and `state` for recurrent models. `statistic_r2` is at most 1, and 0 for the mean; its
    random subspaces have one dimension. `drawn_statistic` are exact values at some held-out points, and
    `read_statistic` their predictions from the last layer.
    """

    name: ClassVar[str] = "belief_statistics"
    title: ClassVar[str] = "Belief statistics: are they linear in the activations?"
    limit: ClassVar[str] = "at most 3,072 scored positions"

    statistic_r2: Annotated[Estimate, R2("statistic site layer", better="higher", label="R² of a statistic")]
    drawn_statistic: Annotated[Float[np.ndarray, "statistic held_point"], Unit("1")]
    read_statistic: Annotated[Float[np.ndarray, "statistic site held_point"], Unit("1")]
    statistics: tuple[str, ...]
    sites: tuple[str, ...]
    n: int

    def headlines(self) -> Sequence[Headline]:
        lines = []
        answers = [level.value for level in self.statistic_r2.baselines if level.name in (ANSWERS, LOG_ANSWERS)]
        for at, name in enumerate(self.statistics):
            is_given = any(level[at, 0, -1] >= IDENTIFIED for level in answers)
            verdict = str(Verdict.NOT_IDENTIFIED) if is_given else None
            label = f"R² of the {name.replace('_', ' ')}, last layer"
            lines.append(headline_of(self, "statistic_r2", (at, 0, -1), label, verdict=verdict))
        return lines

    def panels(self) -> Sequence[Panel]:
        """Return each statistic as it is read in the last layer against its exact value, then its R² by layer."""
        from bayesgeom.charts.lines import add_reference, brief

        layers, panels = [str(layer) for layer in range(self.statistic_r2.value.shape[2])], []
        for (at, name), (row, site) in product(enumerate(self.statistics), enumerate(self.sites)):
            exact, read, r2 = self.drawn_statistic[at], self.read_statistic[at, row], self.statistic_r2[at, row]
            label = name.replace("_", " ")
            title = f"The {label} read from {site} in the last layer: R² {brief(r2.value[-1])}"
            panel, ends = Panel.blank(title, is_folded=row > 0), np.array([exact.min(), exact.max()])
            add_reference(panel.figure, ends, ends, name="exact")
            marker = {"size": 4, "opacity": 0.6, "color": MEASURED}
            panel.figure.add_scatter(x=exact.round(4), y=read.round(4), mode="markers", name="read", marker=marker)
            label_axes(panel.figure, f"exact {label}", "read by a linear map")
            axes = ("layer", "held-out R² (1 is exact)")
            by_layer = readout_panel(f"The {label} by a linear map, R²", site * (row > 0), axes, layers, r2, at=-1)
            panels += [panel, replace(by_layer, is_folded=row > 0)]
        return panels


@final
@dataclass(frozen=True)
class BeliefStatistics(Probe[BeliefStatisticsReport]):
    """Fit on the first half of the sequences and score on the rest, as `belief_readout` does."""

    name: ClassVar[str] = "belief_statistics"
    follows: ClassVar[str] = "belief_readout"
    needs: ClassVar[Needs] = Needs(
        sites=(RESID_POST,), optional=(RESID_PRE, STATE), partial=(STATE,), posterior=True, statistics=True
    )
    relative_time: ClassVar[int] = 5

    def measure(self, run: Run, untrained: Sequence[BeliefStatisticsReport] = ()) -> BeliefStatisticsReport:
        clouds = clouds_of(run)
        stated = (clouds.trials.at_scored(values).cpu() for values in clouds.trials.statistics.values())
        scores, exact, read = zip(*(_read(clouds, values) for values in stated), strict=True)
        report = BeliefStatisticsReport(
            statistic_r2=stacked(scores),
            drawn_statistic=np.stack(exact),
            read_statistic=np.stack(read),
            statistics=tuple(clouds.trials.statistics),
            sites=clouds.sites,
            n=len(clouds.trials),
        )
        return with_untrained(report, untrained, "statistic_r2")

    def controls(self) -> Iterator[Control[BeliefStatisticsReport]]:
        rng = np.random.default_rng(0)
        belief, noise = rng.dirichlet(np.ones(3), size=(83, 5)), rng.normal(size=(83, 5, 7))
        trials = planted_trials(belief, rng.integers(7, size=(83, 11)))

        def stated(**values: Float64[np.ndarray, "sequence position"]) -> Trials:
            padded = {name: np.pad(each, ((0, 0), (6, 0))) for name, each in values.items()}
            return replace(trials, statistics={name: torch.from_numpy(each) for name, each in padded.items()})

        values = {name: rng.normal(size=(83, 5)) for name in ("mean", "log_variance")}
        codes = rng.normal(size=(2, 7))
        mean = values["mean"][:, :, None] * codes[0] + 0.01 * noise
        layers = np.stack([mean, mean + values["log_variance"][:, :, None] * codes[1]])
        yield Control(
            label="the mean, then mean and log variance",
            run=planted_run(stated(**values), {RESID_POST: torch.from_numpy(layers)}),
            holds=lambda r: bool(
                min(*r.statistic_r2.value[0, 0], r.statistic_r2.value[1, 0, 1]) > 0.99
                and abs(r.statistic_r2.value[1, 0, 0]) < 0.1
            ),
        )
        answered = belief @ np.array([-1.0, 0.0, 1.0])
        yield Control(
            label="a mean that the exact answers give, so that its read-out is not identified",
            run=planted_run(
                stated(mean=answered),
                {RESID_POST: torch.from_numpy(answered[:, :, None] * codes[0] + 0.01 * noise)[None]},
            ),
            holds=lambda r: bool(
                r.statistic_r2.value[0, 0, 0] > 0.99 and r.headlines()[0].verdict == Verdict.NOT_IDENTIFIED
            ),
        )


def _read(
    clouds: Clouds, values: Float64[Tensor, "sequence position"]
) -> tuple[Estimate, Float64[np.ndarray, " held_point"], Float64[np.ndarray, "site held_point"]]:
    """Return R² of a statistic, and exact and read values in the last layer at some held-out points."""
    trials, seed = clouds.trials, clouds.seed
    rows = torch.zeros(*values.shape, 3, 1, dtype=torch.float64)  # no hypotheses: the other kinds are empty
    rows[:, :, BELIEF, 0] = values
    targets = belief_targets(shuffles(rows, seed), n_fit=clouds.n_fit, is_signed=True)
    readouts = [read_layers(points, targets, 1, seed) for points in clouds.points]
    next_token, logs = (next_token_score(trials, targets, seed, of_logs=of_logs) for of_logs in (False, True))
    low, high = logs.ends
    level = Baseline.of("baseline", LOG_ANSWERS, logs.value, low=low, high=high)
    r2 = compared_scores(readouts, targets, next_token, [level], clouds)["r2"]
    truth = targets.held_out[:, :, 0, BELIEF].double().flatten().numpy()
    chosen = np.sort(np.random.default_rng(seed).permutation(len(truth))[:N_DOTS])
    return r2, truth[chosen], np.stack([layers[-1].predicted_belief.flatten()[chosen] for layers in readouts])
