"""Associative recall: read pairs of a hidden one-to-one map, then name the value of a key that is asked much later.

Layout: STORE key SEP value for each pair, filler, then QUERY key placeholder for each query with half as much filler
between two of them. The answer is asked at the query's key and never shown, so every query is answered from what was
stored alone: the value of a stored key is known; that of any other key is one of the values that no stored key has, all
alike. Binding is therefore scored in bits: a model that remembers which values were stored, and not for which key, is
told apart from one that remembers nothing.

The difficulty axis is `n_pairs`, the pairs to store: what a state of fixed size must hold grows with it.

References: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the task; the released generator asks for stored keys alone,
each once, and puts the label on the placeholder); Arora et al. 2023, arXiv:2312.04927 (many queries in a sequence).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.trials import UNASKED, Trials, renamed
from bayesgeom.tasks.base import SymmetricTask, check_parameters
from bayesgeom.tasks.limits import check_affordable

SPECIALS = ("STORE", "SEP", "QUERY", "FILL", "_")
N_SPECIALS = 10  # five more ids that nothing uses, as in the paper's generator, so that vocabularies agree
STORE, SEP, QUERY, FILL, PLACEHOLDER = range(5)


@final
@dataclass(frozen=True, kw_only=True)
class AssociativeRecall(SymmetricTask):
    """A fresh one-to-one map from keys to values per sequence, `n_pairs` of whose pairs are stored and then asked for.

    Ids: keys, values, ten specials. Every query asks, independently of the others, for a key that was not stored with
    probability `unstored_share`, and for a stored one otherwise. `n_filler` tokens stand between the pairs and the
    first query, and ⌊n_filler / 2⌋ between queries. The paper's sizes are n_pairs=64, n_keys=256, n_values=256,
    n_queries=3, n_filler=32: 329 tokens, 522 ids.

    With `pooled_pairs` a sequence stores only some pairs, of a number uniform on 1 … `n_pairs`, each about as often as
    the others. What is known of a key given what was stored is the same function as without: only which sequences are
    common changes. It is there to be learned on. To bind, two things must be learned that gain nothing alone (which key
    stands before a value; that the key asked for is that key), and with many pairs training sits on the bag of stored
    values; with two pairs in the bag there is more to gain from either.
    """

    name: ClassVar[str] = "recall"
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
                f"recall needs n_pairs ≥ 1, n_queries ≥ 1, n_filler ≥ 0 and 0 ≤ unstored_share < 1, got "
                f"{self.n_pairs}, {self.n_queries}, {self.n_filler}, {self.unstored_share}."
            )
        if not self.n_pairs <= self.n_keys <= self.n_values:
            raise InvalidArgument(
                f"{self.n_pairs} pairs asked of {self.n_keys} keys and {self.n_values} values: keys and values are "
                f"distinct, so choose n_pairs ≤ n_keys ≤ n_values."
            )
        if self.unstored_share and self.n_pairs == self.n_keys:
            raise InvalidArgument(
                f"all {self.n_keys} keys are stored, so none is left to ask for with unstored_share="
                f"{self.unstored_share}: use more keys, or unstored_share=0."
            )
        n_queries, per_value = float(self.n_queries), 8 * self.n_pos + 96 * self.n_queries + 24 * self.n_pairs + 12
        check_affordable(
            self,
            per_value * float(self.n_values) + 12 * self.n_keys + n_queries * self.n_pairs,
            on=("n_pairs", "n_keys", "n_values", "n_queries", "n_filler"),
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
        order, asked = self._questions(n, generator)
        return self.trials(order, _permutations(n, self.n_values, generator)[:, : self.n_keys], asked)

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """The same keys stored and asked for, under two independent maps."""
        order, asked = self._questions(n, generator)
        maps = (_permutations(n, self.n_values, generator)[:, : self.n_keys] for _ in range(2))
        original, donor = (self.trials(order, value_of_key, asked) for value_of_key in maps)
        return original, donor

    def trials(
        self,
        order: Int64[Tensor, "batch pair"],
        value_of_key: Int64[Tensor, "batch key"],
        asked: Int64[Tensor, "batch query"],
    ) -> Trials:
        """The trials of given keys to store, of a given map, and of given keys to ask for, each counted from 0."""
        device, answers = order.device, torch.arange(self.n_values, device=order.device) + self.n_keys
        stored_values = value_of_key.gather(1, order)
        tokens = self._tokens(order, stored_values, asked)
        at = self._query_positions(device)
        scored = torch.zeros_like(tokens, dtype=torch.bool)
        scored[:, at] = True
        labels = torch.full_like(tokens, UNASKED)
        labels[:, at] = value_of_key.gather(1, asked) + self.n_keys
        predictive = torch.full((*tokens.shape, self.n_values), torch.nan, dtype=torch.float64, device=device)
        predictive[:, at] = _posterior(asked[:, :, None] == order[:, None, :], stored_values, self.n_values)
        return Trials(
            tokens=tokens,
            scored=scored,
            answers=answers,
            predictive=predictive,
            belief=predictive,
            labels=labels,
            token_sets={"hypotheses": answers, "inputs": torch.arange(self.n_keys, device=device)},
            relations=self._relations(asked[:, :, None] == order[:, None, :], tokens.shape[1]),
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Four predictors without binding, from less to more.

        - `uniform` over all values.
        - `bag`: knows which values were stored, and reads no key; the best there is without looking at the query.
        - `last_pair`: binds the pair stored last, and treats the others as a bag.
        - `membership`: knows whether the key was stored, and not with which value.
        """
        order, values = (trials.tokens[:, first : 4 * self.n_pairs : 4] for first in (1, 3))
        is_key = trials.at_scored(trials.tokens)[:, :, None] == order[:, None, :]
        is_last = trials.at_scored(trials.tokens)[:, :, None] == order[:, None, -1:]
        is_value = torch.nn.functional.one_hot(values - self.n_keys, self.n_values).double()
        stored = is_value.amax(1, keepdim=True).expand(-1, self.n_queries, -1)
        last = is_value[:, -1:].expand_as(stored)
        share = self.unstored_share
        asks_other = (1 - share) * (1 - 1 / stored.sum(-1, keepdim=True))  # how often for a stored pair but the last
        others = _mixed(stored - last, 1 - stored, asks_other, share)
        return {
            "uniform": torch.full_like(stored, 1 / self.n_values),
            "bag": _mixed(stored, 1 - stored, 1 - share, share),
            "last_pair": torch.where(is_last, last, others),
            "membership": _mixed(stored, 1 - stored, is_key.any(2, keepdim=True), ~is_key.any(2, keepdim=True)),
        }

    @property
    def n_names(self) -> int:
        return self.n_values

    def relabeled(self, trials: Trials, names: Int64[Tensor, "batch name"]) -> Trials:
        """Values renamed, stored ones too."""
        return renamed(trials, names)

    def token_labels(self) -> Sequence[str]:
        keys, values = ([f"{kind}{i}" for i in range(n)] for kind, n in (("k", self.n_keys), ("v", self.n_values)))
        return [*keys, *values, *SPECIALS, *(f"unused{i}" for i in range(N_SPECIALS - len(SPECIALS)))]

    def _questions(
        self, n: int, generator: torch.Generator
    ) -> tuple[Int64[Tensor, "batch pair"], Int64[Tensor, "batch query"]]:
        """Keys to store, in order; keys to ask for."""
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
        asked: Int64[Tensor, "batch query"],
    ) -> Int64[Tensor, "batch pos"]:
        first_special = self.n_keys + self.n_values
        tokens = torch.full((len(order), self.n_pos), first_special + FILL, device=order.device)
        pairs = tokens[:, : 4 * self.n_pairs]
        pairs[:, 0::4], pairs[:, 2::4] = first_special + STORE, first_special + SEP
        pairs[:, 1::4], pairs[:, 3::4] = order, stored_values + self.n_keys
        at = self._query_positions(order.device)
        tokens[:, at - 1], tokens[:, at + 1] = first_special + QUERY, first_special + PLACEHOLDER
        tokens[:, at] = asked
        return tokens

    def _query_positions(self, device: torch.device) -> Int64[Tensor, " query"]:
        first = 4 * self.n_pairs + self.n_filler + 1
        return first + (3 + self.n_between) * torch.arange(self.n_queries, device=device)

    def _relations(
        self, is_key: Bool[Tensor, "batch query pair"], n_pos: int
    ) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """The value and the key of the pair asked for, all four of its tokens, and the values of other pairs."""

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
    """A point mass on the value stored with the key; for a key never stored, uniform on the values never stored."""
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
    """Uniform on each of two sets of values, mixed in proportion to the weights; an empty set has none."""
    spread = [
        share * (members / members.sum(-1, keepdim=True).clamp_min(1))
        for share, members in ((weight, one), (other_weight, other))
    ]
    total = spread[0] + spread[1]
    mass = total.sum(-1, keepdim=True)
    return torch.where(mass > 0, total / mass.clamp_min(torch.finfo(torch.float64).tiny), 1 / one.shape[-1])
