"""Measurements of one snapshot on the fixed trials, as estimates that are joined along steps.

The resamples are the same at every snapshot, so differences between snapshots are paired. Numbers that an architecture
does not provide are NaN, with the reason in `missing`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import (
    LOGIT_LENS,
    PATTERN,
    RESID_POST,
    RESID_PRE,
    Edit,
    InSubspace,
    InvalidArgument,
    K,
    MissingSite,
    Reason,
    Replace,
    Run,
    Site,
    TaskMismatch,
    V,
)
from bayesgeom.dynamics.report import (
    DIRECTIONS,
    RANDOM_PLANE,
    SHUFFLED,
    SUBSPACES,
    UNIFORM,
    VIEWED,
    DynamicsReport,
    SnapshotNumbers,
)
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import EditPlan, Score, score_pairs
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.measurements.inside import numbers_of
from bayesgeom.measurements.posterior_lens import PosteriorLens
from bayesgeom.models.base import Model, bytes_per_sequence, recording_bytes
from bayesgeom.report import Baseline, Estimate, Kind, quantities_of, smooth_estimate, with_ceiling, with_interval
from bayesgeom.stats import (
    EntropyScale,
    TokenSums,
    belief_rows,
    belief_targets,
    chance_overlap,
    cloud_statistics,
    gaussian_first_share,
    held_out_scores,
    in_parts,
    jackknife_weights,
    jensen_shannon_bits,
    mean_overlap_interval,
    occurrences,
    overlap_rows,
    random_subspaces,
    read_out,
    refitted_axis_shares,
    resampled_axis_shares,
    shuffled_scale,
)
from bayesgeom.subspaces.base import InterventionSite, Sample, Subspace
from bayesgeom.subspaces.fits import frame
from bayesgeom.subspaces.jacobian import N_SEQUENCES, jacobian_grams
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

MAX_POINTS, MAX_PAIRS = 3_072, 128
N_SHOWN, N_SUBSPACES, N_SHUFFLES = 240, 20, 5
ABOVE_GAUSSIAN = 1.25  # a share of PC1 below this multiple of that of Gaussian points has no interval
PATTERN_BYTES = 64 * 2**20  # limit for the stored attention of the last snapshot
MAX_MAP = 2**17  # entries of one snapshot's attention maps
N_RANDOM, N_RANDOM_PAIRS = 20, 16  # random subspaces of the same rank, and the pairs on which they are scored
N_VIEWED = 4  # sequences in the viewer
MAX_RANK = 8  # number of leading directions of the Jacobian
_DRAWS, _JACOBIAN, _SHOWN = 7, 8, 9  # branches of the seed
Found = Mapping[str, Estimate | np.ndarray]


@final
@dataclass(frozen=True, kw_only=True)
class Bench:
    """The task, n and seed that every snapshot of every training shares, and of how many sequences they record."""

    task: WindTunnel
    n: int
    seed: int
    n_recorded: int

    @classmethod
    def of(cls, model: Model, task: WindTunnel, *, n: int, seed: int, budget_bytes: int) -> "Bench":
        """Return the bench of all snapshots of an architecture, recording as many sequences as fit into a budget.

        Raises:
            InvalidArgument: Fewer than two fit.
        """
        n_recorded = min(n, budget_bytes // _bytes_recorded(model, task))
        if n_recorded < 2:
            raise InvalidArgument(
                f"one sequence of {task}, of {task.n_pos} tokens, fills the recording budget: it is too long "
                f"for training dynamics. Use a task with shorter sequences."
            )
        return cls(task=task, n=n, seed=seed, n_recorded=n_recorded)

    def passed(self, model: Model) -> Run:
        """Run a model on the fixed trials; the free memory decides the size of passes, not what is recorded."""
        device = model.spec.device
        stream = self.task.stream(self.n, seed=derived_seed(self.seed, Branch.TRIALS), device=device)
        budget = max(recording_bytes(device), self.n_recorded * _bytes_recorded(model, self.task))
        return model.run(stream, record=_sites_of(model), n_recorded=self.n_recorded, budget_bytes=budget)


@final
@dataclass(frozen=True, kw_only=True)
class LastSnapshot:
    """Attention patterns and principal axes of the values of the last snapshot."""

    patterns: Float[Tensor, "layer batch head query_pos key_pos"] | None
    axes: Float64[Tensor, "d axis"]


def _sites_of(model: Model) -> tuple[Site, ...]:
    lens = (LOGIT_LENS,) if len(model.layers_of(LOGIT_LENS)) == model.spec.n_layers else ()
    return (*(site for site in (K, V, PATTERN, RESID_POST) if site in model.sites), *lens)


def _bytes_recorded(model: Model, task: WindTunnel) -> int:
    """Return the bytes of one recorded sequence."""
    layers = {site: model.layers_of(site) for site in _sites_of(model)}
    return max(1, bytes_per_sequence(model.spec, layers, task.sample(1, seed=0)))


def reference_of(bench: Bench, run: Run) -> LastSnapshot:
    """Return the reference for the other snapshots from a pass of the last one."""
    patterns = None
    if PATTERN in run.recorded:
        recorded = run.at(PATTERN)
        each = recorded[:, :1].numel() * recorded.element_size()
        patterns = recorded[:, : max(1, PATTERN_BYTES // each)].clone()
    points, entropy, scale = _cloud(run, bench)
    axes = cloud_statistics(points.flatten(0, 1), scale).axes[:, :2].cpu()
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
    """Return every measurement that this architecture supports; the others are NaN."""
    by_layer, missing = np.full(at.model.spec.n_layers, np.nan), dict[str, str]()
    sizes = {"layer": at.model.spec.n_layers, "stage": at.model.spec.n_layers + 1}
    estimates = {
        name: Estimate.of(np.full([sizes[dim] for dim in own.dims if dim in sizes], np.nan), n=at.bench.n)
        for name, own in quantities_of(DynamicsReport).items()
        if "run" in own.dims
    }
    arrays: dict[str, np.ndarray] = {"pattern_distance_bits_by_layer": by_layer}
    for title, part in PARTS.items():
        try:
            found = part(at)
        except (MissingSite, InvalidArgument, TaskMismatch) as reason:
            missing[title] = str(reason)
        else:
            estimates |= {name: own for name, own in found.items() if isinstance(own, Estimate)}
            arrays |= {name: own for name, own in found.items() if isinstance(own, np.ndarray)}
    return SnapshotNumbers(spec=at.model.spec, estimates=estimates, arrays=arrays, missing=missing)


def _level(kind: Kind, name: str, value: Float[np.ndarray, "*axes"] | float) -> tuple[Baseline, ...]:
    """Return the baseline, or none if it is NaN."""
    return (Baseline.of(kind, name, value),) if np.isfinite(value).any() else ()


def _calibration(at: SnapshotPass) -> Found:
    own, n, seed = at.run.behavior, at.run.n, at.bench.seed
    kl = own.kl_bits.mean(axis=1, dtype=np.float64)
    free = float(np.log2(len(at.run.trials.answers)) - own.exact_entropy_bits.mean(dtype=np.float64))
    weights, uniform = jackknife_weights(n), _level("baseline", UNIFORM, free)
    return {
        "kl_bits": smooth_estimate(weights @ kl, seed=seed, n=n, baselines=uniform),
        "entropy_mae_bits": smooth_estimate(weights @ own.entropy_error_bits.mean(axis=1), seed=seed, n=n),
    }


def _lens(at: SnapshotPass) -> Found:
    at.model.require((LOGIT_LENS,), by="the posterior lens")
    found = PosteriorLens().measure(at.run)
    return {"lens_kl_bits": found.kl_bits, "arrival": found.arrival}


def _patterns(at: SnapshotPass) -> Found:
    at.model.require((PATTERN,), by="pattern distance")
    assert at.reference.patterns is not None, "all snapshots are of one architecture"
    n = at.reference.patterns.shape[1]
    own = at.run.at(PATTERN)[:, :n]
    pairs = zip(own, at.reference.patterns.to(own.device), strict=True)
    apart = torch.stack([jensen_shannon_bits(p.double(), q.double()).mean(dim=(1, 2)) for p, q in pairs])
    rows = jackknife_weights(n) @ apart.clamp_min(0).T.cpu().numpy()
    return {
        "pattern_distance_bits": smooth_estimate(rows.mean(axis=-1), seed=at.bench.seed, n=n),
        "pattern_distance_bits_by_layer": rows[0],
    }


def _maps(at: SnapshotPass) -> Found:
    at.model.require((PATTERN,), by="attention maps")
    maps = at.run.at(PATTERN)[:, 0].mean(dim=1)
    if maps.numel() > MAX_MAP:
        raise InvalidArgument(
            f"attention maps of shape {tuple(maps.shape)} have {maps.numel():,} entries; at most {MAX_MAP:,} are "
            f"stored for each snapshot. Use a task with shorter sequences."
        )
    return {"maps": maps.double().cpu().numpy()}


def _viewed(at: SnapshotPass) -> Found:
    """Return what the viewer shows of a few sequences: predictions, and what the logit lens reads in every layer."""
    trials = at.run.trials.rows(slice(0, N_VIEWED))
    sites = [LOGIT_LENS] if at.model.layers_of(LOGIT_LENS) else []
    shown = at.model.run([trials], record=sites, n_recorded=len(trials))
    return {f"{VIEWED}{name}": own for name, own in numbers_of(shown).items()}


def _keys(at: SnapshotPass) -> Found:
    """Return the mean |cosine| between the keys of hypothesis tokens, mean over key heads."""
    at.model.require((K,), by="key overlap")
    sets, n = at.run.trials.token_sets, at.run.n_recorded
    name = next((name for name in ("hypotheses", "inputs") if name in sets), None)
    if name is None:
        raise InvalidArgument(
            f"key overlap needs a token set hypotheses or inputs; {at.bench.task} has: {', '.join(sets) or '(none)'}."
        )
    shown, rows, kinks = occurrences(at.run.trials.tokens, sets[name]), [], []
    for layer in at.run.at(K):
        parts = in_parts(jackknife_weights(n), layer[0, 0].numel() * len(sets[name]))
        found = overlap_rows(partial(_frames, TokenSums.of(layer, shown), parts))
        rows.append(found.rows[:, 0].mean(axis=1))
        kinks.append(found.kink[0].mean())
    overlap = np.stack(rows, axis=1)
    ends = mean_overlap_interval(overlap, np.array(kinks), seed=at.bench.seed)
    chance = _level("chance", DIRECTIONS, chance_overlap(at.model.spec.d_head))
    return {"key_overlap": with_interval(overlap[0], ends, n=n, baselines=chance)}


def _frames(
    of_tokens: TokenSums, parts: list[Float[np.ndarray, "part batch"]]
) -> Iterator[Float[Tensor, "part kv_head token d"]]:
    for part in parts:
        yield of_tokens.means(part).transpose(1, 2)


def _n_points(run: Run) -> int:
    return min(run.n_recorded, max(2, MAX_POINTS // run.trials.n_scored))


def _cloud(
    run: Run, bench: Bench
) -> tuple[Float[Tensor, "sequence position d"], Float64[np.ndarray, "sequence position"], EntropyScale]:
    """Return vectors at scored positions of the last layer, the exact entropy there, and its scale."""
    n = _n_points(run)
    entropy = run.reference_entropy_bits()[:n].round(9)
    level = run.trials.rows(slice(0, n)).scored_positions().cpu().numpy()
    scale = shuffled_scale(entropy, level, shuffles=N_SHUFFLES, seed=derived_seed(bench.seed, _SHOWN))
    return run.vectors(V if V in run.recorded else RESID_POST, -1)[:n], entropy, scale


def _manifold(at: SnapshotPass) -> Found:
    """Return the shape of the last layer's values (or residual stream), and points on the last snapshot's axes."""
    points, entropy, scale = _cloud(at.run, at.bench)
    statistics, n, seed = cloud_statistics(points.flatten(0, 1), scale), len(points), at.bench.seed
    flat, curve_shares = points.cpu().numpy(), statistics.relation["curve_share"]
    axes, weights = at.reference.axes.numpy(), jackknife_weights(n)
    placed = ((flat - flat.mean(axis=(0, 1))).astype(np.float64) @ axes).reshape(-1, axes.shape[1])
    chosen = np.sort(np.random.default_rng(derived_seed(seed, _SHOWN)).permutation(len(placed))[:N_SHOWN])
    shares = refitted_axis_shares(flat, statistics.axes[:, :2].cpu().numpy(), weights)[:, 0]
    if shares[0] > ABOVE_GAUSSIAN * gaussian_first_share(n, flat.shape[2]):
        first = smooth_estimate(shares, seed=seed, n=n, scale="share")
    else:
        first = Estimate.of(shares[0], (np.nan, np.nan), n=n, reason=Reason.FLAT)
    final = resampled_axis_shares(flat, axes, weights).sum(axis=0)
    plane = _level("chance", RANDOM_PLANE, axes.shape[1] / len(axes))
    shuffled = _level("permutation", SHUFFLED, float(curve_shares[1:].mean()))
    return {
        "pc1_share": first,
        "final_axes_share": smooth_estimate(final, seed=seed, n=n, scale="share", baselines=plane),
        "curve_share": Estimate.of(curve_shares[0], n=n, baselines=shuffled),
        "points": placed[chosen],
        "point_entropy_bits": entropy.ravel()[chosen],
    }


def _belief(at: SnapshotPass) -> Found:
    """Return held-out R² of a linear map from the last layer's residual stream to the exact belief."""
    at.model.require((RESID_POST,), by="the belief read-out")
    points = at.run.at(RESID_POST)[-1][: _n_points(at.run)]
    trials = at.run.trials.rows(slice(0, len(points)))
    beliefs = belief_rows(trials.at_scored(trials.belief).cpu(), is_signed=trials.is_signed)
    targets = belief_targets(beliefs[None], n_fit=-(-len(points) // 2), is_signed=trials.is_signed)
    width = points.shape[-1]
    rank = min(trials.belief.shape[-1], width)
    bases = random_subspaces(width, rank, draws=N_SUBSPACES, seed=derived_seed(at.bench.seed, _SHOWN))
    found = read_out(points.flatten(0, 1), targets, bases.to(points.device))
    rows = held_out_scores(found, targets, jackknife_weights(len(targets.held_out)))["r2"]
    random = _level("chance", SUBSPACES, float(found.r2[1:].mean()))
    return {"belief_r2": smooth_estimate(rows, seed=at.bench.seed, n=len(points), baselines=random)}


def _frame(at: SnapshotPass) -> Found:
    swap, subspaces = key_frame(at.model, at.bench.task, at.run, n=min(at.bench.n, MAX_PAIRS), seed=at.bench.seed)
    by_pair, whole, random = _answer_shifts(at.model, swap, subspaces)
    rows, level = jackknife_weights(len(by_pair)) @ by_pair, _level("chance", SUBSPACES, random)
    shift = smooth_estimate(rows, seed=at.bench.seed, n=len(by_pair), baselines=level)
    ratios, n = frame_ratios(at.model, swap, subspaces, at.run), min(at.run.n_recorded, N_SEQUENCES)
    return {
        "answer_shift_bits": with_ceiling(shift, whole),
        "frame_ratio": Estimate.of(ratios, n=n, baselines=_level("chance", DIRECTIONS, 1.0)),
    }


PARTS: Mapping[str, Callable[[SnapshotPass], Found]] = {
    "calibration": _calibration,
    "posterior lens": _lens,
    "attention-pattern distance": _patterns,
    "attention maps": _maps,
    "viewer": _viewed,
    "key overlap": _keys,
    "value manifold": _manifold,
    "belief read-out": _belief,
    "key frame": _frame,
}


def key_frame(
    model: Model, task: WindTunnel, run: Run, *, n: int, seed: int
) -> tuple[Intervention, Mapping[int, Subspace]]:
    """Return the swap of the key frame, and the span of the hypothesis tokens' embeddings at every layer's input.

    Raises:
        InvalidArgument: As in `intervene`, before anything runs.
    """
    place = InterventionSite(RESID_PRE)
    swap = Intervention.of(model, task, frame(), design=Design("swap"), place=place, n=n, seed=seed)
    return swap, swap.fit.fitted(Sample(model=model, run=run, place=place, seed=seed), swap.layers)


def _answer_shifts(
    model: Model, swap: Intervention, subspaces: Mapping[int, Subspace]
) -> tuple[Float64[np.ndarray, "pair layer"], Float64[np.ndarray, " layer"], Float64[np.ndarray, " layer"]]:
    """Return the answer shift per pair and layer, and the means of the ceiling and of random subspaces.

    It is KL(original's exact ‖ model) − KL(donor's exact ‖ model), in bits, with the donor's component swapped in.

    References: the J-lens note of Agarwal, Dalal & Misra's repository.
    """
    like, edits = next(model.module.parameters()), dict[int, list[Edit]]()
    for layer in swap.layers:
        own, seed = subspaces[layer], derived_seed(swap.seed, _DRAWS, layer)
        bases = (own.basis, *random_subspaces(own.width, own.rank, draws=N_RANDOM, seed=seed))
        of_frame, *of_random = (
            InSubspace(
                site=RESID_PRE, layer=layer, kind="swap", basis=basis.to(like), turn=None, shift=None, name=own.name
            )
            for basis in bases
        )
        edits[layer] = [of_frame, Replace(site=RESID_PRE, layer=layer, mode="resample"), *of_random]

    def scored(which: slice, n: int) -> Float[np.ndarray, "pair layer condition"]:
        variants = [(edit,) for layer in swap.layers for edit in edits[layer][which]]
        plan = EditPlan(replayer=model.replayer(), spec=model.spec, means={}, conditions=lambda _: variants)
        sums = score_pairs(swap.pairs(n), plan, n).by_layer(len(swap.layers)).conditions[..., 0]
        shift: np.ndarray = sums[..., Score.KL] - sums[..., Score.DONOR_KL]
        return shift

    swapped, random = scored(slice(0, 2), swap.n), scored(slice(2, None), min(swap.n, N_RANDOM_PAIRS))
    return swapped[:, :, 0], swapped[:, :, 1].mean(axis=0), random.mean(axis=(0, 2))


def frame_ratios(
    model: Model, swap: Intervention, subspaces: Mapping[int, Subspace], run: Run
) -> Float64[np.ndarray, " layer"]:
    """Return ‖P_J P_F‖² / min(r, rank F) over its value for a random J, per layer; J: the top-r Jacobian directions.

    It is the overlap of the directions on which answers depend with the frame; 1 is chance.

    References: the J-lens note of Agarwal, Dalal & Misra's repository.
    """
    grams = jacobian_grams(model, run.trials, RESID_PRE, swap.layers, seed=derived_seed(swap.seed, _JACOBIAN))
    ratios = []
    for layer in swap.layers:
        gram, basis = grams[layer].cpu(), subspaces[layer].basis.cpu()
        rank = min(MAX_RANK, basis.shape[1])
        leading = torch.linalg.eigh(gram).eigenvectors[:, -rank:]
        shared = float((leading.T @ basis.double().to(leading)).square().sum()) / rank
        ratios.append(shared / (basis.shape[1] / len(basis)))
    return np.array(ratios)
