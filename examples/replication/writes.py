"""`write_strength`: the norm of what each head writes into a subspace, compared with the effect of ablating the head.

The norm is absolute, not a share of the head's output, because a share ranks idle heads first (J-lens note).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.ablations.report import AblationReport
from bayesgeom.core.errors import InvalidArgument, checked
from bayesgeom.core.run import ATTN_OUT, W_O, Run, Z
from bayesgeom.core.text import aligned_table, number_text
from bayesgeom.core.torch_state import with_gradients
from bayesgeom.core.verdict import Reason
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.interventions.run import SubspaceLike
from bayesgeom.measurements.ablation import ablate
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.resolve import ModelLike, TaskLike, as_model, scored_task_of
from bayesgeom.report.estimate import Baseline, Estimate, Quantity, mean_estimate
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.regression import spearman
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces.base import InterventionSite, Subspace
from bayesgeom.subspaces.fits import as_fit
from bayesgeom.tasks.base import derived_seed

if TYPE_CHECKING:
    from bayesgeom.report.panels import Panel

N_RANDOM = 20
N_WRITTEN = 128  # sequences over which write strength is averaged
_HELD_OUT, _DRAWS = 6, 7  # branches of the seed
RANDOM, SHEER = "random subspaces", "strength in random subspaces"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class WriteReport(Report):
    """Mean over sequences and scored positions of ‖P W_O z‖ for every head, and the KL increase of ablating the head.

    The baseline of `strength` is the mean over random subspaces of the same rank, with the least and the greatest of
    them. The baseline of `rank_correlation` is the rank correlation of that mean, which reflects the overall size of a
    head's output; its ends are the least and the greatest correlation of a single random subspace. The rank correlation
    has no interval, so whether it exceeds the baseline is undecided. `largest_gap` is the largest ratio of two
    successive strengths in order, of which the stronger is among the strongest third of the heads: a bank of heads that
    stand apart has a large one.
    """

    name: ClassVar[str] = "write_strength"
    title: ClassVar[str] = "Write strength: which heads write into the subspace?"
    about: ClassVar[str] = (
        "The norm of each head's output within the subspace, averaged over scored positions, and the KL increase of "
        "ablating the head. If a head matters because it writes into this subspace, both rank the heads alike: the "
        "rank correlation is near 1 and above that of random subspaces of the same rank."
    )

    subspace: str
    strength: Annotated[Estimate, Quantity("layer head", better="higher", label="write strength")]
    kl_increase_bits: Annotated[Estimate, Quantity("layer head", unit="bits", label="KL increase of ablating the head")]
    rank_correlation: Annotated[
        Estimate, Quantity(better="higher", label="rank correlation of strength and KL increase")
    ]
    largest_gap: Annotated[Estimate, Quantity(label="largest ratio of successive strengths in the strongest third")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        (layer, head), own = self.strength.extreme("largest")
        label, count = f"strength of the strongest writer: L{layer}H{head}", self.strength.value.size
        most = headline_of(self, "strength", (layer, head), label, own=own, chosen_of=count)
        return headline_of(self, "rank_correlation"), most, headline_of(self, "largest_gap")

    def panels(self) -> "Sequence[Panel]":
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.charts.lines import with_baseline
        from bayesgeom.report.panels import Panel

        level = float(self.strength.baseline(RANDOM).value.mean())
        titles = (
            with_baseline(f"Written into {self.subspace}", level, RANDOM),
            "KL increase of ablation (baseline: 0)",
        )
        written, increase = panels = [Panel.blank(title) for title in titles]
        add_heat(written.figure, self.strength.value, unit="‖P W_O z‖", baseline=level)
        add_heat(increase.figure, self.kl_increase_bits.value, unit="KL increase (bits)", baseline=0.0)
        return panels

    def table(self) -> str:
        """Return the heads by strength, strongest first."""
        rows: list[tuple[str, ...]] = [("head", "strength", "random", "ΔKL (bits)")]
        random = self.strength.baseline(RANDOM).value
        for layer, head in self._order():
            own = (values[layer, head] for values in (self.strength.value, random, self.kl_increase_bits.value))
            rows.append((f"L{layer}H{head}", *map(number_text, own)))
        return "\n".join(aligned_table(rows))

    def _order(self) -> list[tuple[int, int]]:
        """Return layer and head, the strongest writer first."""
        order = np.argsort(-self.strength.value, axis=None, kind="stable")
        layers, heads = np.unravel_index(order, self.strength.value.shape)
        return [(int(layer), int(head)) for layer, head in zip(layers, heads, strict=True)]


@checked("model", "task", "subspace")
@with_gradients
def write_strength(
    model: ModelLike,
    task: TaskLike | None = None,
    subspace: SubspaceLike = "frame",
    *,
    n: int = 256,
    seed: int = 0,
    ablation: AblationReport | None = None,
) -> WriteReport:
    """Measure how strongly each head writes into a subspace, ‖P W_O z‖, and compare with the effect of ablating it.

    The subspace is fitted at `attn_out` of each layer.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        subspace: One of `bayesgeom.subspaces`, a `Subspace`, or its text as on the command line. Default: the key
            frame.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.
        ablation: Report of a battery that ablates every head alone. Default: it is run on `n` sequences.

    Returns:
        Write strength and ablation effect of every head.

    Raises:
        InvalidArgument: As for `intervene`, or a head is missing from `ablation`.
        MissingSite: The model has no attention heads.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> write_strength(module, task, n=8).name
        'write_strength'
    """
    subject, fit, place, design = as_model(model), as_fit(subspace), InterventionSite(ATTN_OUT), Design("remove")
    chosen = scored_task_of(subject, task)
    fitting = Intervention.of(subject, chosen, fit, design=design, place=place, n=n, seed=seed)
    subject.require((Z, W_O), by="write strength")
    effects = ablation or ablate(subject, chosen, "heads", n=n, seed=seed)
    subspaces = fit.fitted(fitting.sample(), range(subject.spec.n_layers))
    blocks = chosen.stream(n, seed=derived_seed(seed, _HELD_OUT), device=subject.spec.device)
    run = subject.run(blocks, record=(Z,), n_recorded=min(n, N_WRITTEN))
    report = write_report(subject, run, subspaces, effects.kl_increase_bits_by_head, seed=derived_seed(seed, _DRAWS))
    arguments = {"n": n, "seed": seed, "subspace": fit.label, "ablation": "given" if ablation else "of every head"}
    return with_provenance(report, provenance(subject, chosen, arguments))


@torch.no_grad()
def write_report(
    model: Model,
    run: Run,
    subspaces: Mapping[int, Subspace],
    kl_increase_bits: Float[np.ndarray, "layer head"],
    *,
    seed: int,
) -> WriteReport:
    """Return the report from a run that recorded z.

    Raises:
        InvalidArgument: The KL increase of a head is missing.
    """
    if not np.isfinite(kl_increase_bits).all():
        raise InvalidArgument(
            f"write strength needs the KL increase of every head alone; {int(np.isfinite(kl_increase_bits).sum())} of "
            f"{kl_increase_bits.size} are known: ablate with the battery 'heads'."
        )
    n_layers, n_heads = kl_increase_bits.shape
    strength, random = np.empty((run.n_recorded, n_layers, n_heads)), np.empty((N_RANDOM, n_layers, n_heads))
    for layer, subspace in subspaces.items():
        no_tokens = torch.zeros(0, dtype=torch.int64, device=model.spec.device)
        weights, z = model.static(W_O, no_tokens, layer), run.at(Z)[layer]
        width = weights.shape[2]
        subspaces_drawn = random_subspaces(width, subspace.rank, draws=N_RANDOM, seed=seed + layer)
        by_basis = _strengths(z, weights, torch.cat([subspace.basis[None].to(subspaces_drawn), subspaces_drawn]))
        strength[:, layer], random[:, layer] = by_basis[0], by_basis[1:].mean(axis=1)
    means = (strength.mean(axis=0), random.mean(axis=0))
    effects = kl_increase_bits.ravel()
    own, sheer = (float(spearman(each.ravel(), effects)) for each in means)
    drawn = [float(spearman(each.ravel(), effects)) for each in random]  # of every single random subspace
    level = Baseline.of("chance", RANDOM, means[1], low=random.min(axis=0), high=random.max(axis=0))
    return WriteReport(
        subspace=next(iter(subspaces.values())).name,
        strength=mean_estimate(strength, seed=seed, baselines=[level]),
        kl_increase_bits=Estimate.of(kl_increase_bits),
        rank_correlation=Estimate.of(
            own,
            (np.nan, np.nan),
            reason=Reason.NOT_RESAMPLED,
            baselines=[Baseline.of("chance", SHEER, sheer, low=min(drawn), high=max(drawn))],
        ),
        largest_gap=Estimate.of(_largest_gap(means[0])),
        n=run.n_recorded,
    )


def _largest_gap(strength: Float64[np.ndarray, "layer head"]) -> float:
    """Return the largest ratio of successive strengths, the stronger among the strongest third; NaN below 3 heads."""
    ordered = -np.sort(-strength, axis=None)
    n_in_bank = len(ordered) // 3
    return float((ordered[:n_in_bank] / ordered[1 : n_in_bank + 1]).max()) if n_in_bank else float("nan")


def _strengths(
    z: Float[Tensor, "batch pos head d_head"],
    weights: Float[Tensor, "head d_head d_model"],
    bases: Float[Tensor, "draw d_model rank"],
) -> Float64[np.ndarray, "draw batch head"]:
    """Return the mean of ‖Bᵀ W_O z‖ over the positions of each sequence: the norm of the projection on B."""
    through = einsum(weights, bases.to(weights), "h e m, k m r -> k h e r")
    norms = [einsum(z, each, "b p h e, h e r -> b p h r").norm(dim=-1).mean(dim=1) for each in through]
    return torch.stack(norms).double().cpu().numpy()
