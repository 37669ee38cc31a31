"""Bits lost without a part or an edge: their estimates, and the largest of them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.report.estimate import Baseline, Estimate, mean_estimate
from bayesgeom.report.findings import Finding, Opening, mattering
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of, headline_of_largest
from bayesgeom.stats.behavior import context_free_kl_bits

NO_EFFECT = "no effect"
FIELD = "kl_increase_bits"
_ROUNDING = 1e-7  # bits, of logits in float32


def effects_of(lost: Float[np.ndarray, "sequence entry"], seed: int) -> Estimate:
    """Return the mean KL increase of every entry; one that is rounding in every sequence has no effect, exactly."""
    lost = np.where((np.abs(lost) < _ROUNDING).all(axis=0), 0.0, lost)
    estimate = mean_estimate(lost, seed=seed, baselines=[Baseline.of("baseline", NO_EFFECT, 0.0)])
    low, high = (np.where((lost == 0).all(axis=0), 0.0, end) for end in estimate.ends)
    return replace(estimate, low=low, high=high)


def ranked(effects: Estimate) -> list[int]:
    """Return the indices of the entries, largest KL increase first."""
    return [int(index) for index in np.argsort(-effects.value, kind="stable")]


def context_free(exact: Sequence[Float64[Tensor, "batch query_pos answer"]]) -> list[Baseline]:
    """Return the KL of context-free predictors, from the exact predictive in batches."""
    found = context_free_kl_bits(torch.cat(list(exact)).cpu().numpy())
    return [Baseline.of("baseline", name, float(bits.mean())) for name, bits in found.items()]


def answer_of(effects: Estimate, before: Estimate, labels: Sequence[str], *, parts: str, largest: Finding) -> Opening:
    """Return the largest effect, or that none is shown to matter, with the largest change.

    Args:
        effects: The KL increase of every entry.
        before: KL of the model with all of them.
        labels: Names of the entries.
        parts: What they are.
        largest: What is said of the largest effect.
    """
    finding = largest if mattering(effects, before).any() else Finding.NONE_MATTER
    (top,), bits = _largest(effects)
    return finding.of(count=len(labels), parts=parts, name=labels[top], bits=bits, before=before)


def _largest(effects: Estimate) -> tuple[tuple[int, ...], Estimate]:
    """Return the largest KL increase; where KL never rises, the largest fall."""
    return effects.extreme("largest" if np.nanmax(effects.value) > 0 else "smallest")


def headlines_of(report: Report, labels: Sequence[str], first: str, *, most: int) -> Sequence[Headline]:
    """Return the largest effects; the interval of the first allows for its choice, if there are enough sequences."""
    effects = report.estimate(FIELD)
    (top,), effect = _largest(effects)
    label = f"{first if effect.value >= 0 else 'largest change'}: {labels[top]}"
    line = headline_of_largest(report, FIELD, (top,), label, effect)
    return line, *(headline_of(report, FIELD, (at,), labels[at]) for at in ranked(effects)[:most] if at != top)
