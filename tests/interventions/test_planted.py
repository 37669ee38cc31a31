"""The planted networks by exact computation: sums over all tokens, in float64, no sampling."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import pytest
import torch
from torch import Tensor

from bayesgeom.selftest import planted
from bayesgeom.selftest.planted import (
    LAYER,
    N_ANSWERS,
    N_G,
    N_K,
    SITE,
    WIDTH,
    PlantedBlock,
    PlantedModel,
    PlantedTask,
    beliefs,
    entropies,
    factors,
)
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.subspace import random_subspaces

TOKENS = torch.arange(PlantedTask().n_tokens)[:, None]
EVERY = PlantedTask().trials(TOKENS // (N_G * N_K), TOKENS % (N_G * N_K))  # each token once: the exact distribution


@final
@dataclass(frozen=True)
class World:
    """A planted network, and at every token what is at its site and the quantity in question."""

    model: PlantedModel
    x: Tensor
    y: Tensor

    def kl_bits(self, x: Tensor) -> float:
        """Mean KL over all tokens when `x` is at the site."""
        block = self.model.module.blocks[LAYER]
        assert isinstance(block, PlantedBlock)
        with torch.no_grad():
            logits = self.model.module.unembed(block(x.float()[:, None]))
        return float(kl_bits(beliefs(), logits[:, 0, EVERY.answers].double().log_softmax(-1)).mean())

    def cost(self, edited: Tensor) -> float:
        return self.kl_bits(edited) - self.kl_bits(self.x)

    def r2(self, x: Tensor) -> float:
        """Of the best linear map from x to y, over all tokens."""
        gram, cross = moments(x, self.y)
        best = torch.linalg.pinv(gram, rtol=1e-7, hermitian=True) @ cross
        y = self.y - self.y.mean(dim=0)
        return 1 - float((y - (x - x.mean(dim=0)) @ best).square().sum() / y.square().sum())

    def without(self, directions: Tensor) -> Tensor:
        """The site after the orthogonal projection that removes the span of some directions."""
        basis = torch.linalg.qr(directions).Q
        return self.x - (self.x - self.x.mean(dim=0)) @ basis @ basis.T

    def without_linear_trace(self) -> Tensor:
        """The site after LEACE, written as what it is: x minus the part that a regression on the read-out explains."""
        gram, cross = moments(self.x, self.y)
        weights = torch.linalg.pinv(gram, rtol=1e-7, hermitian=True) @ cross
        read = (self.x - self.x.mean(dim=0)) @ weights
        return self.x - read @ torch.linalg.solve(cross.T @ weights, cross.T)

    def covariance(self) -> Tensor:
        return moments(self.x, self.y)[1]


def moments(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    return x.T @ x / len(x), x.T @ y / len(x)


def world(build: Callable[[], PlantedModel]) -> World:
    model = build()
    stored = model.replayer().baseline(EVERY).stored[SITE, LAYER]
    return World(
        model, stored[:, 0].double(), entropies()[:, None] if "entropy" in model.spec.name else beliefs()[:, :2]
    )


USED = (planted.uses_entropy, planted.uses_belief)
IGNORED = (planted.ignores_entropy, planted.ignores_belief)


@pytest.mark.parametrize("build", USED)
def test_erasing_what_is_used_costs_more_than_any_random_subspace(build: Callable[[], PlantedModel]) -> None:
    here = world(build)
    draws = random_subspaces(WIDTH, here.y.shape[1], draws=50, seed=3)
    most_random = max(here.cost(here.without(basis)) for basis in draws)
    for without in (here.without(here.covariance()), here.without_linear_trace()):
        assert here.r2(without) < 1e-6
        assert here.cost(without) > 4 * most_random


@pytest.mark.parametrize("build", IGNORED)
def test_erasing_what_is_ignored_costs_nothing(build: Callable[[], PlantedModel]) -> None:
    here = world(build)
    assert here.r2(here.x) > 0.9999
    for without in (here.without(here.covariance()), here.without_linear_trace()):
        assert here.r2(without) < 1e-6
        assert abs(here.cost(without)) < 1e-6


def test_without_noise_in_the_code_the_networks_are_exact() -> None:
    """Interpolation through the knots gives back the posterior, token by token."""
    for build in (*USED, *IGNORED, planted.looks_up):
        logits = build(noise=0.0).logits(EVERY)[:, 0, EVERY.answers]
        torch.testing.assert_close(logits.double().softmax(-1), beliefs(), atol=2e-5, rtol=0)


def test_the_task_is_what_a_loop_over_its_tokens_says() -> None:
    task = PlantedTask(length=3)
    trials, donors = task.sample_pair(11, seed=5)
    parts = factors()
    for original, donor in zip(trials.tokens.flatten().tolist(), donors.tokens.flatten().tolist(), strict=True):
        answer, level, g, k = parts[original].tolist()
        named = (0.4, 0.55, 0.7, 0.85, 0.97)[level]
        expected = [(1 - named) / 2] * N_ANSWERS
        expected[answer] = named
        assert beliefs()[original].tolist() == pytest.approx(expected)
        assert parts[donor].tolist()[2:] == [g, k]
    own = PlantedTask(length=3, shares_nuisance=False).sample_pair(11, seed=5)
    assert (parts[own[0].tokens][..., 2:] != parts[own[1].tokens][..., 2:]).any()
