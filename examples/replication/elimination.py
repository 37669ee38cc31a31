"""`elimination`: which layer rules out which answers? Read by the logit lens, where evidence makes answers impossible.

An answer of exact probability 0 is *eliminated* at the first stage from which the lens gives it less than a tenth of
the mean probability of the possible answers, at every later stage too. If layers eliminate one after another, each of
them eliminates some answers entirely and leaves the others. The alternative is that all answers fade together: the
logits move from the embedding's to the output's along a straight line, as far by each layer as the layer's KL says. The
baseline "interpolated logits" has the same KL after every layer, and eliminates most answers at once.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 ("sequential Bayesian elimination").
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from bayesgeom.core.run import LOGIT_LENS, Run
from bayesgeom.measurements.base import Control, Needs, Probe, planted_run, planted_trials, with_untrained
from bayesgeom.measurements.posterior_lens import stages_of
from bayesgeom.report.estimate import Baseline, Estimate, Share, Unit, smooth_estimate, with_interval
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import jackknife_weights, ratio_interval
from bayesgeom.stats.information import kl_bits

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel

ELIMINATED = 0.1  # of the mean probability of the possible answers
IMPOSSIBLE = 1e-9
GROUPS = ("answer", "position")
INTERPOLATED, SHUFFLED = "interpolated logits", "shuffled answers"
_EXPLAINED = "variance of the eliminating layer explained by"
_HALVINGS = 30
Logs = Float64[Tensor, "batch query_pos answer"]


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class EliminationReport(Report):
    """Which layer eliminates the answers that the evidence rules out.

    Fields: `eliminated` is the share of the ruled-out answers that are eliminated after each stage, over sequences and
    positions, and `by_layer` the share that each layer eliminates. `explained` is the share of the variance of the
    eliminating layer, among those that are eliminated, that the identity of the answer explains, or the scored
    position. All are NaN on tasks that rule out no answer. `layer_of_answer` is the mean layer (from 0; −1 is the
    embedding) that eliminates each answer.
    """

    name: ClassVar[str] = "elimination"
    title: ClassVar[str] = "Elimination: which layer rules out which answers?"

    eliminated: Annotated[Estimate, Share("stage", better="higher", label="ruled-out answers eliminated")]
    by_layer: Annotated[Estimate, Share("layer", label="ruled-out answers that the layer eliminates")]
    explained: Annotated[Estimate, Share("group", better="higher", label=_EXPLAINED)]
    layer_of_answer: Annotated[Float[np.ndarray, " answer"], Unit("1")]
    stages: tuple[str, ...]
    groups: tuple[str, ...]
    n: int

    def headlines(self) -> Sequence[Headline]:
        if np.isnan(self.by_layer.value).all():
            return [headline_of(self, "eliminated", (-1,))]
        (at,), own = self.by_layer.extreme("largest")
        label = f"most that one layer eliminates, layer {at}"
        first = headline_of(self, "by_layer", (at,), label, own=own, chosen_of=len(self.by_layer.value))
        return [
            first,
            *(headline_of(self, "explained", (at,), f"{_EXPLAINED} {own}") for at, own in enumerate(self.groups)),
        ]

    def panels(self) -> "Sequence[Panel]":
        from bayesgeom.charts.lines import add_estimate, label_layers
        from bayesgeom.report.panels import Panel
        from bayesgeom.report.theme import label_axes

        panel, x = Panel.blank("Ruled-out answers eliminated, by layer"), np.arange(-1, len(self.stages) - 1)
        add_estimate(panel.figure, x, self.eliminated, name="logit lens")
        label_layers(panel.figure, len(self.stages) - 1)
        label_axes(panel.figure, "read after layer (emb: the embedding)", "share eliminated")
        return [panel]


@final
@dataclass(frozen=True)
class Elimination(Probe[EliminationReport]):
    """Find the layer that eliminates each ruled-out answer."""

    name: ClassVar[str] = "elimination"
    needs: ClassVar[Needs] = Needs(sites=(LOGIT_LENS,), posterior=True)

    def measure(self, run: Run, untrained: Sequence[EliminationReport] = ()) -> EliminationReport:
        exact = run.trials.at_scored(run.trials.predictive).double()
        read = [own.double() for own in (*run.at(LOGIT_LENS), run.log_answers)]
        stages, dead = len(read), np.asarray((exact < IMPOSSIBLE).cpu().numpy())
        at, alike = eliminated_at(exact, read), eliminated_at(exact, interpolated(exact, read))
        counts, line = _counts(at, dead, stages), _counts(alike, dead, stages).sum(axis=0)
        ruled_out = dead.sum(axis=(1, 2)).astype(float)[:, None]

        def of(sums: Float64[np.ndarray, "sequence stage"], level: Float64[np.ndarray, " stage"]) -> Estimate:
            if not dead.any():
                unknown = _unknown(len(level))
                return Estimate.of(unknown, (unknown, unknown), n=len(at))
            found = ratio_interval(sums, ruled_out, seed=run.seed, is_positive=True, bounds=(0.0, 1.0))
            levels = [Baseline.of("baseline", INTERPOLATED, level / dead.sum())]
            return with_interval(sums.sum(axis=0) / dead.sum(), found, n=len(at), baselines=levels)

        report = EliminationReport(
            eliminated=of(counts.cumsum(axis=1), line.cumsum()),
            by_layer=of(counts[:, 1:], line[1:]),
            explained=_explained(at, dead & (at < stages), seed=run.seed),
            layer_of_answer=_means(at - 1.0, dead & (at < stages)),
            stages=stages_of(stages - 1),
            groups=GROUPS,
            n=len(at),
        )
        return with_untrained(report, untrained, "eliminated", "by_layer")

    def controls(self) -> Iterator[Control[EliminationReport]]:
        rng = np.random.default_rng(0)
        alive = rng.random((61, 5, 6)) < 0.5
        alive[..., 5] = True
        exact = alive / alive.sum(axis=-1, keepdims=True)
        trials = planted_trials(exact, rng.integers(7, size=(61, 5)))
        final = np.where(alive, 0.0, -9.0)

        def run_of(*layers: Float[np.ndarray, "batch query_pos answer"]) -> Run:
            logs = [torch.from_numpy(own).log_softmax(dim=-1) for own in layers]
            return planted_run(trials, {LOGIT_LENS: torch.stack(logs[:-1])}, model=logs[-1].exp())

        parts = [np.where(np.arange(6) < bound, final, 0.0) for bound in (0, 2, 4)]
        yield Control(
            label="each layer eliminates its own answers, entirely",
            run=run_of(*parts, final),
            holds=lambda r: bool(r.by_layer.value.max() < 0.5 and r.explained.value[0] > 0.99 > r.explained.value[1]),
        )
        # The KL falls as it does above, layer by layer; a reading of the KL alone would call this an elimination.
        yield Control(
            label="all answers fade together",
            run=run_of(*(share * final for share in (0.0, 0.1, 0.2)), final),
            holds=lambda r: bool(r.by_layer.value.max() == 1 and np.allclose(r.by_layer.value, _line(r))),
        )
        yield Control(
            label="the output rules out what the evidence does, and the layers before it nothing",
            run=run_of(0 * final, 0 * final, 0 * final, final),
            holds=lambda r: bool((r.by_layer.value == [0, 0, 1]).all()),
        )


def eliminated_at(exact: Logs, read: Sequence[Logs]) -> Int64[np.ndarray, "sequence position answer"]:
    """Return the first stage from which each answer has less than a tenth of the mean of the possible ones.

    Args:
        exact: The exact predictive; answers of probability 0 are ruled out.
        read: The log-probabilities at each stage.

    Returns:
        The stage; the number of stages for an answer that is never eliminated.
    """
    possible = exact >= IMPOSSIBLE
    gone = []
    for own in read:
        mean = own.masked_fill(~possible, -torch.inf).logsumexp(-1) - possible.sum(-1).log()
        gone.append(own < mean[..., None] + np.log(ELIMINATED))
    stays = torch.stack(gone).flip(0).cumprod(dim=0).sum(dim=0)
    return np.asarray((len(read) - stays).cpu().numpy())


def interpolated(exact: Logs, read: Sequence[Logs]) -> list[Logs]:
    """Return logits on the line from the embedding's to the output's with each stage's mean KL to the exact predictive.

    A stage whose KL is not between those of the two ends is that end.
    """
    first, last = read[0], read[-1]
    found = []
    for own in read:
        wanted, low, high = kl_bits(exact, own).mean(), 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            level = kl_bits(exact, torch.lerp(first, last, middle).log_softmax(-1)).mean()
            low, high = (middle, high) if level > wanted else (low, middle)
        found.append(torch.lerp(first, last, high).log_softmax(-1))
    return [*found[:-1], last]


def _line(report: EliminationReport) -> np.ndarray:
    return np.asarray(report.by_layer.baseline(INTERPOLATED).value)


def _unknown(n: int) -> Float64[np.ndarray, " stage"]:
    return np.full(n, np.nan)


def _counts(
    at: Int64[np.ndarray, "sequence position answer"], dead: Bool[np.ndarray, "sequence position answer"], stages: int
) -> Float64[np.ndarray, "sequence stage"]:
    """Return how many ruled-out answers of a sequence are eliminated at each stage."""
    return np.stack([((at == stage) & dead).sum(axis=(1, 2)) for stage in range(stages)], axis=1).astype(float)


def _means(
    at: Float64[np.ndarray, "sequence position answer"], dead: Bool[np.ndarray, "sequence position answer"]
) -> Float64[np.ndarray, " answer"]:
    n = dead.sum(axis=(0, 1))
    totals: Float64[np.ndarray, " answer"] = np.divide(
        (at * dead).sum(axis=(0, 1)), n, out=_unknown(len(n)), where=n > 0
    )
    return totals


def _explained(
    at: Int64[np.ndarray, "sequence position answer"], dead: Bool[np.ndarray, "sequence position answer"], *, seed: int
) -> Estimate:
    """Return the share of the variance of the eliminating stage between answers, and between positions."""
    if not dead.any():
        return Estimate.of(_unknown(2), (_unknown(2), _unknown(2)), n=len(at))
    weights, x = jackknife_weights(len(at)) * len(at), at * dead.astype(float)
    parts = []
    for axis in (1, 2):  # the sums of each answer, then of each position
        count, total = weights @ dead.sum(axis=axis), weights @ x.sum(axis=axis)
        mean = total.sum(axis=1) / count.sum(axis=1)
        whole = weights @ (x**2).sum(axis=(1, 2)) - count.sum(axis=1) * mean**2
        squares = np.divide(total**2, count, out=np.zeros_like(total), where=count > 0)
        between = squares.sum(axis=1) - count.sum(axis=1) * mean**2
        parts.append(np.divide(between, whole, out=np.full(len(whole), np.nan), where=whole > 1e-9))
    rows = np.stack(parts, axis=1).clip(0.0, 1.0)
    rng = np.random.default_rng(seed)
    shuffled = at.copy()
    for row, kept in zip(shuffled.reshape(-1, at.shape[-1]), dead.reshape(-1, at.shape[-1]), strict=True):
        row[kept] = rng.permutation(row[kept])
    means, n = _means(shuffled.astype(float), dead), dead.sum(axis=(0, 1))
    values, center = at[dead].astype(float), at[dead].mean()
    spread = ((values - center) ** 2).sum()
    level = float(np.nansum(n * (means - center) ** 2) / spread) if spread > 0 else np.nan
    levels = [Baseline.of("permutation", SHUFFLED, np.array([level, np.nan]))]
    if np.isnan(rows).any():  # one layer eliminates them all
        return Estimate.of(rows[0], (_unknown(2), _unknown(2)), n=len(at), baselines=levels)
    return smooth_estimate(rows, seed=seed, n=len(at), baselines=levels, scale="share")
