"""Belief read-out: can a linear map decode the exact belief from the activations?

A decodable belief need not be used, and vectors with many dimensions allow much decoding by chance. Each number is
therefore compared with a shuffle within position, random subspaces of the same rank, and untrained networks.

References:
    Shai et al. 2024, arXiv:2405.15943 (linear maps from residuals to beliefs; the simplex of Mess3).
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (clusters by hidden state).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.charts.polygon import MAX_CORNERS
from bayesgeom.core.run import RESID_POST, RESID_PRE, STATE, Run, Trials
from bayesgeom.probes._best_guesses import ClusterScores, cluster_scores, guess_scores
from bayesgeom.probes.base import (
    Control,
    Needs,
    Probe,
    known,
    planted_chain,
    planted_run,
    planted_trials,
)
from bayesgeom.probes.belief_report import (
    CONSTANT,
    EMBEDDING,
    GAUSSIAN,
    MEAN_BELIEF,
    SHUFFLE,
    STAGES,
    SUBSPACES,
    BeliefReadoutReport,
    window_levels,
)
from bayesgeom.report.estimate import Baseline, Estimate, Kind, Values, of_untrained
from bayesgeom.stats.bootstrap import jackknife_weights, shuffled_within_position
from bayesgeom.stats.observers import STARTS, window_beliefs
from bayesgeom.stats.readout import (
    BELIEF,
    BeliefTargets,
    CloudScores,
    Readout,
    Summary,
    belief_rows,
    belief_targets,
    read_out,
    summary,
    unfitted_r2,
)
from bayesgeom.stats.subspace import leading_coordinates, random_subspaces

MAX_POINTS, MAX_WIDTH, N_CLUSTERED, N_DRAWN, COUNTS = 3_072, 192, 500, 1_000, range(2, 9)
MIN_SEQUENCES = 16  # used however long they are
SHUFFLES, N_SUBSPACES = 5, 20
SHUFFLED: tuple[Kind, str] = ("permutation", SHUFFLE)
WIDTHS = (1, 2, 3, 4, 10)  # symbols of the window observers whose beliefs are compared
_BANDS = {"all": (0, 2), "below 0.5": (0, 0.5), "0.5–0.75": (0.5, 0.75), "0.75–0.9": (0.75, 0.9), "above 0.9": (0.9, 2)}


@final
@dataclass(frozen=True)
class BeliefReadout(Probe[BeliefReadoutReport]):
    """Fit on the first half of the sequences and score on the rest; at most `MAX_POINTS` points, or 16 sequences.

    A site wider than `MAX_WIDTH`, such as the state of a Mamba, is reduced to that many leading principal axes.
    Activations are stored: read-outs for several targets, penalties and shuffles use the same points.
    """

    name: ClassVar[str] = "belief_readout"
    needs: ClassVar[Needs] = Needs(sites=(RESID_POST,), optional=(RESID_PRE, STATE), posterior=True)
    relative_time: ClassVar[int] = 6

    def measure(self, run: Run, untrained: Sequence[BeliefReadoutReport] = ()) -> BeliefReadoutReport:
        trials = run.trials.rows(slice(0, max(MIN_SEQUENCES, MAX_POINTS // run.trials.n_scored)))
        targets, n = _targets(trials, run.seed), len(trials)
        sites = [site for site in (RESID_POST, STATE) if site in run.recorded]
        clouds = [_points(run.at(site)[:, : len(trials)].flatten(1, 2), targets, run.seed) for site in sites]
        rank = min(trials.belief.shape[-1], *(points.shape[-1] for points in clouds))
        found = [_read(points, targets, rank, run.seed) for points in clouds]
        tokens, windows = _tokens(trials, run.seed), _windows(trials, targets, run.seed)
        held_out, whole = jackknife_weights(len(targets.held_out)), jackknife_weights(n)
        read = [summary(layers, targets, held_out, seed=run.seed) for layers in found]
        clusters = [
            cluster_scores(points, targets, tokens, COUNTS, whole, n_clustered=N_CLUSTERED, seed=run.seed)
            for points in clouds
        ]
        guesses = [guess_scores(layers, targets, [*_BANDS.values()], seed=run.seed) for layers in found]
        embedding = _embedding(run, trials, targets, rank, (len(sites), len(found[0])))
        drawn_belief, drawn_readout = _drawn(found, targets, untrained, run.seed)
        return BeliefReadoutReport(
            **_linear(read, embedding, windows.levels, untrained, n=n),
            **_clusters(clusters, untrained, n=n),
            nearest_centroid_accuracy=_estimate(
                [accuracy for accuracy, _ in guesses],
                SHUFFLED,
                [copy.nearest_centroid_accuracy.value for copy in untrained],
                Baseline.of("baseline", CONSTANT, guesses[0][1]),
                n=n,
            ),
            window_r2=windows.r2,
            window_map_r2=windows.map_r2,
            drawn_belief=drawn_belief,
            drawn_readout=drawn_readout,
            sites=tuple(site.name for site in sites),
            cluster_counts=tuple(map(str, COUNTS)),
            confidences=tuple(_BANDS),
            window_starts=STARTS if windows.names else (),
            windows=windows.names,
            stages=STAGES,
            subspace_rank=rank,
            n_clustered=min(N_CLUSTERED, len(targets.values)),
            n=n,
        )

    def controls(self) -> Iterator[Control[BeliefReadoutReport]]:
        rng = np.random.default_rng(0)
        # At each point one hypothesis is excluded and one of the others is slightly more probable.
        weights = rng.uniform(0.6, 1.4, size=(83, 5, 3))
        weights[rng.permuted(np.tile(np.arange(3), (83, 5, 1)), axis=2) == 0] = 0
        belief = weights / weights.sum(axis=2, keepdims=True)
        trials = planted_trials(belief, rng.integers(7, size=(83, 11)))
        noise, place = rng.normal(size=(83, 5, 7)), np.tile(np.eye(5, 7), (83, 1, 1))
        written = belief @ rng.normal(size=(3, 7))
        guesses = 9 * np.eye(3, 7)[belief.argmax(axis=2)] + 0.1 * noise
        layers = torch.from_numpy(np.stack([noise, written, guesses, place + 0.01 * noise]))
        planted = planted_run(trials, {RESID_POST: layers})
        yield Control(label="noise, the belief, best guesses, position", run=planted, holds=_tells_layers_apart)
        before = planted_run(trials, {RESID_POST: layers[:1], RESID_PRE: layers[1:2]})
        yield Control(
            label="the belief is in the embedding only",
            run=before,
            holds=lambda r: (
                r.r2.baseline(EMBEDDING).value[0, 0] > 0.99 > 0.1 > r.r2.value[0, 0]
                and r.balanced_accuracy.baseline(EMBEDDING).value[0, 0] > 0.9
            ),
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


def _tells_layers_apart(report: BeliefReadoutReport) -> bool:
    noise, written, guesses, place = range(4)
    at_three = report.cluster_counts.index("3")
    r2, distance, surviving = (own.value[0] for own in (report.r2, report.total_variation, report.balanced_accuracy))
    rand_index, silhouette = report.rand_index.value[0, :, at_three], report.silhouette.value[0, :, at_three]
    nearest = report.nearest_centroid_accuracy.value[0, :, 0]
    return bool(
        r2[written] > 0.99 > 0.1 > max(r2[[noise, place]])
        and distance[written] < 0.02 < 0.1 < distance[noise]
        and surviving[written] > 0.9
        and max(surviving[[noise, place]]) < 0.6
        and rand_index[guesses] > 0.99 > 0.1 > rand_index[place]
        and silhouette[guesses] > 0.9 > 0.5 > silhouette[noise]
        and nearest[guesses] > 0.99 > 0.6 > nearest[noise]
    )


def _targets(trials: Trials, seed: int) -> BeliefTargets:
    """Return true and shuffled beliefs; the first half of the sequences fits, the second scores."""
    rows = belief_rows(trials.at_scored(trials.belief).cpu())
    rng = np.random.default_rng(seed)
    shuffles = [torch.from_numpy(shuffled_within_position(rows.numpy(), rng)) for _ in range(SHUFFLES)]
    return belief_targets(torch.stack([rows, *shuffles]), n_fit=-(-len(trials) // 2))


def _tokens(trials: Trials, seed: int) -> Float[Tensor, "point shuffle token"]:
    """Return the token just read at every point, one-hot, true and shuffled within position."""
    read = trials.at_scored(trials.tokens).cpu()
    rows = torch.nn.functional.one_hot(torch.unique(read, return_inverse=True)[1]).double()
    rng = np.random.default_rng(seed)
    shuffles = [torch.from_numpy(shuffled_within_position(rows.numpy(), rng)) for _ in range(SHUFFLES)]
    return torch.stack([rows, *shuffles], dim=2).flatten(0, 1)


def _points(
    vectors: Float[Tensor, "layer point d"], targets: BeliefTargets, seed: int
) -> Float[Tensor, "layer point axis"]:
    return torch.stack([leading_coordinates(points, MAX_WIDTH, n_fit=targets.n_fit, seed=seed) for points in vectors])


def _read(points: Float[Tensor, "layer point d"], targets: BeliefTargets, rank: int, seed: int) -> list[Readout]:
    """Read every layer, in full and in random subspaces."""
    bases = random_subspaces(points.shape[2], rank, draws=N_SUBSPACES, seed=seed).to(points.device)
    return [read_out(layer, targets, bases) for layer in points]


def _estimate(
    parts: Sequence[CloudScores], level: tuple[Kind, str], copies: Sequence[Values], *others: Baseline, n: int
) -> Estimate:
    """Build one metric's estimate: its level has this kind and name, then untrained networks and other baselines."""
    value, low, high, code, found = _stacked(parts)
    return Estimate.of(
        value,
        (low, high),
        n=n,
        baselines=known(Baseline.of(*level, found), *of_untrained(copies), *others),
        reason=code,
    )


def _stacked(parts: Sequence[CloudScores]) -> list[Any]:
    columns = zip(*((own.value, own.low, own.high, own.code, own.level) for own in parts), strict=True)
    return [np.stack(column) for column in columns]


def _embedding(run: Run, trials: Trials, targets: BeliefTargets, rank: int, shape: tuple[int, ...]) -> list[Baseline]:
    """Return the read-out before the first layer as a baseline of `resid_post`, the first site; NaN if not recorded."""
    levels = np.full((3, *shape), np.nan)
    if RESID_PRE in run.recorded:
        before = _points(run.at(RESID_PRE)[:1, : len(trials)].flatten(1, 2), targets, run.seed)
        found = summary(_read(before, targets, rank, run.seed), targets, np.ones((1, len(targets.held_out))))
        levels[:, 0] = [own.value for own in (found.r2, found.total_variation, found.balanced_accuracy)]
    return [Baseline.of("baseline", EMBEDDING, level) for level in levels]


def _linear(
    sites: Sequence[Summary],
    embedding: Sequence[Baseline],
    windows: Sequence[Baseline],
    copies: Sequence[BeliefReadoutReport],
    *,
    n: int,
) -> dict[str, Any]:
    """Return the fields of the linear read-out."""

    def within(found: Sequence[Float64[np.ndarray, "3 layer"]]) -> Baseline:
        mean, low, high = np.stack(found, axis=1)
        return Baseline.of("chance", SUBSPACES, mean, low=low, high=high)

    r2, distances, surviving = (
        [copy.r2.value for copy in copies],
        [copy.total_variation.value for copy in copies],
        [copy.balanced_accuracy.value for copy in copies],
    )
    chance = [within([site.r2_within for site in sites]), within([site.balanced_accuracy_within for site in sites])]
    return {
        "r2": _estimate([site.r2 for site in sites], SHUFFLED, r2, chance[0], *windows, embedding[0], n=n),
        "total_variation": _estimate(
            [site.total_variation for site in sites], ("baseline", MEAN_BELIEF), distances, embedding[1], n=n
        ),
        "balanced_accuracy": _estimate(
            [site.balanced_accuracy for site in sites], SHUFFLED, surviving, chance[1], embedding[2], n=n
        ),
    }


def _clusters(sites: Sequence[ClusterScores], copies: Sequence[BeliefReadoutReport], *, n: int) -> dict[str, Any]:
    """Return the fields of the clusters."""
    silhouettes, guesses = [site.silhouette for site in sites], [site.rand_index for site in sites]
    tokens = [site.token_rand_index for site in sites]
    return {
        "silhouette": _estimate(silhouettes, ("chance", GAUSSIAN), [copy.silhouette.value for copy in copies], n=n),
        "rand_index": _estimate(guesses, SHUFFLED, [copy.rand_index.value for copy in copies], n=n),
        "token_rand_index": _estimate(tokens, SHUFFLED, [copy.token_rand_index.value for copy in copies], n=n),
    }


@final
@dataclass(frozen=True, kw_only=True)
class _Windows:
    """R² of the window observers' beliefs, as they are and through a linear map, and the window widths."""

    r2: Estimate
    map_r2: Estimate
    names: tuple[str, ...]

    @property
    def levels(self) -> tuple[Baseline, ...]:
        return window_levels(self.r2, self.map_r2, self.names)


def _windows(trials: Trials, targets: BeliefTargets, seed: int) -> _Windows:
    """Measure window observers; empty without latent dynamics."""
    widths = [width for width in WIDTHS if width < trials.n_scored]
    if trials.observers is None or not widths:
        nothing = Estimate.of(np.zeros((0, 0)), (0.0, 0.0), n=len(trials))
        return _Windows(r2=nothing, map_r2=nothing, names=())
    exact, n_held_out = trials.at_scored(trials.belief), len(targets.held_out)
    held_out = jackknife_weights(n_held_out)
    plain, mapped = list[CloudScores](), list[CloudScores]()
    for start in STARTS:
        all_widths = window_beliefs(trials.observers.filter, exact, start)
        beliefs = torch.stack([belief for width, belief in enumerate(all_widths) if width in widths])
        read = _read(beliefs.flatten(1, 2), targets, beliefs.shape[-1], seed)
        mapped.append(summary(read, targets, held_out, seed=seed).r2)
        plain.append(unfitted_r2(beliefs[:, len(exact) - n_held_out :].cpu().numpy(), targets, seed))
    n = len(trials)
    (plain_r2, *ends, plain_code, _), (map_r2, *map_ends, map_code, _) = _stacked(plain), _stacked(mapped)
    return _Windows(
        r2=Estimate.of(plain_r2, (ends[0], ends[1]), n=n, reason=plain_code),
        map_r2=Estimate.of(map_r2, (map_ends[0], map_ends[1]), n=n, reason=map_code),
        names=tuple(map(str, widths)),
    )


def _drawn(
    found: Sequence[Sequence[Readout]],
    targets: BeliefTargets,
    untrained: Sequence[BeliefReadoutReport],
    seed: int,
) -> tuple[Float64[np.ndarray, "point hypothesis"], Float64[np.ndarray, "stage site point hypothesis"]]:
    """Return some held-out beliefs, and their read-outs at each of the stages.

    The last stage is the first untrained network, on the same sequences; NaN without one.
    """
    belief = targets.held_out[:, :, 0, BELIEF].flatten(0, 1).double().numpy()
    n_drawn = min(N_DRAWN, len(belief)) if belief.shape[1] <= MAX_CORNERS else 0
    chosen = np.sort(np.random.default_rng(seed).permutation(len(belief))[:n_drawn])
    first, last = (
        np.stack([layers[which].predicted_belief.reshape(belief.shape)[chosen] for layers in found])
        for which in (0, -1)
    )
    before = untrained[0].drawn_readout[STAGES.index("last layer")] if untrained else np.full_like(last, np.nan)
    return belief[chosen], np.stack([first, last, before])
