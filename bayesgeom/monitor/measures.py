"""Measurements of a monitor: one forward pass over a few fixed sequences, and the hypotheses' keys from the weights.

The model is not changed: submodule modes, the random state and existing hooks are restored, also after an exception.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from bayesgeom.core.run import PATTERN, TOKEN_KEYS, Trials, V, at_scored
from bayesgeom.core.torch_state import Change, SiteLayer, keeping
from bayesgeom.models.base import Model, hooked_sites
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.bootstrap import shuffled_within_position
from bayesgeom.stats.information import entropy_bits, kl_bits, total_variation
from bayesgeom.stats.overlap import centered, orthogonality, pairwise_cosine
from bayesgeom.stats.regression import ranks

APART = 0.5  # cosine of 60 degrees: hypotheses whose keys are closer share a direction
MAX_POINTS = 256  # scored positions compared in pairs
DRAWS = 200
METRICS = ("key_orthogonality", "coverage", "separation", "kl_bits", "attention_entropy_bits")


@final
@dataclass(frozen=True, kw_only=True)
class Measures:
    """One measurement; NaN if the model lacks the site or the task has no posterior.

    Attributes:
        key_orthogonality: 1 − the root mean square cosine of distinct hypotheses' keys, per layer and key head.
        coverage: Share of hypotheses whose centered key is more than 60° from every other.
        attention_entropy_bits: Mean over scored rows.
        kl_bits: KL(exact ‖ model) of every sequence.
        separation: Rank correlation, over pairs of scored positions, of the distance between their last-layer values
            with the total variation between their exact posteriors.
        shuffled_separation: The same with posteriors of other sequences at the same position.
    """

    key_orthogonality: Float64[np.ndarray, "layer kv_head"]
    coverage: Float64[np.ndarray, "layer kv_head"]
    attention_entropy_bits: Float64[np.ndarray, "layer head"]
    kl_bits: Float64[np.ndarray, " sequence"]
    separation: float
    shuffled_separation: float

    def summary(self) -> dict[str, float]:
        """Return the numbers that thresholds apply to: key frames of the first layer, means over all for the rest."""
        return {
            "key_orthogonality": float(self.key_orthogonality[0].mean()),
            "coverage": float(self.coverage[0].mean()),
            "separation": self.separation,
            "kl_bits": float(self.kl_bits.mean()),
            "attention_entropy_bits": float(self.attention_entropy_bits.mean()),
        }


def measured(model: Model, trials: Trials, *, seed: int) -> Measures:
    """Return all measurements, from one pass over these sequences.

    Args:
        model: The model, which is not changed.
        trials: Fixed sequences.
        seed: Seed of the choice of positions and of the permutation of posteriors between sequences.
    """
    stored: dict[SiteLayer, Tensor] = {}
    with undisturbed(model.module), torch.no_grad(), hooked_sites(model, _watched(model, trials, stored)):
        logits = model.logits(trials)
        frames = _frame_statistics(model, trials)
    kl = np.full(len(trials), np.nan)
    if trials.has_posterior:
        log_answers, _ = answer_log_probabilities(logits, trials)
        kl = kl_bits(trials.at_scored(trials.predictive), log_answers).mean(dim=1).cpu().numpy()
    spec, last = model.spec, stored.get((V, model.spec.n_layers - 1))
    separated = _separation(last, trials, seed) if last is not None and trials.has_posterior else (math.nan,) * 2
    entropies = [stored.get((PATTERN, layer)) for layer in range(spec.n_layers)]
    blank = torch.full((spec.n_heads,), torch.nan)
    return Measures(
        key_orthogonality=frames[0],
        coverage=frames[1],
        attention_entropy_bits=torch.stack([(blank if e is None else e).double().cpu() for e in entropies]).numpy(),
        kl_bits=kl,
        separation=separated[0],
        shuffled_separation=separated[1],
    )


def chance_levels(model: Model, trials: Trials, uniform_kl_bits: float, *, seed: int) -> dict[str, float]:
    """Return the chance level of each measurement.

    These are random directions of the same width and number, uniform attention, and uniform answers. It is NaN for
    separation, whose baseline is measured at every step.
    """
    generator = torch.Generator().manual_seed(seed)
    n = len(_hypotheses(trials))
    draws = torch.randn(DRAWS, max(n, 1), model.spec.d_head, generator=generator, dtype=torch.float64)
    orthogonal, covered = _of_frames(draws)
    visible = (trials.scored_positions() + 1).double()
    return {
        "key_orthogonality": float(orthogonal.mean()) if n > 1 else math.nan,
        "coverage": float(covered.mean()) if n > 1 else math.nan,
        "separation": math.nan,
        "kl_bits": uniform_kl_bits,
        "attention_entropy_bits": float(visible.log2().mean()),
    }


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode and disable autocast inside the block; restore modes and the random state afterwards."""
    training = {part: part.training for part in module.modules()}
    module.eval()
    device = next((p.device.type for p in module.parameters()), "cpu")
    try:
        with torch.random.fork_rng(), torch.autocast(device, enabled=False):
            yield
    finally:
        for part, was_training in training.items():
            part.training = was_training


def _watched(model: Model, trials: Trials, stored: dict[SiteLayer, Tensor]) -> dict[SiteLayer, Change]:
    """Hooks that keep the entropy of every layer's pattern, and the last layer's values."""

    def attention(layer: int) -> Change:
        def keep(pattern: Tensor) -> None:
            scored = at_scored(PATTERN, pattern, trials)
            stored[PATTERN, layer] = entropy_bits(scored.float()).mean(dim=(0, 2))

        return keep

    layers, last = range(model.spec.n_layers), (V, model.spec.n_layers - 1)
    patterns = {(PATTERN, layer): attention(layer) for layer in layers if PATTERN in model.sites}
    return patterns | ({last: keeping(stored, last)} if V in model.sites else {})


def _hypotheses(trials: Trials) -> Int64[Tensor, " token"]:
    """The ids whose keys form the key frame: the hypotheses, or the task's first token set."""
    sets = trials.token_sets
    return sets.get("hypotheses", next(iter(sets.values()), trials.answers[:0]))


def _frame_statistics(model: Model, trials: Trials) -> tuple[np.ndarray, np.ndarray]:
    ids, spec = _hypotheses(trials), model.spec
    if TOKEN_KEYS not in model.sites or len(ids) < 2:
        unknown = np.full((spec.n_layers, spec.n_kv_heads), np.nan)
        return unknown, unknown
    keys = torch.stack([model.static(TOKEN_KEYS, ids, layer) for layer in range(spec.n_layers)])
    orthogonal, covered = _of_frames(keys.transpose(1, 2).double())
    return orthogonal.cpu().numpy(), covered.cpu().numpy()


def _of_frames(
    keys: Float64[Tensor, "*frame item d"],
) -> tuple[Float64[Tensor, "*frame"], Float64[Tensor, "*frame"]]:
    """Orthogonality of the keys, and coverage of the centered keys, because softmax ignores the mean key."""
    apart = pairwise_cosine(centered(keys))
    itself = torch.eye(apart.shape[-1], dtype=torch.bool, device=apart.device)
    nearest = apart.masked_fill(itself, -1).nan_to_num(nan=1.0).amax(dim=-1)
    return orthogonality(pairwise_cosine(keys)), (nearest < APART).double().mean(dim=-1)


def _separation(values: Float[Tensor, "batch pos kv_head d_head"], trials: Trials, seed: int) -> tuple[float, float]:
    """The correlation, and the same with posteriors permuted between sequences within each position."""
    rng = np.random.default_rng(seed)
    exact = trials.at_scored(trials.predictive).cpu().numpy()
    exchanged = shuffled_within_position(exact, rng)
    points = trials.at_scored(values).flatten(2).flatten(0, 1).double().cpu()
    chosen = torch.from_numpy(np.sort(rng.permutation(len(points))[:MAX_POINTS]))
    above = torch.triu_indices(len(chosen), len(chosen), 1)
    distance = _unit_ranks(torch.cdist(points[chosen], points[chosen])[above[0], above[1]])
    found = []
    for posteriors in (exact, exchanged):
        p = torch.from_numpy(posteriors).flatten(0, 1)[chosen]
        found.append(float(distance @ _unit_ranks(total_variation(p[above[0]], p[above[1]]))))
    return found[0], found[1]


def _unit_ranks(x: Float64[Tensor, " pair"]) -> Float64[np.ndarray, " pair"]:
    """Ranks with mean 0 and norm 1; NaN if all are equal. Differences by rounding are ties."""
    r = ranks(x.numpy().round(9))
    r = r - r.mean()
    length = float(np.linalg.norm(r))
    return r / length if length > 0 else np.full_like(r, np.nan)
