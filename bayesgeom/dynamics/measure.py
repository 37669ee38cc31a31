"""Measurements of one snapshot on the fixed trials: estimates, and the same without groups of sequences.

Row 0 of each array is the estimate; each other row leaves one group of sequences out, and unused rows are NaN. The
groups are the same at every snapshot, so differences between snapshots are paired. `interval_of` turns rows into an
interval. Numbers that an architecture does not provide are NaN, with the reason in `missing`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.edits import Edit, InSubspace, Replace
from bayesgeom.core.errors import InvalidArgument, MissingSite, TaskMismatch
from bayesgeom.core.run import PATTERN, RESID_POST, RESID_PRE, K, Run, Site, Trials, V
from bayesgeom.core.verdict import Reason
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import KL, KL_DONOR, EditPlan, score_pairs
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.models.base import Model, bytes_per_sequence, recording_bytes
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.stats.bootstrap import MAX_GROUPS, jackknife_weights, statistic_interval
from bayesgeom.stats.information import jensen_shannon_bits
from bayesgeom.stats.intervals import Interval, Scale
from bayesgeom.stats.manifold import EntropyScale, cloud_statistics, shuffled_scale
from bayesgeom.stats.overlap import chance_overlap, mean_overlap_interval, overlap_rows
from bayesgeom.stats.readout import belief_rows, belief_targets, held_out_scores, read_out
from bayesgeom.stats.reduction import TokenSums, in_parts, occurrences
from bayesgeom.stats.resampling import refitted_axis_shares, resampled_axis_shares
from bayesgeom.stats.subspace import gaussian_first_share, random_subspaces
from bayesgeom.subspaces.base import InterventionSite, Sample, Subspace
from bayesgeom.subspaces.fits import frame
from bayesgeom.subspaces.jacobian import N_SEQUENCES, jacobian_grams
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

ROWS, MAX_POINTS, MAX_PAIRS = 1 + MAX_GROUPS, 3_072, 128
N_SHOWN, N_SUBSPACES, N_SHUFFLES = 240, 20, 5
ABOVE_GAUSSIAN = 1.25  # a share of PC1 below this multiple of that of Gaussian points has no interval
PATTERN_BYTES = 64 * 2**20  # limit for the stored attention of the last snapshot
MAX_MAP = 2**17  # entries of one snapshot's attention maps
N_RANDOM, N_RANDOM_PAIRS = 20, 16  # random subspaces of the same rank, and the pairs on which they are scored
MAX_RANK = 8  # number of leading directions of the Jacobian
_DRAWS, _JACOBIAN, _SHOWN = 7, 8, 9  # branches of the seed
Arrays = Mapping[str, np.ndarray]
BY_LAYER = (
    "pattern_distance_bits",
    "key_overlap",
    "key_overlap_kink",
    "answer_shift_bits",
    "whole_answer_shift_bits",
    "random_answer_shift_bits",
    "frame_ratio",
)
SCALARS = (
    "kl_bits",
    "entropy_mae_bits",
    "pc1_share",
    "curve_share",
    "shuffled_curve_share",
    "belief_r2",
    "random_belief_r2",
    "final_axes_share",
    "random_final_axes_share",
    "chance_key_overlap",
    "uniform_kl_bits",
)
COUNTED = {  # numbers that are not of all sequences, and the name under which a snapshot stores of how many they are
    "pattern_distance_bits": "n_patterns",
    "key_overlap": "n_keys",
    "pc1_share": "n_points",
    "curve_share": "n_points",
    "final_axes_share": "n_points",
    "belief_r2": "n_read",
    "answer_shift_bits": "n_pairs",
    "frame_ratio": "n_gradients",
}


@final
@dataclass(frozen=True, kw_only=True)
class Bench:
    """The task, n and seed that every snapshot of every training shares, and of how many sequences they record."""

    task: WindTunnel
    n: int
    seed: int
    n_recorded: int

    def stream(self, device: str) -> Iterator[Trials]:
        """Return the fixed trials in blocks."""
        return self.task.stream(self.n, seed=derived_seed(self.seed, Branch.TRIALS), device=device)


@final
@dataclass(frozen=True, kw_only=True)
class LastSnapshot:
    """Attention patterns and principal axes of the values of the last snapshot."""

    patterns: Float[Tensor, "layer batch head query_pos key_pos"] | None
    axes: Float64[Tensor, "d axis"]


@final
@dataclass(frozen=True, kw_only=True)
class SnapshotNumbers:
    """Numbers of one snapshot by name; `missing` states why a number is NaN."""

    numbers: Arrays
    missing: Mapping[str, str]

    def count(self, name: str, n: int) -> int:
        """Return of how many of the `n` sequences a number is."""
        return int(self.numbers[COUNTED[name]][0]) if COUNTED.get(name) in self.numbers else n


def sites_of(model: Model) -> tuple[Site, ...]:
    """Return the sites to record."""
    return tuple(site for site in (K, V, PATTERN, RESID_POST) if site in model.sites)


def bench_of(model: Model, task: WindTunnel, *, n: int, seed: int, budget_bytes: int) -> Bench:
    """Return the bench of all snapshots of an architecture, with as many recorded sequences as fit into a budget.

    Raises:
        InvalidArgument: Fewer than two fit.
    """
    n_recorded = min(n, budget_bytes // _bytes_recorded(model, task))
    if n_recorded < 2:
        raise InvalidArgument(
            f"one sequence of {task}, of {task.n_pos} tokens, fills the recording budget: it is too long "
            f"for training dynamics. Use a task with shorter sequences."
        )
    return Bench(task=task, n=n, seed=seed, n_recorded=n_recorded)


def passed(model: Model, bench: Bench) -> Run:
    """Run the model on the fixed trials; the free memory decides the size of passes, not what is recorded."""
    device, n = model.spec.device, bench.n_recorded
    budget = max(recording_bytes(device), n * _bytes_recorded(model, bench.task))
    return model.run(bench.stream(device), record=sites_of(model), n_recorded=n, budget_bytes=budget)


def _bytes_recorded(model: Model, task: WindTunnel) -> int:
    """Return the bytes of one recorded sequence."""
    layers = {site: model.layers_of(site) for site in sites_of(model)}
    return max(1, bytes_per_sequence(model.spec, layers, task.sample(1, seed=0)))


def reference_of(bench: Bench, run: Run) -> LastSnapshot:
    """Return the reference for the other snapshots from a pass of the last one."""
    patterns = None
    if PATTERN in run.recorded:
        recorded = run.at(PATTERN)
        each = recorded[:, :1].numel() * recorded.element_size()
        patterns = recorded[:, : max(1, PATTERN_BYTES // each)].clone()
    points, entropy = _cloud(run)
    axes = cloud_statistics(points.flatten(0, 1), _scale(run, bench, len(points))).axes[:, :2].cpu()
    first = (points.flatten(0, 1).double().cpu() @ axes)[:, 0].numpy()
    turn = np.array([np.sign(np.dot(first - first.mean(), entropy.ravel())) or 1.0, 1.0])[: axes.shape[1]]
    return LastSnapshot(patterns=patterns, axes=axes * torch.from_numpy(turn))


@final
@dataclass(frozen=True, kw_only=True)
class SnapshotPass:
    """A snapshot with its pass, and the reference for comparison."""

    model: Model
    bench: Bench
    run: Run
    reference: LastSnapshot


def measured(at: SnapshotPass) -> SnapshotNumbers:
    """Return every measurement that this architecture supports."""
    n_layers = at.model.spec.n_layers
    numbers: dict[str, np.ndarray] = {name: np.full((ROWS, n_layers), np.nan) for name in BY_LAYER}
    numbers |= {name: np.full(ROWS, np.nan) for name in SCALARS}
    missing: dict[str, str] = {}
    for title, part in PARTS.items():
        try:
            found = part(at)
        except (MissingSite, InvalidArgument, TaskMismatch) as reason:
            missing[title] = str(reason)
        else:
            numbers |= {name: _padded(own) if name in numbers else own for name, own in found.items()}
    return SnapshotNumbers(numbers=numbers, missing=missing)


def _calibration(at: SnapshotPass) -> Arrays:
    own, weights = at.run.behavior, jackknife_weights(at.run.n)
    error = np.abs(np.subtract(own.model_entropy_bits, own.exact_entropy_bits, dtype=np.float64))
    kl = own.kl_bits.mean(axis=1, dtype=np.float64)
    free = np.log2(len(at.run.trials.answers)) - own.exact_entropy_bits.mean(dtype=np.float64)
    return {
        "kl_bits": weights @ kl,
        "entropy_mae_bits": weights @ error.mean(axis=1),
        "uniform_kl_bits": _alone(float(free)),
    }


def _patterns(at: SnapshotPass) -> Arrays:
    at.model.require((PATTERN,), by="pattern distance")
    assert at.reference.patterns is not None, "all snapshots are of one architecture"
    n = at.reference.patterns.shape[1]
    own = at.run.at(PATTERN)[:, :n]
    pairs = zip(own, at.reference.patterns.to(own.device), strict=True)
    apart = torch.stack([jensen_shannon_bits(p.double(), q.double()).mean(dim=(1, 2)) for p, q in pairs])
    rows = jackknife_weights(n) @ apart.clamp_min(0).T.cpu().numpy()
    return {"pattern_distance_bits": rows, "n_patterns": np.array([n])}


def _maps(at: SnapshotPass) -> Arrays:
    at.model.require((PATTERN,), by="attention maps")
    maps = at.run.at(PATTERN)[:, 0].mean(dim=1)
    if maps.numel() > MAX_MAP:
        raise InvalidArgument(
            f"attention maps of shape {tuple(maps.shape)} have {maps.numel():,} entries; at most {MAX_MAP:,} are "
            f"stored for each snapshot. Use a task with shorter sequences."
        )
    return {"maps": maps.double().cpu().numpy()}


def _keys(at: SnapshotPass) -> Arrays:
    """Return the mean |cosine| between the keys of hypothesis tokens, mean over key heads."""
    at.model.require((K,), by="key overlap")
    sets = at.run.trials.token_sets
    name = next((name for name in ("hypotheses", "inputs") if name in sets), None)
    if name is None:
        raise InvalidArgument(
            f"key overlap needs a token set hypotheses or inputs; {at.bench.task} has: {', '.join(sets) or '(none)'}."
        )
    shown, rows, kinks = occurrences(at.run.trials.tokens, sets[name]), [], []
    for layer in at.run.at(K):
        parts = in_parts(jackknife_weights(at.run.n_recorded), layer[0, 0].numel() * len(sets[name]))
        found = overlap_rows(partial(_frames, TokenSums.of(layer, shown), parts))
        rows.append(found.rows[:, 0].mean(axis=1))
        kinks.append(found.kink[0].mean())
    return {
        "key_overlap": np.stack(rows, axis=1),
        "key_overlap_kink": np.array(kinks)[None],
        "chance_key_overlap": _alone(chance_overlap(at.model.spec.d_head)),
        "n_keys": np.array([at.run.n_recorded]),
    }


def _frames(
    of_tokens: TokenSums, parts: list[Float[np.ndarray, "part batch"]]
) -> Iterator[Float[Tensor, "part kv_head token d"]]:
    for part in parts:
        yield of_tokens.means(part).transpose(1, 2)


def _manifold(at: SnapshotPass) -> Arrays:
    """Return the shape of the last layer's values (or residual stream), and points on the last snapshot's axes."""
    points, entropy = _cloud(at.run)
    statistics = cloud_statistics(points.flatten(0, 1), _scale(at.run, at.bench, len(points)))
    flat, curve_shares = points.cpu().numpy(), statistics.relation["curve_share"]
    axes, weights = at.reference.axes.numpy(), jackknife_weights(len(points))
    placed = ((flat - flat.mean(axis=(0, 1))).astype(np.float64) @ axes).reshape(-1, axes.shape[1])
    chosen = np.sort(np.random.default_rng(derived_seed(at.bench.seed, _SHOWN)).permutation(len(placed))[:N_SHOWN])
    return {
        "pc1_share": _first_share(flat, statistics.axes[:, :2].cpu().numpy(), weights),
        "final_axes_share": resampled_axis_shares(flat, axes, weights).sum(axis=0),
        "random_final_axes_share": _alone(axes.shape[1] / len(axes)),
        "curve_share": _alone(curve_shares[0]),
        "shuffled_curve_share": _alone(float(curve_shares[1:].mean())),
        "points": placed[chosen],
        "point_entropy_bits": entropy.ravel()[chosen],
        "n_points": np.array([len(points)]),
    }


def _first_share(
    points: Float[np.ndarray, "sequence position d"],
    axes: Float[np.ndarray, "d axis"],
    weights: Float64[np.ndarray, "row sequence"],
) -> Float64[np.ndarray, " _"]:
    """Return the share of PC1, refitted in each row; the estimate alone if PC1 is not distinct from the next axis."""
    rows = refitted_axis_shares(points, axes, weights)[:, 0]
    least = ABOVE_GAUSSIAN * gaussian_first_share(len(points), points.shape[2])
    return rows if rows[0] > least else _alone(float(rows[0]))


def _belief(at: SnapshotPass) -> Arrays:
    """Return held-out R² of a linear map from the last layer's residual stream to the exact belief."""
    at.model.require((RESID_POST,), by="the belief read-out")
    points = at.run.at(RESID_POST)[-1][: _n_points(at.run)]
    trials = at.run.trials.rows(slice(0, len(points)))
    targets = belief_targets(belief_rows(trials.at_scored(trials.belief).cpu())[None], n_fit=-(-len(points) // 2))
    width = points.shape[-1]
    rank = min(trials.belief.shape[-1], width)
    bases = random_subspaces(width, rank, draws=N_SUBSPACES, seed=derived_seed(at.bench.seed, _SHOWN))
    found = read_out(points.flatten(0, 1), targets, bases.to(points.device))
    return {
        "belief_r2": held_out_scores(found, targets, jackknife_weights(len(targets.held_out)))["r2"],
        "random_belief_r2": _alone(float(found.r2[1:].mean())),
        "n_read": np.array([len(points)]),
    }


def _frame(at: SnapshotPass) -> Arrays:
    frame = KeyFrame.of(at.model, at.bench.task, at.run, n=min(at.bench.n, MAX_PAIRS), seed=at.bench.seed)
    found = frame.answer_shifts()
    by_pair = found.pop("answer_shift_bits")
    alone = {name: _alone(values) for name, values in (found | {"frame_ratio": frame.ratios(at.run)}).items()}
    counts = {"n_pairs": np.array([len(by_pair)]), "n_gradients": np.array([min(at.run.n_recorded, N_SEQUENCES)])}
    return {"answer_shift_bits": jackknife_weights(len(by_pair)) @ by_pair, **alone, **counts}


PARTS: Mapping[str, Callable[[SnapshotPass], Arrays]] = {
    "calibration": _calibration,
    "attention-pattern distance": _patterns,
    "attention maps": _maps,
    "key overlap": _keys,
    "value manifold": _manifold,
    "belief read-out": _belief,
    "key frame": _frame,
}


def _alone(value: float | Float64[np.ndarray, " layer"]) -> Float64[np.ndarray, "row *layer"]:
    """Return the rows of an estimate without left-out groups."""
    return np.asarray(value, dtype=np.float64)[None]


def _padded(rows: Float64[np.ndarray, "row *layer"]) -> Float64[np.ndarray, "all_rows *layer"]:
    """Pad the rows with NaN to the same number for every measurement."""
    return np.pad(rows, ((0, ROWS - len(rows)), *((0, 0),) * (rows.ndim - 1)), constant_values=np.nan)


def _n_points(run: Run) -> int:
    return min(run.n_recorded, max(2, MAX_POINTS // run.trials.n_scored))


def _cloud(run: Run) -> tuple[Float[Tensor, "sequence position d"], Float64[np.ndarray, "sequence position"]]:
    """Return vectors at scored positions of the last layer, and the exact entropy there."""
    n = _n_points(run)
    site = V if V in run.recorded else RESID_POST
    return run.vectors(site, -1)[:n], run.reference_entropy_bits()[:n].round(9)


def _scale(run: Run, bench: Bench, n: int) -> EntropyScale:
    level = run.trials.rows(slice(0, n)).scored_positions().cpu().numpy()
    return shuffled_scale(
        run.reference_entropy_bits()[:n].round(9), level, shuffles=N_SHUFFLES, seed=derived_seed(bench.seed, _SHOWN)
    )


@final
@dataclass(frozen=True, kw_only=True)
class KeyFrame:
    """The key frame in every layer, the swap that edits it, and whether the answer depends on it.

    answer shift = KL(original's exact ‖ model) − KL(donor's exact ‖ model), bits, with the donor's component swapped in
    frame ratio = ‖P_J P_F‖² / min(r, rank F), divided by its value for a random J; J: the top-r Jacobian directions

    References: the J-lens note of Agarwal, Dalal & Misra's repository (both).
    """

    model: Model
    swap: Intervention
    subspaces: dict[int, Subspace]

    @classmethod
    def of(cls, model: Model, task: WindTunnel, run: Run, *, n: int, seed: int) -> "KeyFrame":
        """Return the span of the hypothesis tokens' embeddings at `resid_pre` of every layer.

        Raises:
            InvalidArgument: As in `intervene`, before anything runs.
        """
        place = InterventionSite(RESID_PRE)
        swap = Intervention.of(model, task, frame(), design=Design("swap"), place=place, n=n, seed=seed)
        sample = Sample(model=model, run=run, place=place, seed=seed)
        return cls(model=model, swap=swap, subspaces=swap.fit.fitted(sample, swap.layers))

    def answer_shifts(self) -> dict[str, Float64[np.ndarray, "..."]]:
        """Return the answer shift per pair and layer, and per layer those of the ceiling and of random subspaces."""
        chosen = {layer: self._edits(layer) for layer in self.swap.layers}
        swapped = self._scored({layer: edits[:2] for layer, edits in chosen.items()}, self.swap.n)
        random = self._scored({layer: edits[2:] for layer, edits in chosen.items()}, min(self.swap.n, N_RANDOM_PAIRS))
        return {
            "answer_shift_bits": swapped[:, :, 0],
            "whole_answer_shift_bits": swapped[:, :, 1].mean(axis=0),
            "random_answer_shift_bits": random.mean(axis=(0, 2)),
        }

    def ratios(self, run: Run) -> Float64[np.ndarray, " layer"]:
        """Return the overlap of the directions on which answers depend with the frame, over chance; 1 is chance."""
        layers, seed = self.swap.layers, derived_seed(self.swap.seed, _JACOBIAN)
        grams = jacobian_grams(self.model, run.trials, RESID_PRE, layers, seed=seed)
        return np.array([_overlap(grams[layer].cpu(), self.subspaces[layer].basis.cpu()) for layer in layers])

    def _edits(self, layer: int) -> list[Edit]:
        """Return the swaps of the frame, of the whole activation, and of random subspaces."""
        own = self.subspaces[layer]
        seed = derived_seed(self.swap.seed, _DRAWS, layer)
        random = random_subspaces(own.width, own.rank, draws=N_RANDOM, seed=seed)
        like = next(self.model.module.parameters())
        conditions: list[Edit] = [
            InSubspace(
                site=RESID_PRE, layer=layer, kind="swap", basis=basis.to(like), turn=None, shift=None, name=own.name
            )
            for basis in (own.basis, *random)
        ]
        return [conditions[0], Replace(site=RESID_PRE, layer=layer, mode="resample"), *conditions[1:]]

    def _scored(self, conditions: dict[int, list[Edit]], n: int) -> Float[np.ndarray, "pair layer condition"]:
        variants = [(edit,) for edits in conditions.values() for edit in edits]
        plan = EditPlan(replayer=self.model.replayer(), spec=self.model.spec, means={}, conditions=lambda _: variants)
        sums = score_pairs(self.swap.pairs(n), plan, n).by_layer(len(conditions)).conditions[..., 0]
        shift: np.ndarray = sums[..., KL] - sums[..., KL_DONOR]
        return shift


def _overlap(gram: Float64[torch.Tensor, "d d"], frame: Float[torch.Tensor, "d rank"]) -> float:
    rank = min(MAX_RANK, frame.shape[1])
    leading = torch.linalg.eigh(gram).eigenvectors[:, -rank:]
    shared = float((leading.T @ frame.double().to(leading)).square().sum()) / rank
    return shared / (frame.shape[1] / len(frame))


def interval_of(rows: Float[np.ndarray, "row *rest"], *, seed: int, scale: Scale = "plain") -> Interval:
    """Return the interval of a number; NaN if only the estimate is known.

    Args:
        rows: As in `SnapshotNumbers`: the estimate, then the same without each group of sequences, then NaN.
        seed: Seed of the resamples.
        scale: As in `statistic_interval`.
    """
    return statistic_interval(_known(rows), seed=seed, scale=scale)


def overlap_interval_of(
    rows: Float[np.ndarray, "row *rest"], kink: Float[np.ndarray, "*rest"], *, seed: int
) -> Interval:
    """Return the interval of a key overlap, from rows and bias of `stats.overlap.overlap_rows`."""
    return mean_overlap_interval(_known(rows), kink, seed=seed)


def _known(rows: Float[np.ndarray, "row *rest"]) -> Float[np.ndarray, "known_row *rest"]:
    """Return the rows without those that are NaN at the end, at least two."""
    known = np.isfinite(rows).reshape(len(rows), -1).any(axis=1)
    return rows[: max(2, int(np.flatnonzero(known).max(initial=0)) + 1)]


def over_trainings(value: Any, ends: tuple[Any, Any], *, n: int, baselines: Sequence[Baseline] = ()) -> Estimate:
    """Return an estimate over `n` trainings, without an interval for a single one."""
    reason = Reason.ONE_TRAINING if n < 2 else None
    return Estimate.of(value, ends, resampled="trainings", n=n, baselines=baselines, reason=reason)
