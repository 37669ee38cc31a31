"""Bijection: read pairs of a hidden one-to-one map, and predict the value of each key before it is shown.

An unseen key can only have a value that no earlier key had: after `s` distinct keys the posterior is uniform on the
V − s unused values. The value of a key seen before is known. Layout: k1 v1 k2 v2 … kL, and every key is a query.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the task). Labels are at key positions, as in the authors' follow-up,
    because a label at the value's own position only requires copying.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Relations, Trials
from bayesgeom.core.run import with_renamed_answers
from bayesgeom.tasks.base import (
    ExchangeableTask,
    SymmetricTask,
    check_parameters,
    over_tokens,
    random_completion,
    random_order,
    steps_back,
    trials_at,
)


@final
@dataclass(frozen=True, kw_only=True)
class Bijection(SymmetricTask, ExchangeableTask):
    """A new uniform permutation of `n_values` values in each sequence; `n_pairs` keys, the last without its value.

    Ids: keys 0 … V−1, values V … 2V−1. With `repeats`, keys are drawn with replacement, so entropy falls to zero
    whenever a key returns and is not a function of position. Without `repeats`, a key never returns (needs
    `n_pairs` ≤ V).

    With `pooled_keys` in addition, a sequence draws its keys from a random subset, whose size is uniform on 2 … V. The
    keys carry no information about the permutation, so the posterior given a prefix is the same function; only the
    distribution of prefixes changes. Use it for training. With keys uniform over all V, every value is equally likely
    to be the answer, shown or not (|seen|/V · 1/|seen| = 1/V). Attending to values then has no benefit before keys are
    matched, and training stays at the uniform predictor. With frequent returns it has a benefit.

    Args:
        n_values: Number of keys and of values, V.
        n_pairs: Keys in a sequence; each is a scored position.
        repeats: Whether keys are drawn with replacement.
        pooled_keys: Whether each sequence draws its keys from a random subset; needs `repeats`.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> trials = tasks.Bijection(n_values=5, n_pairs=3).sample(2, seed=0)
        >>> trials.at_scored(trials.predictive)[0, :, :].max(dim=-1).values  # 1/5, 1/4, 1/3
        tensor([0.2000, 0.2500, 0.3333], dtype=torch.float64)
    """

    name: ClassVar[str] = "bijection"
    sentence: ClassVar[str] = (
        "A new one-to-one map from {task.n_values} keys to {task.n_values} values in each sequence; "
        "after each key the model predicts its value."
    )
    n_values: int = 20
    n_pairs: int = 19
    repeats: bool = False
    pooled_keys: bool = False

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.n_values < 2 or self.n_pairs < 1:
            raise InvalidArgument(
                f"a bijection needs n_values ≥ 2 and n_pairs ≥ 1, got {self.n_values} and {self.n_pairs}."
            )
        if not self.repeats and self.n_pairs > self.n_values:
            raise InvalidArgument(
                f"{self.n_pairs} distinct keys requested of {self.n_values}: use n_pairs ≤ n_values, or repeats=True."
            )
        if self.pooled_keys and not self.repeats:
            raise InvalidArgument("pooled_keys draws keys with replacement from a subset: it needs repeats=True.")

    @property
    def d_vocab(self) -> int:
        return 2 * self.n_values

    @property
    def n_pos(self) -> int:
        return 2 * self.n_pairs - 1

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        value_of_key = random_order(n, self.n_values, generator)
        keys = self._keys(n, generator)
        return self.trials(keys, value_of_key.gather(1, keys))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs of sequences with the same keys in the same order, under two independent permutations."""
        keys = self._keys(n, generator)
        original, donor = (
            self.trials(keys, random_order(n, self.n_values, generator).gather(1, keys)) for _ in range(2)
        )
        return original, donor

    def trials(self, keys: Int64[Tensor, "batch pair"], values: Int64[Tensor, "batch pair"]) -> Trials:
        """Build sequences from keys and values, each counted from 0; the last value is the label and not shown.

        Args:
            keys: Keys in the order in which they are shown.
            values: Value of each.
        """
        n, n_pairs, v = len(keys), keys.shape[1], self.n_values
        tokens = torch.stack([keys, values + v], dim=2).reshape(n, 2 * n_pairs)[:, :-1].contiguous()
        key_ids = torch.arange(v, device=tokens.device)
        return trials_at(
            slice(0, None, 2),
            tokens,
            answers=key_ids + v,
            predictive=self._posterior(keys, values),
            labels=values + v,
            token_sets={"hypotheses": key_ids + v, "inputs": key_ids},
            relations=Relations(draw=self._relations, of=keys),
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `uniform` over all values; with repeats also two predictors that know which values were shown.

        `elimination_only` never recalls a pair: it excludes every shown value. `key_membership` also knows whether the
        key was shown, but not with which value: if so it is uniform on the shown values.
        """
        exact = trials.at_scored(trials.predictive)
        baselines = {"uniform": torch.full_like(exact, 1 / self.n_values)}
        if self.repeats:
            keys, values = trials.at_scored(trials.tokens), trials.at_scored(trials.labels) - self.n_values
            shown = shown_before(values, self.n_values)
            returns = shown_before(keys, self.n_values).gather(2, keys[..., None])
            baselines["elimination_only"] = uniform_on(~shown)
            baselines["key_membership"] = torch.where(returns, uniform_on(shown), uniform_on(~shown))
        return baselines

    @property
    def n_evidence(self) -> int:
        return self.n_pairs - 1

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw the values of some keys again, among the values that no kept pair has; keys stay."""
        keys, values = trials.at_scored(trials.tokens), trials.tokens[:, 1::2] - self.n_values
        known = torch.full((len(keys), self.n_values), -1, device=keys.device)
        known.scatter_(1, keys[:, :-1][:, keep], values[:, keep])
        value_of_key = random_completion(known, self.n_values, generator)
        return self.trials(keys, value_of_key.gather(1, keys))

    @property
    def is_exchangeable(self) -> bool:
        return True

    def reordered(self, trials: Trials, order: Int64[Tensor, "batch evidence"]) -> Trials:
        """Reorder the pairs before the last key."""
        keys, values = trials.at_scored(trials.tokens), trials.at_scored(trials.labels) - self.n_values
        last = torch.full_like(order[:, :1], self.n_pairs - 1)
        order = torch.cat([order, last], dim=1)
        return self.trials(keys.gather(1, order), values.gather(1, order))

    @property
    def n_continued(self) -> int:
        return min(self.n_pairs, self.n_values) - 1

    def continued(self, trials: Trials, step: int) -> tuple[Trials, Int64[Tensor, "batch row"]]:
        """Continue with a key that was not shown, whose value is the piece, and query a second such key.

        These are the next two keys of the sequence that were not shown before, or else the first ones that were not.
        """
        n, v, device = len(trials), self.n_values, trials.tokens.device
        keys, values = trials.at_scored(trials.tokens), trials.at_scored(trials.labels) - v
        every = torch.cat([keys[:, step:], torch.arange(v, device=device).expand(n, -1)], dim=1)
        place = torch.arange(every.shape[1], device=device).expand(n, -1)
        rank = torch.full((n, v), every.shape[1], device=device).scatter_reduce(1, every, place, "amin")
        rank.scatter_(1, keys[:, :step], every.shape[1])  # shown before
        pair = rank.argsort(dim=1)[:, None, :2].repeat(1, v + 2, 1)
        pair[:, 1] = pair[:, 1].flip(1)
        answers = torch.zeros(n, v + 2, 2, dtype=torch.int64, device=device)
        answers[:, 2:, 0] = torch.arange(v, device=device)
        before = (symbols[:, None, :step].expand(-1, v + 2, -1) for symbols in (keys, values))
        rows = (torch.cat([old, new], dim=2).flatten(0, 1) for old, new in zip(before, (pair, answers), strict=True))
        read = torch.full((n, v + 2), step + 1, device=device)
        read[:, :2] = step
        return self.trials(*rows), read

    def discounted(self, trials: Trials, discount: float) -> Float64[Tensor, "batch query_pos answer"]:
        """Return the exact predictive: every piece of evidence rules maps out."""
        return trials.at_scored(trials.predictive)

    @property
    def n_names(self) -> int:
        return self.n_values

    def relabeled(self, trials: Trials, names: Int64[Tensor, "batch name"]) -> Trials:
        """Rename the values, including the shown ones."""
        return with_renamed_answers(trials, names)

    def token_labels(self) -> Sequence[str]:
        return [f"k{i}" for i in range(self.n_values)] + [f"v{i}" for i in range(self.n_values)]

    def _keys(self, n: int, generator: torch.Generator) -> Int64[Tensor, "batch pair"]:
        if self.pooled_keys:
            pool_size = torch.randint(2, self.n_values + 1, (n, 1), generator=generator, device=generator.device)
            drawn = torch.rand(n, self.n_pairs, generator=generator, dtype=torch.float64, device=generator.device)
            return random_order(n, self.n_values, generator).gather(1, (drawn * pool_size).long())
        if self.repeats:
            return torch.randint(self.n_values, (n, self.n_pairs), generator=generator, device=generator.device)
        return random_order(n, self.n_values, generator)[:, : self.n_pairs]

    def _posterior(
        self, keys: Int64[Tensor, "batch pair"], values: Int64[Tensor, "batch pair"]
    ) -> Float64[Tensor, "batch pair answer"]:
        unused = (~shown_before(values, self.n_values)).double()
        known = torch.nn.functional.one_hot(values, self.n_values).double()
        key_seen = shown_before(keys, self.n_values).gather(2, keys[:, :, None])
        # If all values are used, every key was seen, so the result of the division by zero is never selected.
        return torch.where(key_seen, known, unused / unused.sum(-1, keepdim=True))

    def _relations(self, keys: Int64[Tensor, "batch pair"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        earlier = steps_back(keys) > 0
        marked = {"used_value": (earlier, False), "used_key": (earlier, True)}
        if self.repeats:  # first, because they give the answer: the others only exclude
            same = earlier & (keys[:, :, None] == keys[:, None, :])
            marked = {"stored_value": (same, False), "same_key": (same, True), **marked}
        return {name: over_tokens(pairs, of_inputs=of_keys) for name, (pairs, of_keys) in marked.items()}


def uniform_on(members: Bool[Tensor, "batch pair value"]) -> Float64[Tensor, "batch pair value"]:
    """Return the uniform distribution on a set of values, or on all values if the set is empty."""
    allowed = torch.where(members.any(-1, keepdim=True), members, True).double()
    return allowed / allowed.sum(-1, keepdim=True)


def shown_before(ids: Int64[Tensor, "batch pair"], n_ids: int) -> Bool[Tensor, "batch pair id"]:
    """Return whether each id occurs among the strictly earlier pairs."""
    counts = torch.nn.functional.one_hot(ids, n_ids).cumsum(dim=1)
    return torch.nn.functional.pad(counts[:, :-1], (0, 0, 1, 0)) > 0
