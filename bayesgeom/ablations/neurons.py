"""The strongest neurons: which hidden units of the MLPs to ablate, from gradients on sequences that are not scored.

To second order in the change δ of the logits, KL(exact ‖ model) grows by g·δ + ½ δᵀFδ, with g its gradient and F the
Fisher information of the model's answers. Where the model is nearly exact, g is nearly 0 and the second term is what is
left. Its mean over answers y that are drawn from the model needs one gradient: δᵀFδ = E[(δ·∇ log q(y))²].

References:
    Michel, Levy & Neubig 2019 (gradients as importance); Hassibi & Stork 1993 (second order, for weights).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.ablations.batteries import Ablation, Battery, Component, check_battery, mode_named
from bayesgeom.ablations.engine import batches_with_donors, position_means, references
from bayesgeom.core import MLP_POST, InvalidArgument, Mode, Replace, checked, phase
from bayesgeom.core.torch_state import SiteLayer, check_differentiable, store_leaf, with_gradients
from bayesgeom.models.base import LARGE, Model, hooked_sites
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, scored_task_of
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import NATS_PER_BIT, kl_bits
from bayesgeom.tasks.base import at_most, derived_seed, fit_task

N_STRONGEST = 64
_N, _N_LARGE = 256, 32  # sequences that give means and estimates
_SEQUENCES, _DRAWS = 4, 5  # branches of the seed


@checked("model", "task")
@with_gradients
def strongest_neurons(
    model: ModelLike,
    task: TaskLike | None = None,
    n_neurons: int = N_STRONGEST,
    *,
    layers: Sequence[int] | None = None,
    mode: Mode = "mean",
    seed: int = 0,
) -> Battery:
    """Return one ablation for each of the neurons with the largest estimated KL increase, the largest first.

    The estimate is of second order, from two backward passes over 256 sequences other than those of `ablate`; over 32
    for models of 50 million parameters or more. Of texts with labels it is from half, and `ablate` scores the others
    if it is given the battery's name.

    Args:
        model: As in `ablate`.
        task: As in `ablate`.
        n_neurons: Number of neurons, or all if there are fewer.
        layers: Layers whose neurons are compared. Default: all that have the site `mlp_post`.
        mode: As in `ablate`.
        seed: Seed of the sequences.

    Returns:
        Ablations of one neuron each. They are a plain list: join lists, or leave some out.

    Raises:
        InvalidArgument: `n_neurons` is below 1, or a layer does not exist.
        MissingSite: The model does not provide `mlp_post`; the error gives the reason.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom import ablations
        >>> len(ablations.strongest_neurons("sticky-small", n_neurons=5))
        5
    """
    check_battery("neurons", mode)
    if n_neurons < 1:
        raise InvalidArgument(f"n_neurons must be at least 1, got {n_neurons}.")
    subject = model_for(model, task)
    check_differentiable(subject.module, subject.spec.name)
    wanted = tuple(dict.fromkeys(layers)) if layers is not None else subject.layers_of(MLP_POST)
    if layers is not None and not wanted:
        raise InvalidArgument("layers is empty: name at least one layer, or omit it for all.")
    for layer in wanted:
        Component(layer, "mlp").check_in(subject.spec)
    subject.require((MLP_POST,), by="a neuron", layers=wanted or None)
    estimates = _estimates(subject, task, wanted, mode, seed)
    order = estimates.flatten().argsort(descending=True, stable=True)[:n_neurons].tolist()
    at = [divmod(index, estimates.shape[1]) for index in order]
    return [Ablation((Component(wanted[row], "neuron", unit=unit),)) for row, unit in at]


def _estimates(
    model: Model, task: TaskLike | None, layers: Sequence[int], mode: Mode, seed: int
) -> Float64[Tensor, "layer d_mlp"]:
    """Return the estimated KL increase of every neuron, in bits, summed over sequences."""
    spec, replayer, places = model.spec, model.replayer(), [(MLP_POST, layer) for layer in layers]
    n, by = _N_LARGE if spec.n_parameters >= LARGE else _N, mode_named(mode)
    chosen = fit_task(scored_task_of(model, task))
    n = at_most(chosen, n)
    blocks = list(chosen.stream(n, seed=derived_seed(seed, _SEQUENCES), device=spec.device))
    variants = [(Replace(site=MLP_POST, layer=layer, mode=mode, by=by),) for layer in layers]
    means = position_means(replayer, blocks, spec, places, n)
    total = torch.zeros(len(layers), spec.d_mlp, dtype=torch.float64)
    generator = torch.Generator().manual_seed(derived_seed(seed, _DRAWS))
    with phase("gradients of the neurons", n, "sequence") as progress:
        for batch, before in (both for block in blocks for both in batches_with_donors(block, spec)):
            reference = references(replayer, batch, before, variants, means)
            stored: dict[SiteLayer, Tensor] = {}
            with hooked_sites(model, {place: store_leaf(stored, place) for place in places}):
                log_answers, _ = answer_log_probabilities(model.logits(batch), batch)
            increase = kl_bits(batch.at_scored(batch.predictive), log_answers).sum()
            drawn = torch.multinomial(log_answers.detach().exp().flatten(0, 1).cpu(), 1, generator=generator)
            surprise = log_answers.flatten(0, 1).gather(1, drawn.to(log_answers.device)).sum()
            leaves = [stored[place] for place in places]
            slopes = (torch.autograd.grad(scalar, leaves, retain_graph=True) for scalar in (increase, surprise))
            for row, ((edit,), leaf, *both) in enumerate(zip(variants, leaves, *slopes, strict=True)):
                change = edit.applied(leaf.detach(), reference) - leaf.detach()
                # Positions are ablated together. The draws of different positions are independent, so their products
                # average 0.
                linear, random = ((change * gradient).double().sum(dim=1) for gradient in both)
                total[row] += (linear + random.square() / (2 * NATS_PER_BIT)).sum(dim=0).cpu() / batch.n_scored
            progress.update(len(batch))
    return total
