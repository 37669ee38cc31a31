"""A trained swap subspace: distributed alignment search with one orthonormal basis per layer.

The basis B is the Q factor of a matrix that is initialized with the covariance directions. It is trained so that the
swap x + B Bᵀ (donor − x) moves the model's own quantity to its value in the donor. The model's weights are frozen.

References: Geiger et al. 2024, arXiv:2303.02536 (distributed alignment search); Arora et al. 2024, arXiv:2402.12560
(such a search also fits arbitrary labels); Makelov et al. 2023, arXiv:2311.17030
(such a subspace can act through directions that the model does not use otherwise).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials
from bayesgeom.core.torch_state import SiteLayer, check_differentiable, store_activation
from bayesgeom.models.base import hooked_sites
from bayesgeom.models.replay.carried import CARRIED
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.subspaces.base import About, Fit, Sample, Setting, Subspace, check_rank
from bayesgeom.subspaces.erasers import JointMoments
from bayesgeom.subspaces.quantity import OwnValue, PosteriorQuantity
from bayesgeom.tasks.base import derived_seed

STEPS, BATCH, LEARNING_RATE = 80, 16, 0.02
_TRAIN, _LABELS = 1, 2  # branches of the sample's seed


@final
@dataclass(frozen=True)
class TrainedSwap(Fit):
    """A subspace of this rank, trained on separate sequences so that its swap moves the quantity.

    Toward `random_labels`, the training is a control: what it reaches, it reaches whatever the model has learned.
    """

    rank: int
    quantity: PosteriorQuantity
    steps: int = STEPS
    random_labels: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InvalidArgument(f"steps of a trained swap must be a positive integer, got {self.steps}.")

    @property
    def label(self) -> str:
        return f"trained swap ({self.quantity.label}, rank {self.rank})"

    @property
    def about(self) -> About:
        return About(quantity=self.quantity, at_scored=True)

    def check(self, setting: Setting) -> None:
        self.quantity.check(setting.trials)
        if setting.place.site == CARRIED:
            raise InvalidArgument(
                f"{self.label} trains through hook points; {CARRIED.name!r} has none: use covariance, leace, frame "
                "or top_jacobian there, or train at 'resid_pre' with score_after."
            )
        setting.model.require((setting.place.site,), by=self.label, layers=setting.place.layers)
        check_rank(self.rank, setting, name="rank")
        check_differentiable(setting.model.module, setting.model.spec.name)

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        return {layer: Subspace(self.label, self._trained(sample, layer)) for layer in layers}

    def labels(self, sample: Sample, donors: Trials) -> Float64[Tensor, "batch query_pos answer"]:
        """Return random labels: for each token of the donor, the log answers at one random point of the sample."""
        points, size = sample.run.log_answers.flatten(0, 1).double(), sample.model.spec.d_vocab
        generator = torch.Generator().manual_seed(derived_seed(sample.seed, _LABELS))
        chosen = torch.randint(len(points), (size,), generator=generator).to(donors.tokens)
        labels: Tensor = points.to(donors.tokens.device)[chosen[donors.at_scored(donors.tokens)]]
        return labels

    def _trained(self, sample: Sample, layer: int) -> Float64[Tensor, "d rank"]:
        assert sample.draw_pairs is not None, "interventions pass pairs to the fits that train"
        width, seed = sample.place.width_in(sample.model.spec), derived_seed(sample.seed, _TRAIN, layer)
        like = next(sample.model.module.parameters())
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(width, self.rank, generator=generator, dtype=torch.float64)
        start = _from_covariance(sample, layer, self.quantity, start)
        weights = start.to(like.device, torch.float32).requires_grad_()
        optimizer = torch.optim.Adam([weights], lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        value = self.quantity.own(sample.run.trials)
        for step in range(self.steps):
            pair = sample.draw_pairs(BATCH, derived_seed(seed, step))
            with torch.enable_grad():
                loss = self._loss(sample, layer, torch.linalg.qr(weights).Q, pair, value)
            (weights.grad,) = torch.autograd.grad(loss, [weights])
            optimizer.step()
            schedule.step()
        basis: Tensor = torch.linalg.qr(weights.detach().double()).Q
        return basis

    def _loss(
        self,
        sample: Sample,
        layer: int,
        basis: Float[Tensor, "d rank"],
        pair: tuple[Trials, Trials],
        value: OwnValue,
    ) -> Float[Tensor, ""]:
        """Return the mean squared distance to the donor's value; for whole distributions KL(donor ‖ edited)."""
        (originals, donors), place = pair, (sample.place.site, layer)
        stored: dict[SiteLayer, Tensor] = {}
        with torch.no_grad(), hooked_sites(sample.model, {place: store_activation(stored, place)}):
            donor_logits = sample.model.logits(donors)

        def swap(output: Tensor) -> Tensor:
            flat, donor = (values.detach().flatten(2).to(basis) for values in (output, stored[place]))
            change = ((donor - flat) @ basis) @ basis.T
            change = change if sample.mask is None else change * sample.mask.to(change)[:, None]
            return (flat + change).reshape(output.shape).to(output)  # a model may run in half precision

        with hooked_sites(sample.model, {place: swap}):
            edited = sample.model.logits(originals)
        log_own, log_edited = (answer_log_probabilities(logits, originals)[0] for logits in (donor_logits, edited))
        log_own = self.labels(sample, donors) if self.random_labels else log_own
        if self.quantity.is_whole(originals):
            return (log_own.exp() * (log_own - log_edited)).sum(dim=-1).mean()
        target, measured = (value(log) for log in (log_own, log_edited))
        return (measured - target).square().mean()


def _from_covariance(
    sample: Sample, layer: int, quantity: PosteriorQuantity, start: Float64[Tensor, "d rank"]
) -> Float64[Tensor, "d rank"]:
    """Return the initial basis: the leading directions of Cov(x, y), then random ones."""
    moments = JointMoments.of(sample.points(layer), sample.values(quantity))
    left, singular, _ = torch.linalg.svd(moments.cross.cpu(), full_matrices=False)
    kept = left[:, singular > 1e-6 * singular[0]][:, : start.shape[1]]
    basis: Tensor = torch.linalg.qr(torch.cat([kept, start[:, kept.shape[1] :]], dim=1)).Q
    return basis
