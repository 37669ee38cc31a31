"""Measurements of a monitor and their report: one forward pass over a few fixed sequences, and keys from the weights.

The model is not changed: submodule modes, the random state and existing hooks are restored, also after an exception.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor, nn

from bayesgeom.core import PATTERN, TOKEN_KEYS, Trials, V, at_scored
from bayesgeom.core.torch_state import Change, SiteLayer, evaluating, store_activation
from bayesgeom.models.base import Model, hooked_sites, visible
from bayesgeom.report.estimate import Estimate, Kind, NonNegative, Quantity, Unit
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import quantities_of
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.behavior import answer_log_probabilities, predicted_behavior
from bayesgeom.stats.bootstrap import shuffled_within_position
from bayesgeom.stats.information import kl_bits, row_entropy_bits, total_variation
from bayesgeom.stats.overlap import centered, orthogonality, pairwise_cosine
from bayesgeom.stats.regression import ranks

APART = 0.5  # cosine of 60 degrees: hypotheses whose keys are closer share a direction
MAX_POINTS = 256  # scored positions compared in pairs
DRAWS = 200
UNIFORM, DIRECTIONS, ATTENTION = "uniform predictor", "random directions", "uniform attention"
OTHERS, UNTRAINED = "other sequences' posteriors", "untrained network"
LEVELS: Mapping[str, tuple[Kind, str]] = {  # the baseline of each measurement, in display order
    "kl_bits": ("baseline", UNIFORM),
    "key_orthogonality": ("chance", DIRECTIONS),
    "coverage": ("chance", DIRECTIONS),
    "separation": ("permutation", OTHERS),
    "attention_entropy_bits": ("chance", ATTENTION),
}
_RANGES = {"separation": "−1 … 1"}  # where it is not 0 … 1


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
            "key_orthogonality": _mean(self.key_orthogonality[:1]),
            "coverage": _mean(self.coverage[:1]),
            "separation": self.separation,
            "kl_bits": float(self.kl_bits.mean()),
            "attention_entropy_bits": _mean(self.attention_entropy_bits),
        }


def _mean(values: np.ndarray) -> float:
    """Return the mean; NaN of a model without layers or heads."""
    return float(values.mean()) if values.size else math.nan


def measured(model: Model, trials: Trials, *, seed: int) -> Measures:
    """Return all measurements, from one pass over these sequences.

    Args:
        model: The model, which is not changed.
        trials: Fixed sequences.
        seed: Seed of the choice of positions and of the permutation of posteriors between sequences.
    """
    spec, last = model.spec, (V, model.spec.n_layers - 1)
    entropies, stored = np.full((spec.n_layers, spec.n_heads), np.nan), dict[SiteLayer, Tensor]()

    def keep_entropy(layer: int, pattern: Tensor) -> None:
        rows = row_entropy_bits(at_scored(PATTERN, pattern, trials).float())
        entropies[layer] = rows.mean(dim=(0, 2)).double().cpu().numpy()

    hooks: dict[SiteLayer, Change] = {(PATTERN, at): partial(keep_entropy, at) for at in model.layers_of(PATTERN)}
    hooks |= {last: store_activation(stored, last)} if last[1] in model.layers_of(V) else {}
    with undisturbed(model.module), torch.no_grad(), hooked_sites(model, hooks):
        logits = model.logits(trials)
        orthogonal, covered = _frame_statistics(model, trials)
    kl, separated = np.full(len(trials), np.nan), (math.nan, math.nan)
    if trials.has_posterior:
        log_answers, _ = answer_log_probabilities(logits, trials)
        kl = kl_bits(trials.at_scored(trials.predictive), log_answers).mean(dim=1).cpu().numpy()
        separated = _separation(stored[last], trials, seed) if stored else separated
    return Measures(
        key_orthogonality=orthogonal,
        coverage=covered,
        attention_entropy_bits=entropies,
        kl_bits=kl,
        separation=separated[0],
        shuffled_separation=separated[1],
    )


def chance_levels(model: Model, trials: Trials, *, seed: int) -> dict[str, float]:
    """Return the chance level of each measurement.

    These are random directions of the same width and number, uniform attention, and uniform answers. It is NaN for
    separation, whose baseline is measured at every step.
    """
    generator = torch.Generator().manual_seed(seed)
    n = len(_hypotheses(trials)) if model.spec.d_head else 0
    draws = torch.randn(DRAWS, max(n, 1), model.spec.d_head, generator=generator, dtype=torch.float64)
    orthogonal, covered = _of_frames(draws)
    uniform_kl_bits, positions = math.nan, trials.scored_positions()
    masks = visible(model, trials) if model.spec.n_heads else []
    visible_bits = [float(mask[positions].sum(dim=-1).double().log2().mean()) for mask in masks]
    if trials.has_posterior:
        exact = trials.at_scored(trials.predictive)
        uniform = torch.full_like(exact, 1 / exact.shape[-1])
        uniform_kl_bits = float(predicted_behavior(trials, uniform).kl_bits.mean())
    return {
        "key_orthogonality": float(orthogonal.mean()) if n > 1 else math.nan,
        "coverage": float(covered.mean()) if n > 1 else math.nan,
        "separation": math.nan,
        "kl_bits": uniform_kl_bits,
        "attention_entropy_bits": _mean(np.array(visible_bits)),
    }


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode and disable autocast inside the block; restore modes and the random state afterwards."""
    device = next((p.device.type for p in module.parameters()), "cpu")
    with evaluating(module), torch.random.fork_rng(), torch.autocast(device, enabled=False):
        yield


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


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class MonitorReport(Report):
    """The model was measured at regular steps on the same few sequences.

    Each number has its chance level and the level of an untrained network. Thresholds are drawn as lines: they say
    where to look, not what is true. Random directions of a head's width may pass them, and a model that predicts
    exactly may fail them; KL to the exact posterior is the number that decides.

    Fields: measurements by step, always on the same sequences; the interval of KL is over these sequences.

    Baselines are random directions of the same width and number, uniform attention, the uniform predictor, posteriors
    permuted within positions, and an untrained network of the same architecture if it was measured. `threshold` is the
    level of each of the `rules`: a measurement of that name, or `degenerate_orthogonality`.
    """

    name: ClassVar[str] = "monitor"
    title: ClassVar[str] = "Monitor: how did training go?"

    steps: tuple[str, ...]
    # Without `better`: the uniform predictor is a scale. `calibration` compares with the task's strongest baseline.
    kl_bits: Annotated[Estimate, NonNegative("step", unit="bits", label="KL(exact ‖ model)")]
    key_orthogonality: Annotated[
        Estimate, Quantity("step", better="higher", label="orthogonality of hypothesis keys, layer 0")
    ]
    coverage: Annotated[
        Estimate, Quantity("step", better="higher", label="hypotheses with a direction of their own, layer 0")
    ]
    separation: Annotated[
        Estimate, Quantity("step", better="higher", label="separation of the last values by posterior")
    ]
    attention_entropy_bits: Annotated[
        Estimate, Quantity("step", unit="bits", better="lower", label="attention entropy")
    ]
    key_orthogonality_by_head: Annotated[Float[np.ndarray, "step layer kv_head"], Unit("1")]
    coverage_by_head: Annotated[Float[np.ndarray, "step layer kv_head"], Unit("1")]
    attention_entropy_bits_by_head: Annotated[Float[np.ndarray, "step layer head"], Unit("bits")]
    rules: tuple[str, ...]
    threshold: Annotated[Float[np.ndarray, " rule"], Unit("bits or 1, as the name of each rule states")]
    events: tuple[str, ...]  # their kinds
    event_metrics: Annotated[tuple[str, ...], "event"]
    event_step: Annotated[Int[np.ndarray, " event"], Unit("steps")]
    event_value: Annotated[Float[np.ndarray, " event"], Unit("bits or 1, as the metric states")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        last, quantities = (len(self.steps) - 1,), quantities_of(type(self))
        return [
            headline_of(self, m, at=last, label=f"{quantities[m].label}, step {int(self.steps[-1]):,}", verdict="")
            for m in LEVELS
        ]

    def answer(self) -> Opening:
        uniform = next((level.value[-1] for level in self.kl_bits.baselines if level.name == UNIFORM), math.nan)
        step, events = int(self.steps[-1]), sorted(set(self.events) - {"reached"})
        return Finding.MONITORED.of(step=step, bits=self.kl_bits[-1], uniform=uniform, events=events)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.curves import Curve, add_curves
        from bayesgeom.charts.lines import brief
        from bayesgeom.report.theme import BASELINE

        quantities, at = quantities_of(type(self)), np.array([int(step) for step in self.steps])
        thresholds, drawn = dict(zip(self.rules, self.threshold, strict=True)), list[Panel]()
        for metric in LEVELS:
            own = self.estimate(metric)
            last = brief(own.value[-1])
            panel = Panel.blank(f"{quantities[metric].label}: {last} at step {int(self.steps[-1]):,}", height=260)
            levels = [(f"baseline: {level.name}", level.value) for level in own.baselines]
            if metric in thresholds:
                levels.append(("threshold", np.full(len(at), thresholds[metric])))
            curve = Curve(name="measured", values=own.value, band=own.ends)
            unit = quantities[metric].unit or _RANGES.get(metric, "0 … 1")
            add_curves(panel.figure, at, [curve], unit=unit, levels=levels)
            for step in self.event_step[np.array(self.events) != "reached"]:
                panel.figure.add_vline(x=int(step), line={"color": BASELINE, "width": 1})
            drawn.append(panel)
        drawn[0].figure.update_yaxes(type="log", exponentformat="power")
        return drawn
