"""Linear regression: read points of a hidden linear function, and predict the next output from its input.

In each sequence y = w·x + noise, with weights w on a grid. Inputs and outputs are shown as tokens, one per bin. The
probability of every output bin under every w is a difference of two normal distribution functions, so the posterior
over the grid, and the predictive, are sums without approximation. As bins and grid shrink they become those of
conjugate Bayesian regression.

With a finite `pool`, w is one of K vectors that were drawn once: an observer that knows them memorizes, one with the
prior over the grid generalizes. Layout, for two dimensions: x₁ x₂ y x₁ x₂ y … x₁ x₂; the last input of each point is
the query, and the last output is not shown.

References:
    Garg et al. 2022, arXiv:2208.01066 (linear functions in context).
    Raventós et al. 2023, arXiv:2306.15063 (pools of tasks; ridge regression is the generalizing observer).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Relations, Trials
from bayesgeom.stats.information import log_bin_probabilities
from bayesgeom.tasks.base import (
    EvidenceTask,
    check_parameters,
    checked_seed,
    moments,
    over_tokens,
    steps_back,
    trials_at,
)

_WIDEST_WEIGHT, _WIDEST_OUTPUT = 2.5, 3.0  # ends of the grid and of the bins; standard deviation of a weight is 1
_LEAST_NOISE, _MOST_NOISE = 1e-100, 1000.0  # squares of less overflow; at the most, outputs tell nothing of the weights
_FLOOR = 1e-6  # share of the uniform distribution in a baseline, so that no output is impossible
_LEAST = 1e-300  # probability of an output that would round to 0, so that logs of predictions stay finite
_Points = Float64[Tensor, "batch point"]
_Shown = Float64[Tensor, "batch point output"]


@final
@dataclass(frozen=True, kw_only=True)
class LinearRegression(EvidenceTask):
    """`n_points` points of a linear function through 0; the belief is over its weights.

    Ids: bins of the first input, of the second one, then of the output. Inputs are uniform on evenly spaced values from
    −1 to 1. Weights have a standard normal prior on `n_grid` values from −2.5 to 2.5 for each dimension. Output bins
    have equal width from −3 to 3, and the outermost are open. The statistics are mean and log variance of each weight.

    Args:
        n_dims: Number of inputs, 1 or 2.
        n_inputs: Number of values of an input.
        n_bins: Number of bins of the output.
        n_points: Points; the last without its output. Each is a scored position.
        noise: Standard deviation of the output's noise.
        n_grid: Number of values of a weight, odd or even.
        pool: Number K of weight vectors that occur; 0 for any on the grid.
        pool_seed: Seed with which the pool is drawn.
        fresh: Whether weights are drawn anew although there is a pool: the test of an observer that was trained on it.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> trials = tasks.LinearRegression(n_points=5, n_grid=21).sample(2, seed=0)
        >>> trials.tokens.shape, trials.at_scored(trials.belief).shape
        (torch.Size([2, 9]), torch.Size([2, 5, 21]))
    """

    name: ClassVar[str] = "linear-regression"
    sentence: ClassVar[str] = (
        "Points of a linear function that is new in each sequence, in bins; after each input the model predicts the "
        "output."
    )
    n_dims: int = 1
    n_inputs: int = 12
    n_bins: int = 12
    n_points: int = 16
    noise: float = 0.3
    n_grid: int = 31
    pool: int = 0
    pool_seed: int = 0
    fresh: bool = False

    def __post_init__(self) -> None:
        check_parameters(self)
        if not (self.n_dims in (1, 2) and self.n_inputs > 1 and self.n_bins > 1 and self.n_points > 0):
            raise InvalidArgument(
                f"a regression needs n_dims 1 or 2, n_inputs ≥ 2, n_bins ≥ 2 and n_points ≥ 1, got {self.n_dims}, "
                f"{self.n_inputs}, {self.n_bins} and {self.n_points}."
            )
        if not (_LEAST_NOISE <= self.noise <= _MOST_NOISE and self.n_grid > 1 and self.pool >= 0):
            raise InvalidArgument(
                f"a regression needs a noise of {_LEAST_NOISE} to {_MOST_NOISE:.0f}, n_grid ≥ 2 and pool ≥ 0 (0: any "
                f"weights on the grid), got {self.noise}, {self.n_grid} and {self.pool}."
            )
        if self.fresh and not self.pool:
            raise InvalidArgument("fresh=True draws weights that are not in the pool: it needs pool=K with K ≥ 1.")
        checked_seed(self.pool_seed)

    @property
    def d_vocab(self) -> int:
        return self.n_dims * self.n_inputs + self.n_bins

    @property
    def n_pos(self) -> int:
        return (self.n_dims + 1) * self.n_points - 1

    @property
    def is_pooled(self) -> bool:
        """Whether weights are those of the pool."""
        return self.pool > 0 and not self.fresh

    def weights(self) -> Float64[Tensor, "hypothesis dim"]:
        """Return the weights over which the belief is: the pool, or the grid in the order of its first dimension."""
        return self._pool() if self.is_pooled else self._grid()

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self._completed(self._inputs(n, generator), generator)

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs of sequences with the same inputs and other weights."""
        places = self._inputs(n, generator)
        return self._completed(places, generator), self._completed(places, generator)

    def trials(self, places: Int64[Tensor, "batch point"], outputs: Int64[Tensor, "batch point"]) -> Trials:
        """Build sequences from inputs and output bins, each from 0; the last output is the label and not shown.

        Args:
            places: Place of each input among all inputs, in the order of the first dimension.
            outputs: Output bin of each point.
        """
        d, k = self.n_dims, self.n_inputs
        digits = [places // k ** (d - 1 - dim) % k + dim * k for dim in range(d)]
        tokens = torch.stack([*digits, outputs + d * k], dim=2).flatten(1)[:, :-1].contiguous()
        ids = torch.arange(self.n_bins, device=tokens.device) + d * k
        belief, predictive = self._observed(places, outputs, pooled=self.is_pooled)
        return trials_at(
            slice(d - 1, None, d + 1),
            tokens,
            answers=ids,
            predictive=predictive,
            belief=belief,
            statistics=moments(belief, self.weights().to(tokens.device)),
            labels=outputs + d * k,
            token_sets={"inputs": torch.arange(d * k, device=tokens.device), "outputs": ids},
            relations=Relations(draw=self._relations, of=places),
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return the prior's predictive, and four regressions that take one estimate for certain.

        Each is a normal distribution around the estimate, in bins, with the noise of the outputs.

        - `prior`: no point is used.
        - `mean`: the mean output so far, whatever the input.
        - `nearest`: the output of the nearest input so far.
        - `least_squares`: the weights with the least squared error; of several the shortest.
        - `ridge`: the posterior mean of the weights under their prior, without its uncertainty.
        - With a pool, the exact observer of the other kind: `generalizing`, or `memorizing` where weights are new.
        """
        places, outputs = self._read(trials)
        device = places.device
        shown, target = self._values().to(device)[places], self._centers().to(device)[outputs]
        prior = self._observed(places, outputs, pooled=self.is_pooled, is_blind=True)[1]
        count = torch.arange(self.n_points, dtype=torch.float64, device=device)
        means = torch.nn.functional.pad(target.cumsum(dim=1), (1, 0))[:, :-1] / count.clamp_min(1)
        baselines = {
            "prior": prior,
            "mean": self._around(means),
            "nearest": self._around(_nearest(shown, target)),
            "least_squares": self._around(_fitted(shown, target, ridge=0.0)),
            "ridge": self._around(_fitted(shown, target, ridge=self.noise**2)),
        }
        if self.pool:
            other = self._observed(places, outputs, pooled=not self.is_pooled)[1]
            baselines["generalizing" if self.is_pooled else "memorizing"] = other
        return baselines

    @property
    def n_evidence(self) -> int:
        return self.n_points - 1

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw some outputs again, from the posterior of the weights given the kept ones; inputs stay."""
        places, outputs = self._read(trials)
        logs = self._log_table(self.is_pooled).to(places.device)[places, :, outputs][:, :-1]
        posterior = (self._log_prior(self.is_pooled).to(places.device) + logs[:, keep].sum(dim=1)).softmax(dim=1)
        drawn = self._outputs(places, torch.multinomial(posterior, 1, generator=generator)[:, 0], generator)
        return self.trials(places, torch.where(torch.nn.functional.pad(keep, (0, 1)), outputs, drawn))

    def token_labels(self) -> Sequence[str]:
        inputs = [f"x{dim + 1}={value:.2g}" for dim in range(self.n_dims) for value in self._axis().tolist()]
        return [*inputs, *(f"y={value:.2g}" for value in self._centers().tolist())]

    def _axis(self) -> Float64[Tensor, " input"]:
        return torch.linspace(-1, 1, self.n_inputs, dtype=torch.float64)

    def _values(self) -> Float64[Tensor, "input dim"]:
        return torch.cartesian_prod(*[self._axis()] * self.n_dims).reshape(-1, self.n_dims)

    def _grid(self) -> Float64[Tensor, "hypothesis dim"]:
        axis = torch.linspace(-_WIDEST_WEIGHT, _WIDEST_WEIGHT, self.n_grid, dtype=torch.float64)
        return torch.cartesian_prod(*[axis] * self.n_dims).reshape(-1, self.n_dims)

    def _pool(self) -> Float64[Tensor, "hypothesis dim"]:
        return torch.from_numpy(np.random.default_rng(self.pool_seed).normal(size=(self.pool, self.n_dims)))

    def _log_prior(self, pooled: bool) -> Float64[Tensor, " hypothesis"]:
        weights = self._pool() if pooled else self._grid()
        log = torch.zeros(len(weights), dtype=torch.float64) if pooled else -weights.square().sum(dim=1) / 2
        return log.log_softmax(dim=0)

    def _log_table(self, pooled: bool) -> Float64[Tensor, "input hypothesis output"]:
        """Return the natural log of the probability of each output bin, by input and weights."""
        return self._log_bins(self._values() @ (self._pool() if pooled else self._grid()).T)

    def _edges(self) -> Float64[Tensor, " edge"]:
        return torch.linspace(-_WIDEST_OUTPUT, _WIDEST_OUTPUT, self.n_bins + 1, dtype=torch.float64)[1:-1]

    def _centers(self) -> Float64[Tensor, " output"]:
        width = 2 * _WIDEST_OUTPUT / self.n_bins
        return (torch.arange(self.n_bins, dtype=torch.float64) + 0.5) * width - _WIDEST_OUTPUT

    def _log_bins(self, mean: Float64[Tensor, "*batch"]) -> Float64[Tensor, "*batch output"]:
        """Return the log-probabilities of the bins under a normal distribution with this mean and the task's noise."""
        return log_bin_probabilities(self._edges(), mean, mean.new_tensor(self.noise))

    def _around(self, mean: _Points) -> _Shown:
        return (1 - _FLOOR) * self._log_bins(mean).exp() + _FLOOR / self.n_bins

    def _observed(
        self,
        places: Int64[Tensor, "batch point"],
        outputs: Int64[Tensor, "batch point"],
        *,
        pooled: bool,
        is_blind: bool = False,
    ) -> tuple[Float64[Tensor, "batch point hypothesis"], _Shown]:
        """Return the belief before each output, and the predictive; a blind observer uses no output."""
        logs, prior = self._log_table(pooled).to(places.device), self._log_prior(pooled).to(places.device)
        seen = torch.nn.functional.pad(logs[places, :, outputs][:, :-1], (0, 0, 1, 0)).cumsum(dim=1)
        belief = (prior + seen * (not is_blind)).softmax(dim=2)
        table = logs.exp()
        predictive = torch.stack(
            [torch.einsum("bk,bko->bo", belief[:, point], table[places[:, point]]) for point in range(places.shape[1])],
            dim=1,
        ).clamp_min(_LEAST)
        return belief, predictive / predictive.sum(dim=2, keepdim=True)

    def _inputs(self, n: int, generator: torch.Generator) -> Int64[Tensor, "batch point"]:
        size = (n, self.n_points)
        return torch.randint(self.n_inputs**self.n_dims, size, generator=generator, device=generator.device)

    def _completed(self, places: Int64[Tensor, "batch point"], generator: torch.Generator) -> Trials:
        """Draw weights and outputs."""
        prior = self._log_prior(self.is_pooled).exp().to(generator.device)
        hypotheses = torch.multinomial(prior, len(places), replacement=True, generator=generator)
        return self.trials(places, self._outputs(places, hypotheses, generator))

    def _outputs(
        self,
        places: Int64[Tensor, "batch point"],
        hypotheses: Int64[Tensor, " batch"],
        generator: torch.Generator,
    ) -> Int64[Tensor, "batch point"]:
        shares = self._log_table(self.is_pooled).to(places.device)[places, hypotheses[:, None]].exp()
        drawn = torch.multinomial(shares.flatten(0, 1), 1, generator=generator)
        return drawn.reshape(places.shape)

    def _read(self, trials: Trials) -> tuple[Int64[Tensor, "batch point"], Int64[Tensor, "batch point"]]:
        """Return inputs and outputs; the last output is the label."""
        d, k = self.n_dims, self.n_inputs
        places = torch.zeros_like(trials.tokens[:, 0 :: d + 1])
        for dim in range(d):
            places = places * k + trials.tokens[:, dim :: d + 1] - dim * k
        return places, trials.at_scored(trials.labels) - d * k

    def _relations(self, places: Int64[Tensor, "batch point"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Mark the outputs of earlier points, those with the same input among them, and all earlier inputs."""
        earlier = steps_back(places) > 0
        same = earlier & (places[:, :, None] == places[:, None, :])
        return {
            "same_input_output": over_tokens(same, n_inputs=self.n_dims, of_inputs=False),
            "earlier_output": over_tokens(earlier, n_inputs=self.n_dims, of_inputs=False),
            "earlier_input": over_tokens(earlier, n_inputs=self.n_dims, of_inputs=True),
        }


def _nearest(shown: Float64[Tensor, "batch point dim"], target: _Points) -> _Points:
    """Return the output of the nearest earlier input, the latest of several; 0 for the first point."""
    n_points = shown.shape[1]
    apart = (shown[:, :, None] - shown[:, None]).square().sum(dim=3)
    apart = apart - 1e-9 * torch.arange(n_points, dtype=torch.float64, device=shown.device)
    nearest = target.gather(1, torch.where(steps_back(target) > 0, apart, torch.inf).argmin(dim=2))
    return torch.cat([torch.zeros_like(nearest[:, :1]), nearest[:, 1:]], dim=1)


def _fitted(shown: Float64[Tensor, "batch point dim"], target: _Points, *, ridge: float) -> _Points:
    """Return the prediction of a regression on all earlier points, with a penalty on squared weights."""
    gram = torch.einsum("bpi,bpj->bpij", shown, shown).cumsum(dim=1) - torch.einsum("bpi,bpj->bpij", shown, shown)
    cross = (shown * target[:, :, None]).cumsum(dim=1) - shown * target[:, :, None]
    eye = torch.eye(shown.shape[2], dtype=torch.float64, device=shown.device)
    inverse = torch.linalg.pinv(gram + ridge * eye, hermitian=True, rtol=1e-9)
    return torch.einsum("bpi,bpij,bpj->bp", shown, inverse, cross)
