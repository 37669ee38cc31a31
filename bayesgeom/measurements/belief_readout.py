"""Belief read-out: can a linear map decode the exact belief from the activations?

A decodable belief need not be used, and vectors with many dimensions allow much decoding by chance. Each number is
therefore compared with a shuffle within position, random subspaces of the same rank, and untrained networks.

References:
    Shai et al. 2024, arXiv:2405.15943 (linear maps from residuals to beliefs; the simplex of Mess3).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64

from bayesgeom.core import RESID_POST, RESID_PRE, STATE, Run, Trials, Verdict
from bayesgeom.core.observers import STARTS, window_beliefs
from bayesgeom.measurements._beliefs import (
    EMBEDDING,
    IDENTIFIED,
    SHUFFLES,
    Clouds,
    clouds_of,
    compared_scores,
    linear_scores,
    next_token_score,
    read_layers,
    rows_of,
    site_panels,
    targets_of,
)
from bayesgeom.measurements.base import (
    Control,
    Needs,
    Probe,
    known,
    planted_chain,
    planted_run,
    planted_trials,
    with_untrained,
)
from bayesgeom.report.estimate import R2, Baseline, Estimate, Share, Unit, with_interval
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import r2_interval
from bayesgeom.stats.mixed_states import belief_states
from bayesgeom.stats.readout import BELIEF, BeliefTargets, Readout, belief_targets, read_out
from bayesgeom.stats.windows import WIDEST_BASELINE

RANDOM_LABELS = "random labels by token"
STAGES = ("layer 0", "last layer", "last layer of an untrained network")
_FIRST, _LAST, _UNTRAINED = range(3)
MAX_CORNERS = 24  # with more hypotheses, beliefs are not stored for a plot
N_DRAWN = 1_000  # held-out beliefs
MOST_REACHABLE = 2_000  # beliefs of a process that are drawn
WIDTHS = (1, 2, 3, 4, 10)  # symbols of the window observers whose beliefs are compared


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BeliefReadoutReport(Report):
    """A linear map from the vectors to the exact belief is fitted on half of the sequences, and tested on the others.

    R² is 1 if the belief is decoded exactly, and 0 if the map is no better than the average belief. A decodable belief
    need not be used, and some decoding is possible by chance. Compare with the gray lines: beliefs exchanged between
    sequences at the same position (the effect of position alone), random subspaces with as many dimensions as there are
    hypotheses, and untrained networks. Where the answers are not the hypotheses, the exact distribution of the next
    token is a gray line too: if it gives the belief through a linear map, any accurate network holds the belief, and
    the read-out is not identified. On tasks with latent dynamics, so is the belief of an observer of the last few
    symbols. "Surviving hypotheses" are those still possible. For labels of your own, another gray line is the same map
    to random labels, drawn for each token with the frequencies of yours: what the map learns from the token alone.

    The first panels plot the beliefs. Up to six hypotheses are the corners of a polygon: a corner is certainty, and a
    color is the same exact belief in every panel. More are the rows of a heat map, one column per position, in the same
    order in every panel. A correct read-out looks like the exact belief.

    Fields: linear read-out of the exact belief, by site and layer.

    `sites` are `resid_post`, and `state` for recurrent models. `drawn_belief` are exact beliefs at held-out points, and
    `drawn_readout` their linear predictions at each of the `stages`, neither clipped nor renormalized. Both are empty
    if there are too many hypotheses to plot. `reachable_belief` are the beliefs that sequences of a process can reach,
    up to 2,000, and `n_beliefs` how many there are in all; −1 if these are not all, or for other tasks. Beliefs of a
    generalized process may be negative: they are not plotted, and of their scores only `r2` is known.

    Scores are on held-out sequences. `r2` is at most 1, and 0 for the mean belief. `total_variation` (0 to 1) compares
    the prediction, clipped at 0 and renormalized, with the belief. `balanced_accuracy` (½ at chance) is for predicting
    which hypotheses are still possible, NaN if all are. Random subspaces have `subspace_rank` dimensions and a 95 %
    range over draws.

    `next_token_r2` is the R² of a linear map from the exact predictive to the belief, fitted and scored as for the
    vectors; NaN where the predictive is the belief. On tasks with latent dynamics, `window_r2` is the R² of the belief
    of an observer that sees only the last w symbols, without a map, and `window_map_r2` that of a linear map from it,
    fitted and scored as for the vectors. The baselines of `r2` have three of them: see `window_levels`.
    """

    name: ClassVar[str] = "belief_readout"
    title: ClassVar[str] = "Belief read-out: is the posterior linear in the activations?"
    limit: ClassVar[str] = "at most 3,072 scored positions"
    stages: ClassVar[tuple[str, ...]] = STAGES

    r2: Annotated[Estimate, R2("site layer", better="higher", label="R² of the belief")]
    total_variation: Annotated[Estimate, Share("site layer", better="lower", label="total variation from the belief")]
    balanced_accuracy: Annotated[Estimate, Share("site layer", better="higher", label="surviving hypotheses")]
    next_token_r2: Annotated[Estimate, R2(better="higher", label="R² of a map from the exact next-token distribution")]
    window_r2: Annotated[Estimate, R2("window_start window", better="higher", label="R² of window observers")]
    window_map_r2: Annotated[Estimate, R2("window_start window", better="higher", label="R² of a map from them")]
    drawn_belief: Annotated[Float[np.ndarray, "point hypothesis"], Unit("1")]
    drawn_readout: Annotated[Float[np.ndarray, "stage site point hypothesis"], Unit("1")]
    reachable_belief: Annotated[Float[np.ndarray, "reachable hypothesis"], Unit("1")]
    n_beliefs: int
    sites: tuple[str, ...]
    window_starts: tuple[str, ...]
    windows: tuple[str, ...]
    subspace_rank: int
    n: int

    @property
    def identified(self) -> bool:
        """Whether the exact distribution of the next token leaves a part of the belief open."""
        return not float(self.next_token_r2) >= IDENTIFIED

    @property
    def n_held_out(self) -> int:
        """Number of held-out sequences, on which the maps are scored."""
        return self.n // 2

    def headlines(self) -> Sequence[Headline]:
        verdict = None if self.identified else str(Verdict.NOT_IDENTIFIED)
        shown = (
            ("r2", "R² of the belief"),
            ("total_variation", "total variation"),
            ("balanced_accuracy", "surviving hypotheses"),
        )
        lines = [headline_of(self, metric, (0, -1), f"{label}, last layer", verdict=verdict) for metric, label in shown]
        for row, site in enumerate(self.sites[1:], start=1):
            lines.append(headline_of(self, "r2", (row, -1), f"R² of the belief, {site}", verdict=verdict))
        return lines

    def panels(self) -> Sequence[Panel]:
        layers = [str(layer) for layer in range(self.r2.value.shape[1])]
        survive, distance = "Accuracy on surviving hypotheses", "Belief by a linear map, distance"
        shown = (
            (self.r2, "Belief by a linear map, R²", ("layer", "held-out R² (1 is exact)"), layers),
            (self.total_variation, distance, ("layer", "total variation (0 is exact)"), layers),
            (self.balanced_accuracy, survive, ("layer", "balanced accuracy (½ is chance)"), layers),
        )
        return [*self._simplexes(), *site_panels(self.sites, shown)]

    def _simplexes(self) -> Iterator[Panel]:
        """Yield simplexes of exact beliefs next to read-outs, then those of layer 0 and of an untrained network."""
        from bayesgeom.charts.lines import brief
        from bayesgeom.charts.simplex import MAX_CORNERS as POLYGON
        from bayesgeom.charts.simplex import add_simplexes

        for row, site in enumerate(self.sites):
            drawn, r2 = self.drawn_readout[:, row], self.r2.value[row]
            title, shown = f"The belief read from {site} in the last layer: R² {brief(r2[-1])}", self.reachable_belief
            n_shown = f"{'all ' * (self.n_beliefs > 0)}{len(shown):,}"
            note = f"Gray: {n_shown} reachable beliefs" if 0 < len(shown.T) <= POLYGON and len(shown) else ""
            panel = Panel.blank(title, is_folded=row > 0, note=note)
            pair = {"exact belief": self.drawn_belief, "read": drawn[_LAST]}
            add_simplexes(panel.figure, pair, self.drawn_belief, shown)
            yield panel
            panel = Panel.blank(f"The same without training, and from {site} in layer 0", is_folded=True)
            others = {"untrained, last layer": drawn[_UNTRAINED], f"layer 0, R² {brief(r2[0])}": drawn[_FIRST]}
            add_simplexes(panel.figure, others, self.drawn_belief)
            yield panel


def window_levels(window_r2: Estimate, window_map_r2: Estimate, windows: Sequence[str]) -> tuple[Baseline, ...]:
    """Return R² of window observers as baselines of `r2`: of one symbol, of up to four, and of the widest measured.

    Each has the better of its two starts, as it is or through a map, and that number's interval. The level to beat is
    therefore its upper end, as in claim Y1.

    Args:
        window_r2: R² of the observers' beliefs, by start and width.
        window_map_r2: R² of a linear map from them.
        windows: The widths.
    """
    both = [np.stack([estimate.value, *estimate.ends]) for estimate in (window_r2, window_map_r2)]
    measured = np.concatenate(both, axis=1)
    widths = [int(width) for width in windows]
    shown = {1, max((width for width in widths if width <= WIDEST_BASELINE), default=1), max(widths, default=1)}
    levels = []
    for at, width in enumerate(widths):
        if width in shown:
            value, low, high = measured[:, measured[0, :, at].argmax(), at]
            name = "belief after the current symbol alone" if width == 1 else f"belief after the last {width} symbols"
            levels.append(Baseline.of("baseline", name, value, low=low, high=high))
    return tuple(levels)


@final
@dataclass(frozen=True)
class BeliefReadout(Probe[BeliefReadoutReport]):
    """Fit on the first half of the sequences and score on the rest; at most `MAX_POINTS` points, or 16 sequences.

    A site wider than `MAX_WIDTH`, such as the state of a Mamba, is reduced to that many leading principal axes.
    Activations are stored: read-outs for several targets, penalties and shuffles use the same points.
    """

    name: ClassVar[str] = "belief_readout"
    needs: ClassVar[Needs] = Needs(sites=(RESID_POST,), optional=(RESID_PRE, STATE), partial=(STATE,), posterior=True)
    relative_time: ClassVar[int] = 6

    def measure(self, run: Run, untrained: Sequence[BeliefReadoutReport] = ()) -> BeliefReadoutReport:
        clouds = clouds_of(run)
        trials, targets = clouds.trials, targets_of(clouds)
        rank = min(trials.belief.shape[-1], *(points.shape[-1] for points in clouds.points))
        readouts = [read_layers(points, targets, rank, run.seed) for points in clouds.points]
        windows, window_r2, window_map_r2 = _windows(trials, targets, run.seed)
        next_token_r2 = next_token_score(trials, targets, run.seed)
        levels = window_levels(window_r2, window_map_r2, windows)
        linear = compared_scores(readouts, targets, next_token_r2, levels, clouds)
        if trials.is_labeled:
            for name, level in _of_random_labels(clouds).items():
                random = known(Baseline.of("permutation", RANDOM_LABELS, level))
                linear[name] = replace(linear[name], baselines=(*linear[name].baselines, *random))
        drawn_belief, drawn_readout = _drawn(readouts, targets, untrained, run.seed)
        reachable, n_beliefs = _reachable(trials)
        report = BeliefReadoutReport(
            **linear,
            next_token_r2=next_token_r2,
            window_r2=window_r2,
            window_map_r2=window_map_r2,
            drawn_belief=drawn_belief,
            drawn_readout=drawn_readout,
            reachable_belief=reachable,
            n_beliefs=n_beliefs,
            sites=clouds.sites,
            window_starts=STARTS if windows else (),
            windows=windows,
            subspace_rank=rank,
            n=len(trials),
        )
        return with_untrained(report, untrained, *linear)

    def controls(self) -> Iterator[Control[BeliefReadoutReport]]:
        rng = np.random.default_rng(0)
        # At each point one hypothesis is excluded and one of the others is slightly more probable.
        weights = rng.uniform(0.6, 1.4, size=(83, 5, 3))
        weights[rng.permuted(np.tile(np.arange(3), (83, 5, 1)), axis=2) == 0] = 0
        belief = weights / weights.sum(axis=2, keepdims=True)
        trials = planted_trials(belief, rng.integers(7, size=(83, 11)))
        noise, place = rng.normal(size=(83, 5, 7)), np.tile(np.eye(5, 7), (83, 1, 1))
        written = belief @ rng.normal(size=(3, 7))
        layers = torch.from_numpy(np.stack([noise, written, place + 0.01 * noise]))
        planted = planted_run(trials, {RESID_POST: layers})
        yield Control(label="noise, the belief, position", run=planted, holds=_tells_layers_apart)
        before = planted_run(trials, {RESID_POST: layers[:1], RESID_PRE: layers[1:2]})
        yield Control(
            label="the belief is in the embedding only",
            run=before,
            holds=lambda r: (
                r.r2.baseline(EMBEDDING).value[0, 0] > 0.99 > 0.1 > r.r2.value[0, 0]
                and r.balanced_accuracy.baseline(EMBEDDING).value[0, 0] > 0.9
            ),
        )
        # The vectors hold no more than the answers, which give the whole belief.
        answers = belief @ np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.1, 0.7]])
        answered = replace(trials, predictive=torch.from_numpy(np.pad(answers, ((0, 0), (6, 0), (0, 0)))))
        yield Control(
            label="the exact answers give the belief, so that its read-out is not identified",
            run=planted_run(answered, {RESID_POST: torch.from_numpy(answers @ rng.normal(size=(3, 7)))[None]}),
            holds=lambda r: (
                not r.identified
                and r.r2.value[0, 0] > 0.99
                and r.headlines()[0].verdict == Verdict.NOT_IDENTIFIED
                and "yes" not in r.r2.clears("higher")
            ),
        )
        for label, width, is_selective in (("by token", 11, False), ("along a direction", 2, True)):
            sides = rng.permutation(np.arange(11) % 2) if not is_selective else np.arange(11) % 2
            tokens = rng.integers(11, size=(83, 5))
            code = np.eye(11) if width == 11 else np.stack([2.0 * sides - 1, rng.normal(size=11)], axis=1)
            named = planted_trials(np.eye(2)[sides[tokens]], tokens)
            yield Control(
                label=f"labels {label}, against random labels by token",
                run=planted_run(replace(named, is_labeled=True), {RESID_POST: torch.from_numpy(code[tokens])[None]}),
                holds=partial(_tells_labels_apart, is_selective=is_selective),
            )
        # A high R² without a carried belief: the vectors encode only the current symbol.
        chain = planted_chain(stay=0.9, seed=0)
        assert chain.observers is not None
        after = [*islice(window_beliefs(chain.observers.filter, chain.at_scored(chain.belief), "stationary"), 2)][1]
        yield Control(
            label="the belief after the current symbol is read as well as that observer's",
            run=planted_run(chain, {RESID_POST: (after @ after.new_tensor(rng.normal(size=(2, 7))))[None]}),
            holds=lambda r: (
                r.r2.value[0, 0] > 0.3
                and abs(r.r2.value[0, 0] - r.window_map_r2.value[1, 0]) < 0.01 < 0.05 < 1 - r.r2.value[0, 0]
            ),
        )


def _tells_labels_apart(report: BeliefReadoutReport, *, is_selective: bool) -> bool:
    control = report.r2.baseline(RANDOM_LABELS).value[0, 0]
    return bool(report.r2.value[0, 0] > 0.99 and (control < 0.5 if is_selective else control > 0.99))


def _tells_layers_apart(report: BeliefReadoutReport) -> bool:
    noise, written, place = range(3)
    scores = (report.r2, report.total_variation, report.balanced_accuracy)
    r2, distance, surviving = (estimate.value[0] for estimate in scores)
    return bool(
        r2[written] > 0.99 > 0.1 > max(r2[[noise, place]])
        and distance[written] < 0.02 < 0.1 < distance[noise]
        and surviving[written] > 0.9
        and max(surviving[[noise, place]]) < 0.6
    )


def _of_random_labels(clouds: Clouds) -> dict[str, Float64[np.ndarray, "site layer"]]:
    """Return R² and accuracy by site and layer of maps to random labels, one for each token.

    They have the marginal of the true ones. NaN where every scored token is the same, and so has one label. Means over
    `SHUFFLES` draws of labels.
    """
    rows = rows_of(clouds.trials)
    rng, flat = np.random.default_rng(clouds.seed), rows.flatten(0, 1)
    token = torch.unique(clouds.trials.at_scored(clouds.trials.tokens).cpu(), return_inverse=True)[1]
    drawn = [flat[rng.integers(len(flat), size=int(token.max()) + 1)][token] for _ in range(SHUFFLES)]
    targets = [
        belief_targets(labels[None], n_fit=clouds.n_fit) for labels in drawn if bool((labels != labels[:1, :1]).any())
    ]
    scores = np.full((2, len(clouds.points), len(clouds.points[0])), np.nan)
    for row, points in enumerate(clouds.points if targets else ()):
        no_bases = torch.zeros(0, points.shape[2], 1, dtype=torch.float64, device=points.device)
        for at, layer in enumerate(points):
            readouts = [read_out(layer, labels, no_bases) for labels in targets]
            scores[:, row, at] = np.mean([(each.r2[0], each.balanced_accuracy[0]) for each in readouts], axis=0)
    return {"r2": scores[0], "balanced_accuracy": scores[1]}


def _windows(trials: Trials, targets: BeliefTargets, seed: int) -> tuple[tuple[str, ...], Estimate, Estimate]:
    """Return widths of window observers, and R² of their beliefs as they are and of a linear map from them.

    Empty without latent dynamics.
    """
    widths, n = [width for width in WIDTHS if width < trials.n_scored], len(trials)
    if trials.observers is None or not widths:
        nothing = Estimate.of(np.zeros((0, 0)), (0.0, 0.0), n=n)
        return (), nothing, nothing
    exact, of = trials.at_scored(trials.belief), trials.observers.filter
    every = (window_beliefs(of, exact, start) for start in STARTS)
    beliefs = [torch.stack([belief for width, belief in enumerate(of_start) if width in widths]) for of_start in every]
    readouts = [read_layers(points.flatten(1, 2), targets, points.shape[-1], seed) for points in beliefs]
    mapped = linear_scores(readouts, targets, n=n, seed=seed)["r2"]
    held_out = torch.stack(beliefs)[:, :, n - len(targets.held_out) :].cpu().numpy()
    truth, mean = targets.held_out[:, :, 0, BELIEF].double().numpy(), targets.means[0, BELIEF].double().numpy()
    error, spread = ((held_out - truth) ** 2).sum(axis=(3, 4)), ((truth - mean) ** 2).sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        ends = r2_interval(np.moveaxis(error, 2, 0), spread[:, None, None], seed=seed)
        plain = with_interval(1 - error.sum(axis=2) / spread.sum(), ends, n=n)
    return tuple(map(str, widths)), plain, replace(mapped, baselines=())


def _reachable(trials: Trials) -> tuple[Float64[np.ndarray, "reachable hypothesis"], int]:
    """Return the beliefs that the scored symbols can reach, and how many there are; none and −1 if not known."""
    n_hypotheses = trials.belief.shape[-1]
    ways = None if trials.observers is None or n_hypotheses > MAX_CORNERS else trials.observers.filter.labeled
    if trials.observers is None or ways is None or trials.is_signed:
        return np.zeros((0, n_hypotheses)), -1
    start = trials.observers.filter.priors["initial"][0]
    states = belief_states(ways, start, trials.n_scored, most=MOST_REACHABLE)
    return states.belief.numpy(), len(states) if states.is_closed else -1


def _drawn(
    readouts: Sequence[Sequence[Readout]],
    targets: BeliefTargets,
    untrained: Sequence[BeliefReadoutReport],
    seed: int,
) -> tuple[Float64[np.ndarray, "point hypothesis"], Float64[np.ndarray, "stage site point hypothesis"]]:
    """Return some held-out beliefs, and their read-outs at each of the stages.

    The last stage is the first untrained network, on the same sequences; NaN without one.
    """
    belief = targets.held_out[:, :, 0, BELIEF].flatten(0, 1).double().numpy()
    n_drawn = min(N_DRAWN, len(belief)) if belief.shape[1] <= MAX_CORNERS and not targets.is_signed else 0
    chosen = np.sort(np.random.default_rng(seed).permutation(len(belief))[:n_drawn])
    first, last = (
        np.stack([layers[which].predicted_belief.reshape(belief.shape)[chosen] for layers in readouts])
        for which in (0, -1)
    )
    before = untrained[0].drawn_readout[STAGES.index("last layer")] if untrained else np.full_like(last, np.nan)
    return belief[chosen], np.stack([first, last, before])
