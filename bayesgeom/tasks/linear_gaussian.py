"""Linear-Gaussian state: a hidden number drifts, is observed with noise in bins, and the next bin is predicted.

The state of every sequence follows x_{t+1} = a x_t + √(1 − a²) ε with the stationary distribution N(0, 1), and
y_t = x_t + s ν is shown as the token of its bin. The belief after each observation is a density without a closed form,
because bins are no Gaussian evidence:

    b_t(x) ∝ P(bin of y_t | x) ∫ b_{t−1}(x') N(x; a x', 1 − a²) dx'.

Both factors are smooth, so a sum over evenly spaced states converges exponentially to the integral: with a spacing of
0.9 d, where d is the standard deviation of the product of both, the error of one sum is about exp(−2π² / 0.81) = 3e-11;
2e-10 were measured in the predictive. As bins shrink, the belief becomes that of the Kalman filter.

Layout: a token for a and one for s, where several are possible, then the observations. The label at each observation is
the next one; the last label is not shown.

References:
    Kalman 1960 (the filter).
    Trefethen & Weideman 2014, The Exponentially Convergent Trapezoidal Rule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Relations, Trials
from bayesgeom.core.observers import Beliefs, Filter, exact_beliefs
from bayesgeom.stats.information import log_bin_probabilities
from bayesgeom.tasks.base import check_parameters, moments, trials_at
from bayesgeom.tasks.markov import DynamicTask

_WIDEST_STATE, _WIDEST_BIN = 7.0, 3.0  # ends of the grid, beyond which N(0, 1) has 3e-12, and of the bins
_SPACING = 0.9  # of the grid, as a share of the standard deviation of the narrowest integrand
_MOST_NOISE = 1000.0  # there observations tell nothing of the state
_FLOOR = 1e-6  # share of the uniform distribution in a baseline, so that no bin is impossible
_Observed = Int64[Tensor, "batch step"]


@final
@dataclass(frozen=True, kw_only=True)
class LinearGaussian(DynamicTask):
    """`length` observations of a state with the stationary distribution N(0, 1); the belief is over a grid of states.

    Ids: bins, then the possible values of `decay` and `noise`, if there are several. Bins have equal width from −3 to
    3, and the outermost are open. `states()` are the states of the belief, whose statistics are `mean` and
    `log_variance`.

    Args:
        decay: Factor a of the state from step to step, 0 ≤ a < 1. Of several, each sequence has one, named in its
            header.
        noise: Standard deviation s of an observation; several as for `decay`.
        n_bins: Number of bins.
        length: Observations in a sequence; each is a scored position.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> trials = tasks.LinearGaussian(length=7).sample(2, seed=0)
        >>> trials.tokens.shape, trials.at_scored(trials.predictive).shape
        (torch.Size([2, 9]), torch.Size([2, 7, 16]))
    """

    name: ClassVar[str] = "linear-gaussian"
    sentence: ClassVar[str] = (
        "A hidden number drifts and is observed with noise, in {task.n_bins} bins; after each of {task.length} "
        "observations the model predicts the next one."
    )
    decay: float | tuple[float, ...] = (0.7, 0.9, 0.97)
    noise: float | tuple[float, ...] = (0.3, 0.6, 1.0)
    n_bins: int = 16
    length: int = 40

    def __post_init__(self) -> None:
        check_parameters(self)
        for name in ("decay", "noise"):
            if not isinstance(values := vars(self)[name], int | float):
                object.__setattr__(self, name, tuple(values))
        if self.n_bins < 2 or self.length < 1:
            raise InvalidArgument(
                f"a linear-Gaussian task needs n_bins ≥ 2 and length ≥ 1, got {self.n_bins} and {self.length}."
            )
        decays, noises = self._possible
        for name, values, are_allowed, form in (
            ("decay", decays, all(0 <= a < 1 for a in decays), "0 ≤ decay < 1"),
            ("noise", noises, all(0 < s <= _MOST_NOISE for s in noises), f"0 < noise ≤ {_MOST_NOISE:.0f}"),
        ):
            if not are_allowed or not 0 < len(set(values)) == len(values):
                raise InvalidArgument(
                    f"a linear-Gaussian task needs {form}: one number, or a tuple of distinct ones; got "
                    f"{name}={vars(self)[name]}."
                )

    @property
    def _possible(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The possible values of decay and noise."""
        decays, noises = (choices if isinstance(choices, tuple) else (choices,) for choices in (self.decay, self.noise))
        return decays, noises

    @property
    def _n_header(self) -> int:
        """Tokens before the first observation."""
        return 2 if max(map(len, self._possible)) > 1 else 0

    @property
    def _n_states(self) -> int:
        decays, noises = self._possible
        step, noise = 1 - max(decays) ** 2, min(noises) ** 2  # variances
        return 2 * math.ceil(_WIDEST_STATE / (_SPACING * math.sqrt(step * noise / (step + noise)))) + 1

    @property
    def d_vocab(self) -> int:
        return self.n_bins + (sum(map(len, self._possible)) if self._n_header else 0)

    @property
    def n_pos(self) -> int:
        return self._n_header + self.length

    def states(self) -> Float64[Tensor, " state"]:
        """Return the evenly spaced states over which the belief is, from −7 to 7."""
        return torch.linspace(-_WIDEST_STATE, _WIDEST_STATE, self._n_states, dtype=torch.float64)

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        header = self._header(n, generator)
        return self.trials(header, self._path(header, generator))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs with the same decay and noise, and two independent paths."""
        header = self._header(n, generator)
        original, donor = (self.trials(header, self._path(header, generator)) for _ in range(2))
        return original, donor

    def trials(self, header: Int64[Tensor, "batch 2"], observed: Int64[Tensor, "batch step_and_one"]) -> Trials:
        """Build sequences from observations; the last one is the label and not shown.

        Args:
            header: Places of each sequence's decay and noise among the possible ones.
            observed: Bins, from 0.
        """
        tokens = torch.cat([(header + self._first(header.device))[:, : self._n_header], observed[:, :-1]], dim=1)
        observers, ids = self.observers(tokens), torch.arange(self.n_bins, device=observed.device)
        belief = exact_beliefs(observers.filter, len(tokens), self.length)
        return trials_at(
            slice(self._n_header, None),
            tokens,
            answers=ids,
            predictive=observers.filter.answers(belief),
            belief=belief,
            statistics=moments(belief, self.states().to(tokens.device)[:, None]),
            labels=observed[:, 1:].contiguous(),
            token_sets={"inputs": ids},
            relations=Relations(draw=self._relations, of=tokens),
            observers=observers,
        )

    def filter_of(self, tokens: Int64[Tensor, "batch pos"]) -> Filter:
        """Return the filter on the grid of states; a window's first observation has no step before it."""
        return self._filter(tokens, torch.ones(self.length, dtype=torch.bool, device=tokens.device))

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return the window observers, and two Kalman filters that take the center of a bin for the observation.

        - `stationary`: decay and noise alone.
        - `window_1` … `window_4`: the exact observer of the last observations.
        - `kalman`: the filter that ignores the bins.
        - `steady_gain`: the same with the gain of long sequences from the first step on.
        """
        return {
            **self.window_baselines(trials),
            "kalman": self._kalman(trials.tokens, is_steady=False),
            "steady_gain": self._kalman(trials.tokens, is_steady=True),
        }

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw some observations again, given decay, noise and the kept ones: states backward, then observations."""
        header, observed = self._read(trials.tokens)
        kernels, emissions = self._kernels(observed.device), self._emissions(observed.device)
        belief = exact_beliefs(self._filter(trials.tokens, keep), len(observed), self.length)
        at, moves = torch.multinomial(belief[:, -1], 1, generator=generator)[:, 0], kernels[header[:, 0]]
        row = torch.arange(len(observed), device=observed.device)
        states = [at]
        for step in reversed(range(self.length - 1)):
            weights = belief[:, step] * moves[row, :, states[-1]]
            states.append(torch.multinomial(weights, 1, generator=generator)[:, 0])
        states = [*reversed(states), torch.multinomial(moves[row, at], 1, generator=generator)[:, 0]]
        shown = emissions[header[:, 1, None], torch.stack(states, dim=1)]
        drawn = torch.multinomial(shown.flatten(0, 1), 1, generator=generator).reshape(len(observed), -1)
        drawn[:, :-1] = torch.where(keep, observed, drawn[:, :-1])
        return self.trials(header, drawn)

    def token_labels(self) -> Sequence[str]:
        decays, noises = self._possible
        named = [*(f"decay={a:g}" for a in decays), *(f"noise={s:g}" for s in noises)]
        digits = 1 + max(0, math.ceil(math.log10(self.n_bins / (2 * _WIDEST_BIN))))  # that tell neighbors apart
        bins = [f"y={center:.{digits}f}".replace("-", "−") for center in self._centers("cpu").tolist()]
        return [*bins, *named[: self.d_vocab - self.n_bins]]

    def _filter(self, tokens: Int64[Tensor, "batch pos"], keep: Bool[Tensor, " step"]) -> Filter:
        """Return the filter; observations that are not kept are steps without evidence."""
        header, observed = self._read(tokens)
        kernels, emissions = self._kernels(tokens.device), self._emissions(tokens.device)
        rows = [(header[:, 0] == place).nonzero()[:, 0] for place in range(len(kernels))]
        likelihood = emissions.mT[header[:, 1, None], observed]
        likelihood[:, ~keep] = 1.0
        shown = emissions[header[:, 1]]
        settled = torch.exp(-self.states().to(tokens.device).square() / 2)

        def after_step(belief: Beliefs) -> Beliefs:
            moved = torch.empty_like(belief)
            for members, kernel in zip(rows, kernels, strict=True):
                moved[members] = belief[members] @ kernel
            return moved

        def weighed(belief: Beliefs, first: int) -> Beliefs:
            return belief * likelihood[:, first : first + belief.shape[1]]

        prior = (settled / settled.sum())[None]
        return Filter(
            priors={
                "initial": prior,
                "uniform": torch.full_like(prior, 1 / self._n_states),
                "stationary": prior,
            },
            weighed=weighed,
            moved=lambda belief, first: weighed(after_step(belief), first),
            answers=lambda belief: after_step(belief) @ shown,
        )

    def _kernels(self, device: torch.device) -> Float64[Tensor, "decay state next"]:
        """Return the transitions of the state, by decay."""
        states = self.states().to(device)
        decays = torch.tensor(self._possible[0], dtype=torch.float64, device=device)[:, None, None]
        apart = states[None, None, :] - decays * states[None, :, None]
        return torch.softmax(-apart.square() / (2 * (1 - decays.square())), dim=2)

    def _emissions(self, device: torch.device) -> Float64[Tensor, "noise state bin"]:
        """Return the probability of every bin, by noise and state."""
        noises = torch.tensor(self._possible[1], dtype=torch.float64, device=device)[:, None]
        return log_bin_probabilities(self._edges(device), self.states().to(device)[None, :], noises).exp()

    def _edges(self, device: torch.device) -> Float64[Tensor, " edge"]:
        return torch.linspace(-_WIDEST_BIN, _WIDEST_BIN, self.n_bins + 1, dtype=torch.float64, device=device)[1:-1]

    def _centers(self, device: torch.device | str) -> Float64[Tensor, " bin"]:
        width = 2 * _WIDEST_BIN / self.n_bins
        return (torch.arange(self.n_bins, dtype=torch.float64, device=device) + 0.5) * width - _WIDEST_BIN

    def _kalman(self, tokens: Int64[Tensor, "batch pos"], *, is_steady: bool) -> Float64[Tensor, "batch step bin"]:
        """Return the predictive of the Kalman filter of bin centers."""
        header, observed = self._read(tokens)
        decay, noise = self._values(header)
        shown, power = self._centers(tokens.device)[observed], noise.square()
        variance, mean, shares = torch.ones_like(decay), torch.zeros_like(decay), []  # of the state before it is seen
        if is_steady:  # P = a² P s² / (P + s²) + 1 − a²
            excess = (1 - decay.square()) * (1 - power)
            variance = (excess + (excess.square() + 4 * (1 - decay.square()) * power).sqrt()) / 2
        for step in range(self.length):
            gain = variance / (variance + power)
            mean = decay * (mean + gain * (shown[:, step] - mean))
            variance = decay.square() * gain * power + 1 - decay.square()
            shares.append(log_bin_probabilities(self._edges(mean.device), mean, (variance + power).sqrt()).exp())
        return (1 - _FLOOR) * torch.stack(shares, dim=1) + _FLOOR / self.n_bins

    def _header(self, n: int, generator: torch.Generator) -> Int64[Tensor, "batch 2"]:
        """Draw the places of decay and noise among the possible ones."""
        size, device = (n,), generator.device
        drawn = [torch.randint(len(choices), size, generator=generator, device=device) for choices in self._possible]
        return torch.stack(drawn, dim=1)

    def _values(self, header: Int64[Tensor, "batch 2"]) -> tuple[Float64[Tensor, " batch"], Float64[Tensor, " batch"]]:
        """Return decay and noise of each sequence."""
        decays, noises = (torch.tensor(choices, dtype=torch.float64).to(header.device) for choices in self._possible)
        return decays[header[:, 0]], noises[header[:, 1]]

    def _path(
        self, header: Int64[Tensor, "batch 2"], generator: torch.Generator
    ) -> Int64[Tensor, "batch step_and_one"]:
        """Draw a path of the state and the bins of its observations."""
        decay, noise = self._values(header)
        size = (2, self.length + 1, len(header))
        drawn = torch.randn(size, dtype=torch.float64, generator=generator, device=generator.device)
        kicks, states = (1 - decay.square()).sqrt() * drawn[0], [drawn[0, 0]]
        for step in range(1, self.length + 1):
            states.append(decay * states[-1] + kicks[step])
        return torch.bucketize(torch.stack(states, dim=1) + noise[:, None] * drawn[1].T, self._edges(drawn.device))

    def _first(self, device: torch.device) -> Int64[Tensor, " 2"]:
        """Return the first ids of decays and noises."""
        return torch.tensor([self.n_bins, self.n_bins + len(self._possible[0])], device=device)

    def _read(self, tokens: Int64[Tensor, "batch pos"]) -> tuple[Int64[Tensor, "batch 2"], _Observed]:
        """Return the places of decay and noise, and the observations."""
        header, observed = tokens[:, : self._n_header], tokens[:, self._n_header :]
        if not self._n_header:
            return torch.zeros(len(tokens), 2, dtype=torch.int64, device=tokens.device), observed
        return header - self._first(tokens.device), observed

    def _relations(self, tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Mark this observation, the previous one, all earlier ones, and the header."""
        pos = torch.arange(self.n_pos, device=tokens.device)
        back, is_shown = pos[self._n_header :, None] - pos[None, :], pos >= self._n_header
        named = {"current_observation": back == 0, "previous_observation": (back == 1) & is_shown}
        named |= {"earlier_observation": (back > 1) & is_shown}
        named |= {"parameters": ~is_shown.expand_as(back)} if self._n_header else {}
        return {name: marked.expand(len(tokens), -1, -1) for name, marked in named.items()}
