"""Measurements of one snapshot on the fixed trials, as estimates that are joined along steps.

The resamples are the same at every snapshot, so differences between snapshots are paired. Numbers that an architecture
does not provide are NaN, with the reason in `missing`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from bayesgeom.measurements._beliefs import SUBSPACES as RANDOM_SUBSPACES
from bayesgeom.measurements.base import Subject, known
from bayesgeom.measurements.belief_readout import BeliefReadout
from bayesgeom.measurements.calibration import Calibration
from bayesgeom.measurements.inside import numbers_of
from bayesgeom.measurements.key_overlap import ACTIVATION, RANDOM_DIRECTIONS, KeyOverlap
from bayesgeom.measurements.posterior_lens import PosteriorLens
from bayesgeom.measurements.value_manifold import MAX_POINTS, MIN_SEQUENCES, SHUFFLE, ValueManifold
from bayesgeom.models.base import Model, bytes_per_sequence, recording_bytes, run_on
from bayesgeom.report.estimate import Baseline, Estimate, smooth_estimate, with_ceiling
from bayesgeom.report.storage import quantities_of
from bayesgeom.stats.behavior import UNIFORM as CONTEXT_FREE
from bayesgeom.stats.bootstrap import jackknife_weights
from bayesgeom.stats.information import jensen_shannon_bits
from bayesgeom.stats.resampling import resampled_axis_shares
from bayesgeom.stats.subspace import cloud_axes, random_subspaces
from bayesgeom.subspaces.base import InterventionSite, Sample, Subspace
from bayesgeom.subspaces.fits import frame
from bayesgeom.subspaces.jacobian import N_SEQUENCES, jacobian_grams
from bayesgeom.tasks.base import WindTunnel, derived_seed

MAX_PAIRS, N_SHOWN = 128, 240
MAX_MAP = 2**17  # entries of one snapshot's attention maps
N_RANDOM, N_RANDOM_PAIRS = 20, 16  # random subspaces of the same rank, and the pairs on which they are scored
N_VIEWED = 4  # sequences in the viewer
MAX_RANK = 8  # number of leading directions of the Jacobian
_DRAWS, _JACOBIAN, _SHOWN = 7, 8, 9  # branches of the seed
Numbers = Mapping[str, Estimate | np.ndarray]


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
        """Return the bench of all snapshots of an architecture, recording as many sequences as fit into a budget twice.

        A snapshot's pass is in memory together with that of the last one.

        Raises:
            InvalidArgument: Fewer than two fit.
        """
        n_recorded = min(n, budget_bytes // (2 * _bytes_recorded(model, task)))
        if n_recorded < 2:
            raise InvalidArgument(
                f"one sequence of {task}, of {task.n_pos} tokens, fills the recording budget: it is too long "
                f"for training dynamics. Use a task with shorter sequences."
            )
        return cls(task=task, n=n, seed=seed, n_recorded=n_recorded)

    def passed(self, model: Model) -> Run:
        """Run a model on the fixed trials; the free memory decides the size of passes, not what is recorded."""
        budget = max(recording_bytes(model.spec.device), self.n_recorded * _bytes_recorded(model, self.task))
        read = {"record": _sites_of(model), "n_recorded": self.n_recorded, "budget_bytes": budget}
        return run_on(model, self.task, n=self.n, seed=self.seed, baseline_predictives=None, **read)


def _sites_of(model: Model) -> tuple[Site, ...]:
    lens = (LOGIT_LENS,) if len(model.layers_of(LOGIT_LENS)) == model.spec.n_layers else ()
    return (*(site for site in (K, V, PATTERN, RESID_POST) if site in model.sites), *lens)


def _bytes_recorded(model: Model, task: WindTunnel) -> int:
    """Return the bytes of one recorded sequence."""
    layers = {site: model.layers_of(site) for site in _sites_of(model)}
    return max(1, bytes_per_sequence(model.spec, layers, task.sample(1, seed=0)))


def measured(subject: Subject) -> SnapshotNumbers:
    """Return every measurement that this architecture supports; the others are NaN."""
    spec = subject.run.spec
    sizes, missing = {"layer": spec.n_layers, "stage": spec.n_layers + 1}, dict[str, str]()
    estimates = {
        name: Estimate.of(np.full([sizes[dim] for dim in quantity.dims if dim in sizes], np.nan), n=subject.run.n)
        for name, quantity in quantities_of(DynamicsReport).items()
        if "run" in quantity.dims
    }
    arrays: dict[str, np.ndarray] = {"pattern_distance_bits_by_layer": np.full(spec.n_layers, np.nan)}
    for title, part in PARTS.items():
        try:
            numbers = part(subject)
        except (MissingSite, InvalidArgument, TaskMismatch) as reason:
            missing[title] = str(reason)
        else:
            estimates |= {name: each for name, each in numbers.items() if isinstance(each, Estimate)}
            arrays |= {name: each for name, each in numbers.items() if isinstance(each, np.ndarray)}
    return SnapshotNumbers(spec=spec, estimates=estimates, arrays=arrays, missing=missing)


def _against(estimate: Estimate, name: str = "", label: str = "") -> Estimate:
    """Return a probe's estimate with one of its baselines alone, under the label of the curves."""
    return replace(
        estimate, baselines=tuple(replace(each, name=label) for each in estimate.baselines if each.name == name)
    )


def _last(subject: Subject, site: Site) -> Run:
    """Return the run with one site of the last layer alone."""
    return subject.run.within((subject.run.spec.n_layers - 1,), (site,))


def _calibration(subject: Subject) -> Numbers:
    report = Calibration().measure(subject.run)
    free = report.reference_kl_bits[report.references.index(CONTEXT_FREE)]
    return {
        "kl_bits": replace(report.kl_bits, baselines=known(Baseline.of("baseline", UNIFORM, free))),
        "entropy_mae_bits": _against(report.entropy_mae_bits),
    }


def _lens(subject: Subject) -> Numbers:
    subject.edited().require((LOGIT_LENS,), by="the posterior lens")
    report = PosteriorLens().measure(subject.run)
    return {"lens_kl_bits": report.kl_bits, "arrival": report.arrival}


def _patterns(subject: Subject) -> Numbers:
    """Return the distance of attention patterns from those of the last snapshot."""
    subject.edited().require((PATTERN,), by="pattern distance")
    pairs, n = zip(subject.run.at(PATTERN), _reference(subject).at(PATTERN), strict=True), subject.run.n_recorded
    distances = torch.stack([jensen_shannon_bits(p.double(), q.double()).mean(dim=(1, 2)) for p, q in pairs])
    rows = jackknife_weights(n) @ distances.clamp_min(0).T.cpu().numpy()
    return {
        "pattern_distance_bits": smooth_estimate(rows.mean(axis=-1), seed=subject.run.seed, n=n),
        "pattern_distance_bits_by_layer": rows[0],
    }


def _maps(subject: Subject) -> Numbers:
    subject.edited().require((PATTERN,), by="attention maps")
    maps = subject.run.at(PATTERN)[:, 0].mean(dim=1)
    if maps.numel() > MAX_MAP:
        raise InvalidArgument(
            f"attention maps of shape {tuple(maps.shape)} have {maps.numel():,} entries; at most {MAX_MAP:,} are "
            f"stored for each snapshot. Use a task with shorter sequences."
        )
    return {"maps": maps.double().cpu().numpy()}


def _viewed(subject: Subject) -> Numbers:
    """Return what the viewer shows of a few sequences: predictions, and what the logit lens reads in every layer."""
    trials, model = subject.run.trials.rows(slice(0, N_VIEWED)), subject.edited()
    sites = [LOGIT_LENS] if model.layers_of(LOGIT_LENS) else []
    shown = model.run([trials], record=sites, n_recorded=len(trials))
    return {f"{VIEWED}{name}": values for name, values in numbers_of(shown).items()}


def _keys(subject: Subject) -> Numbers:
    """Return the mean |cosine| between the keys of hypothesis tokens, mean over key heads."""
    subject.edited().require((K,), by="key overlap")
    sets = subject.run.trials.token_sets
    tokens = next((name for name in ("hypotheses", "inputs") if name in sets), None)
    if tokens is None:
        raise InvalidArgument(
            f"key overlap needs a token set hypotheses or inputs; {subject.task} has: {', '.join(sets) or '(none)'}."
        )
    report = KeyOverlap().measure(subject.run)
    at = report.token_sets.index(tokens), report.variants.index(ACTIVATION)
    overlap = report.mean_overlap[at]
    return {"key_overlap": _against(overlap, RANDOM_DIRECTIONS, DIRECTIONS)}


def _manifold(subject: Subject) -> Numbers:
    """Return the shape of the last layer's values, or of its residual stream in a model without values."""
    report = ValueManifold().measure(_last(subject, _valued(subject.run)))
    return {
        "pc1_share": _against(report.pc1_share[0, 0]),
        "curve_share": _against(report.curve_share[0, 0], SHUFFLE, SHUFFLED),
    }


def _film(subject: Subject) -> Numbers:
    """Return the points of the manifold on the first two principal axes of the last snapshot, and their variance."""
    points, entropy = _cloud(subject.run)
    axes, n = _axes(_reference(subject)), len(points)
    flat = points.cpu().numpy()
    placed = ((flat - flat.mean(axis=(0, 1))).astype(np.float64) @ axes).reshape(-1, axes.shape[1])
    chosen = np.sort(np.random.default_rng(derived_seed(subject.seed, _SHOWN)).permutation(len(placed))[:N_SHOWN])
    share = resampled_axis_shares(flat, axes, jackknife_weights(n)).sum(axis=0)
    plane = known(Baseline.of("chance", RANDOM_PLANE, axes.shape[1] / len(axes)))
    return {
        "final_axes_share": smooth_estimate(share, seed=subject.run.seed, n=n, scale="share", baselines=plane),
        "points": placed[chosen],
        "point_entropy_bits": entropy.ravel()[chosen],
    }


def _cloud(run: Run) -> tuple[Float[Tensor, "sequence position d"], Float64[np.ndarray, "sequence position"]]:
    """Return the vectors of the manifold in the last layer, and the exact entropy there."""
    n = min(run.n_recorded, max(MIN_SEQUENCES, MAX_POINTS // run.trials.n_scored))
    return run.vectors(_valued(run), -1)[:n], run.reference_entropy_bits()[:n]


def _axes(run: Run) -> Float64[np.ndarray, "d axis"]:
    """Return the first two principal axes of the manifold; the first one in the direction of rising entropy."""
    points, entropy = _cloud(run)
    flat = points.flatten(0, 1).double().cpu()
    axes: Float64[np.ndarray, "d axis"] = cloud_axes(flat)[1][:, :2].numpy()
    first = flat.numpy() @ axes[:, 0]
    axes[:, 0] *= np.sign(np.dot(first - first.mean(), entropy.ravel())) or 1.0
    return axes


def _valued(run: Run) -> Site:
    return V if V in run.recorded else RESID_POST


def _reference(subject: Subject) -> Run:
    assert subject.reference is not None, "every snapshot is compared with the last one"
    return subject.reference


def _belief(subject: Subject) -> Numbers:
    """Return held-out R² of a linear map from the last layer's residual stream to the exact belief."""
    subject.edited().require((RESID_POST,), by="the belief read-out")
    report = BeliefReadout().measure(_last(subject, RESID_POST))
    return {"belief_r2": _against(report.r2[0, 0], RANDOM_SUBSPACES, SUBSPACES)}


def _frame(subject: Subject) -> Numbers:
    model, run, task, seed = subject.edited(), subject.run, subject.known_task(), subject.seed
    swap, subspaces = key_frame(model, task, run, n=min(run.n, MAX_PAIRS), seed=seed)
    by_pair, whole, random = _answer_shifts(model, swap, subspaces)
    rows, level = jackknife_weights(len(by_pair)) @ by_pair, known(Baseline.of("chance", SUBSPACES, random))
    shift = smooth_estimate(rows, seed=seed, n=len(by_pair), baselines=level)
    ratios, n = frame_ratios(model, swap, subspaces, run), min(run.n_recorded, N_SEQUENCES)
    return {
        "answer_shift_bits": with_ceiling(shift, whole),
        "frame_ratio": Estimate.of(ratios, n=n, baselines=known(Baseline.of("chance", DIRECTIONS, 1.0))),
    }


PARTS: Mapping[str, Callable[[Subject], Numbers]] = {
    "calibration": _calibration,
    "posterior lens": _lens,
    "attention-pattern distance": _patterns,
    "attention maps": _maps,
    "viewer": _viewed,
    "key overlap": _keys,
    "value manifold": _manifold,
    "manifold film": _film,
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
        subspace, seed = subspaces[layer], derived_seed(swap.seed, _DRAWS, layer)
        bases = (subspace.basis, *random_subspaces(subspace.width, subspace.rank, draws=N_RANDOM, seed=seed))
        of_frame, *of_random = (
            InSubspace(site=RESID_PRE, layer=layer, kind="swap", basis=basis.to(like), name=subspace.name)
            for basis in bases
        )
        edits[layer] = [of_frame, Replace(site=RESID_PRE, layer=layer, mode="resample"), *of_random]

    def scored(which: slice, n: int) -> Float[np.ndarray, "pair layer condition"]:
        variants = [(edit,) for layer in swap.layers for edit in edits[layer][which]]
        plan = EditPlan(replayer=model.replayer(), spec=model.spec, means={}, conditions=lambda _: variants)
        sums = score_pairs(swap.pairs(n), plan, n).by_layer(len(swap.layers)).conditions[..., 0]
        return np.asarray(sums[..., Score.KL] - sums[..., Score.DONOR_KL])

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
