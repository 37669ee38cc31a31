"""Associative recall: read pairs of a hidden one-to-one map, then predict the value of a key that is queried later.

Layout: STORE key SEP value for each pair, then filler, then QUERY key placeholder for each query. Half as much filler
stands between two queries. The label belongs to the query's key and is never shown, so each query depends on the
stored pairs only. The value of a stored key is known. The value of any other key is uniform over the values that were
not stored. Binding is therefore measured in bits: the score separates a model that remembers which values were stored,
but not for which key, from a model that remembers nothing.

The difficulty axis is `n_pairs`, the number of stored pairs: the memory that a model needs grows with it.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the task; the released generator queries stored keys only, each once,
    and puts the label on the placeholder).
    Arora et al. 2023, arXiv:2312.04927 (many queries in a sequence).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials
from bayesgeom.core.run import with_renamed_answers
from bayesgeom.tasks.base import (
    EvidenceTask,
    SymmetricTask,
    check_parameters,
    random_completion,
    trials_at,
)

SPECIALS = ("STORE", "SEP", "QUERY", "FILL", "_")
N_SPECIALS = 10  # five ids are unused, as in the paper's generator, so that vocabularies agree
STORE, SEP, QUERY, FILL, PLACEHOLDER = range(5)


@final
@dataclass(frozen=True, kw_only=True)
class AssociativeRecall(SymmetricTask, EvidenceTask):
    """A new one-to-one map from keys to values in each sequence: `n_pairs` of its pairs are stored, then queried.

    Ids: keys, values, ten special tokens. Each query independently uses a key that was not stored with probability
    `unstored_share`, and a stored key otherwise. `n_filler` tokens stand between the pairs and the first query, and
    ⌊n_filler / 2⌋ between queries. The paper's sizes are n_pairs=64, n_keys=256, n_values=256, n_queries=3,
    n_filler=32: 329 tokens, 522 ids.

    With `pooled_pairs`, a sequence stores m distinct pairs, with m uniform on 1 … `n_pairs`, each about equally often.
    The posterior given the stored pairs is the same function; only the distribution of sequences changes. Use it for
    training. Binding requires two steps that have no benefit alone: which key stands before a value, and which stored
    key equals the query. With many pairs, training therefore stays at the bag of stored values. With two pairs each
    step alone reduces the loss more.

    Args:
        n_pairs: Stored pairs in a sequence.
        n_keys: Number of keys, at least `n_pairs`.
        n_values: Number of values, at least `n_keys`.
        n_queries: Queries in a sequence; each is a scored position.
        n_filler: Tokens between the pairs and the first query.
        unstored_share: Probability that a query uses a key that was not stored.
        pooled_pairs: Whether the number of stored pairs varies between sequences.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> trials = tasks.AssociativeRecall(n_pairs=3, n_keys=5, n_values=7, n_queries=2).sample(2, seed=0)
        >>> trials.at_scored(trials.predictive).shape
        torch.Size([2, 2, 7])
    """

    name: ClassVar[str] = "recall"
    sentence: ClassVar[str] = (
        "Up to {task.n_pairs} pairs of a key and a value, then keys again: after each of these the "
        "model predicts its value."
    )
    n_pairs: int = 8
    n_keys: int = 16
    n_values: int = 16
    n_queries: int = 8
    n_filler: int = 2
    unstored_share: float = 0.25
    pooled_pairs: bool = False

    def __post_init__(self) -> None:
        check_parameters(self)
        if min(self.n_pairs, self.n_queries) < 1 or self.n_filler < 0 or not 0 <= self.unstored_share < 1:
            raise InvalidArgument(
                f"recall needs n_pairs ≥ 1, n_queries ≥ 1, n_filler ≥ 0 and 0 ≤ unstored_share < 1, got {self}."
            )
        if not self.n_pairs <= self.n_keys <= self.n_values:
            raise InvalidArgument(
                f"{self.n_pairs} pairs need distinct keys and values, got {self.n_keys} and {self.n_values}: "
                f"choose n_pairs ≤ n_keys ≤ n_values."
            )
        if self.unstored_share and self.n_pairs == self.n_keys:
            raise InvalidArgument(
                f"all {self.n_keys} keys are stored, so no unstored key is left for unstored_share="
                f"{self.unstored_share}: use more keys, or unstored_share=0."
            )

    @property
    def n_between(self) -> int:
        """Filler tokens between two queries."""
        return self.n_filler // 2

    @property
    def d_vocab(self) -> int:
        return self.n_keys + self.n_values + N_SPECIALS

    @property
    def n_pos(self) -> int:
        return 4 * self.n_pairs + self.n_filler + 3 * self.n_queries + self.n_between * (self.n_queries - 1)

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        order, queried = self._questions(n, generator)
        return self.trials(order, _permutations(n, self.n_values, generator)[:, : self.n_keys], queried)

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs of sequences with the same stored and queried keys, under two independent maps."""
        order, queried = self._questions(n, generator)
        maps = (_permutations(n, self.n_values, generator)[:, : self.n_keys] for _ in range(2))
        original, donor = (self.trials(order, value_of_key, queried) for value_of_key in maps)
        return original, donor

    def trials(
        self,
        order: Int64[Tensor, "batch pair"],
        value_of_key: Int64[Tensor, "batch key"],
        queried: Int64[Tensor, "batch query"],
    ) -> Trials:
        """Build sequences from the keys to store, the map, and the keys to query, each counted from 0.

        Args:
            order: Keys in the order in which they are stored.
            value_of_key: Value of each key.
            queried: Keys in the order in which they are queried.
        """
        device, answers = order.device, torch.arange(self.n_values, device=order.device) + self.n_keys
        stored_values = value_of_key.gather(1, order)
        at = self._query_positions(device)
        is_key = queried[:, :, None] == order[:, None, :]
        return trials_at(
            at,
            self._tokens(order, stored_values, queried),
            answers=answers,
            predictive=_posterior(is_key, stored_values, self.n_values),
            labels=value_of_key.gather(1, queried) + self.n_keys,
            token_sets={"hypotheses": answers, "inputs": torch.arange(self.n_keys, device=device)},
            relations=self._relations(is_key, self.n_pos),
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return four predictors without full binding, ordered by what they use.

        - `uniform`: uniform over all values.
        - `bag`: uses which values were stored, but no key; the best predictor that ignores the query.
        - `last_pair`: binds the pair stored last and treats the others as a bag.
        - `membership`: uses whether the key was stored, but not with which value.
        """
        order, values = (trials.tokens[:, first : 4 * self.n_pairs : 4] for first in (1, 3))
        is_key = trials.at_scored(trials.tokens)[:, :, None] == order[:, None, :]
        is_last = trials.at_scored(trials.tokens)[:, :, None] == order[:, None, -1:]
        is_value = torch.nn.functional.one_hot(values - self.n_keys, self.n_values).double()
        stored = is_value.amax(1, keepdim=True).expand(-1, self.n_queries, -1)
        last = is_value[:, -1:].expand_as(stored)
        share = self.unstored_share
        asks_other = (1 - share) * (1 - 1 / stored.sum(-1, keepdim=True))  # for a pair that is not the last
        others = _mixed(stored - last, 1 - stored, asks_other, share)
        return {
            "uniform": torch.full_like(stored, 1 / self.n_values),
            "bag": _mixed(stored, 1 - stored, 1 - share, share),
            "last_pair": torch.where(is_last, last, others),
            "membership": _mixed(stored, 1 - stored, is_key.any(2, keepdim=True), ~is_key.any(2, keepdim=True)),
        }

    @property
    def n_evidence(self) -> int:
        return self.n_pairs

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw the values of some stored pairs again, among the values that no kept pair has; keys and queries stay."""
        order, values = (trials.tokens[:, first : 4 * self.n_pairs : 4] for first in (1, 3))
        known = torch.full((len(order), self.n_keys), -1, device=order.device)
        known.scatter_(1, order[:, keep], values[:, keep] - self.n_keys)
        value_of_key = random_completion(known, self.n_values, generator)
        return self.trials(order, value_of_key, trials.at_scored(trials.tokens))

    @property
    def n_names(self) -> int:
        return self.n_values

    def relabeled(self, trials: Trials, names: Int64[Tensor, "batch name"]) -> Trials:
        """Rename the values, including the stored ones."""
        return with_renamed_answers(trials, names)

    def token_labels(self) -> Sequence[str]:
        keys, values = ([f"{kind}{i}" for i in range(n)] for kind, n in (("k", self.n_keys), ("v", self.n_values)))
        return [*keys, *values, *SPECIALS, *(f"unused{i}" for i in range(N_SPECIALS - len(SPECIALS)))]

    def _questions(
        self, n: int, generator: torch.Generator
    ) -> tuple[Int64[Tensor, "batch pair"], Int64[Tensor, "batch query"]]:
        """Draw the keys to store, in order, and the keys to query."""
        shuffled = _permutations(n, self.n_keys, generator)
        n_stored = torch.full((n, 1), self.n_pairs, device=generator.device)
        order = shuffled[:, : self.n_pairs]
        if self.pooled_pairs:
            n_stored = torch.randint(1, self.n_pairs + 1, (n, 1), generator=generator, device=generator.device)
            order = shuffled.gather(1, _permutations(n, self.n_pairs, generator) % n_stored)
        kind, which = (
            torch.rand(n, self.n_queries, generator=generator, dtype=torch.float64, device=generator.device)
            for _ in range(2)
        )
        other = n_stored + (which * (self.n_keys - n_stored)).long()
        return order, shuffled.gather(1, torch.where(kind < self.unstored_share, other, (which * n_stored).long()))

    def _tokens(
        self,
        order: Int64[Tensor, "batch pair"],
        stored_values: Int64[Tensor, "batch pair"],
        queried: Int64[Tensor, "batch query"],
    ) -> Int64[Tensor, "batch pos"]:
        first_special = self.n_keys + self.n_values
        tokens = torch.full((len(order), self.n_pos), first_special + FILL, device=order.device)
        pairs = tokens[:, : 4 * self.n_pairs]
        pairs[:, 0::4], pairs[:, 2::4] = first_special + STORE, first_special + SEP
        pairs[:, 1::4], pairs[:, 3::4] = order, stored_values + self.n_keys
        at = self._query_positions(order.device)
        tokens[:, at - 1], tokens[:, at + 1] = first_special + QUERY, first_special + PLACEHOLDER
        tokens[:, at] = queried
        return tokens

    def _query_positions(self, device: torch.device) -> Int64[Tensor, " query"]:
        first = 4 * self.n_pairs + self.n_filler + 1
        return first + (3 + self.n_between) * torch.arange(self.n_queries, device=device)

    def _relations(
        self, is_key: Bool[Tensor, "batch query pair"], n_pos: int
    ) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Mark the value and the key of the queried pair, all four of its tokens, and the values of other pairs."""

        def placed(
            related: Bool[Tensor, "batch query pair"], offsets: Sequence[int]
        ) -> Bool[Tensor, "batch query pos"]:
            everywhere = torch.zeros(*is_key.shape[:2], n_pos, dtype=torch.bool, device=is_key.device)
            for offset in offsets:
                everywhere[:, :, offset : 4 * self.n_pairs : 4] = related
            return everywhere

        return {
            "stored_value": placed(is_key, (3,)),
            "same_key": placed(is_key, (1,)),
            "stored_pair": placed(is_key, range(4)),
            "other_value": placed(~is_key, (3,)),
        }


def _permutations(n: int, size: int, generator: torch.Generator) -> Int64[Tensor, "batch size"]:
    return torch.rand(n, size, generator=generator, dtype=torch.float64, device=generator.device).argsort(dim=1)


def _posterior(
    is_key: Bool[Tensor, "batch query pair"], stored_values: Int64[Tensor, "batch pair"], n_values: int
) -> Float64[Tensor, "batch query value"]:
    """Return a point mass on the key's stored value; for an unstored key, uniform on the values not stored."""
    is_value = torch.nn.functional.one_hot(stored_values, n_values).double()
    known, free = is_key.double() @ is_value, 1 - is_value.amax(1, keepdim=True)
    is_stored = is_key.any(2, keepdim=True)
    return _mixed(known.clamp_max(1), free, is_stored, ~is_stored)


def _mixed(
    one: Float64[Tensor, "batch #query value"],
    other: Float64[Tensor, "batch #query value"],
    weight: float | Shaped[Tensor, "batch #query 1"],
    other_weight: float | Shaped[Tensor, "batch #query 1"],
) -> Float64[Tensor, "batch #query value"]:
    """Mix the uniform distributions on two sets of values by their weights; an empty set gets no weight."""
    spread = [
        share * (members / members.sum(-1, keepdim=True).clamp_min(1))
        for share, members in ((weight, one), (other_weight, other))
    ]
    total = spread[0] + spread[1]
    mass = total.sum(-1, keepdim=True)
    return torch.where(mass > 0, total / mass.clamp_min(torch.finfo(torch.float64).tiny), 1 / one.shape[-1])
