"""In context: any wind tunnel in words, one single-token symbol for each of its ids, the exact posterior kept.

A language model has never met the task; whether it infers from the prompt alone is the question. What is asked, what is
known and what counts as evidence are the wind tunnel's own; only ids change, and places where something is inserted.

Reference: Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the wind tunnels, which there are trained on).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.trials import UNASKED, Trials
from bayesgeom.tasks.base import TextTask, WindTunnel
from bayesgeom.tasks.limits import check_affordable
from bayesgeom.tasks.text import (
    Tokenizer,
    asked_in_chat,
    candidates,
    check_ids,
    first_symbols,
    labeled,
    mark,
    opening,
)

MESSAGE = "Continue the sequence."
_MAP_BYTES = (
    8.0  # a pair of positions: relations, which are rendered at once, in the task's places and in their new ones
)


@final
@dataclass(frozen=True, kw_only=True)
class InContext(TextTask):
    """`task` in words; on a command line `bijection-in-context`, `hmm-in-context`, ….

    Symbols are the first that the tokenizer writes as one token, of the project's words and capital letters or of
    `symbols`: id i gets the i-th. With `separator` that mark stands before every scored position but a first one, so
    that a bijection reads "k1 v1, k2 v2, k3"; the default has none. With `bos` a prompt opens as the tokenizer opens a
    text. With `chat` the symbols are the assistant's answer, by the tokenizer's chat template, to a user who asks to
    continue the sequence.
    """

    name: ClassVar[str] = "in-context"
    task: WindTunnel
    symbols: tuple[str, ...] = ()
    separator: str = ""
    bos: bool = True
    chat: bool = False

    def bind(self, tokenizer: Tokenizer, *, d_vocab: int) -> "BoundInContext":
        tried = self.symbols or (*candidates("words"), *map(chr, range(ord("A"), ord("Z") + 1)))
        remedy = f"Pass symbols=(…) with enough that it does, or a task of fewer ids than this {self.task.name}."
        symbols = first_symbols(tokenizer, tried, self.task.d_vocab, kind="symbols", remedy=remedy)
        first = next(iter(symbols))
        prefix = opening(tokenizer, first) if self.bos else ()
        if self.chat:
            prefix = asked_in_chat(tokenizer, MESSAGE)
        bound = BoundInContext(
            task=self.task,
            n_ids=d_vocab,
            prefix=prefix,
            separator_ids=(mark(tokenizer, self.separator, after=first),) if self.separator else (),
            symbols=tuple(symbols),
            symbol_ids=tuple(symbols.values()),
            chat=self.chat,
        )
        check_ids((*bound.prefix, *bound.separator_ids, *bound.symbol_ids), d_vocab)
        return bound


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BoundInContext(WindTunnel):
    """`InContext` in one tokenizer's ids."""

    name: ClassVar[str] = "in-context"
    task: WindTunnel
    n_ids: int
    prefix: tuple[int, ...]
    separator_ids: tuple[int, ...]  # one or none
    symbols: tuple[str, ...]
    symbol_ids: tuple[int, ...]
    chat: bool = False

    def __post_init__(self) -> None:
        ids, n = (*self.symbol_ids, *self.separator_ids), self.task.d_vocab
        if len(self.symbol_ids) != n or len({*ids}) < len(ids):
            raise InvalidArgument(f"{self.task} has {n} ids: it needs as many distinct symbols, and other separators.")
        length = float(self.task.n_pos)
        check_affordable(self.task, _MAP_BYTES * length**2, on=("n_pos", "d_vocab"))

    def __repr__(self) -> str:
        return f"{self.task} in context{', as a chat' if self.chat else ''}"

    @property
    def d_vocab(self) -> int:
        return self.n_ids

    @property
    def n_pos(self) -> int:
        return self._length(self._places(self.task.sample(1, seed=0)))

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self.rendered(self.task.draw(n, generator))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        original, donor = self.task.draw_pair(n, generator)
        return self.rendered(original), self.rendered(donor)

    def rendered(self, trials: Trials) -> Trials:
        """Trials of the wind tunnel in symbols. What is inserted is not scored and no evidence."""
        places = self._places(trials)
        width, ids = self._length(places), torch.tensor(self.symbol_ids, device=trials.tokens.device)

        def spread(values: Tensor, fill: float | bool, *, last: bool = False) -> Tensor:
            """`values` with their position axis, the second or the last, in its new places."""
            axis = values.ndim - 1 if last else 1
            wide = values.new_full((*values.shape[:axis], width, *values.shape[axis + 1 :]), fill)
            return wide.index_copy(axis, places, values)

        tokens = spread(ids[trials.tokens], self.separator_ids[0] if self.separator_ids else 0)
        tokens[:, : len(self.prefix)] = torch.tensor(self.prefix, dtype=torch.int64, device=tokens.device)
        asked = trials.labels != UNASKED
        return replace(
            trials,
            tokens=tokens,
            scored=spread(trials.scored, fill=False),
            answers=ids[trials.answers],
            predictive=spread(trials.predictive, torch.nan),
            belief=spread(trials.belief, torch.nan),
            labels=spread(torch.where(asked, ids[trials.labels * asked], UNASKED), UNASKED),
            token_sets={name: ids[members] for name, members in trials.token_sets.items()},
            relations={name: spread(r, fill=False, last=True) for name, r in trials.relations.items()},
        )

    def unrendered(self, trials: Trials) -> Trials:
        """The wind tunnel's own trials: the inverse of `rendered`."""
        places = self._places_in(trials)
        known, order = torch.tensor(self.symbol_ids, device=trials.tokens.device).sort()

        def own(ids: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
            return order[torch.searchsorted(known, ids.contiguous())]

        labels = trials.labels[:, places]
        asked = labels != UNASKED
        return replace(
            trials,
            tokens=own(trials.tokens[:, places]),
            scored=trials.scored[:, places],
            answers=own(trials.answers),
            predictive=trials.predictive[:, places],
            belief=trials.belief[:, places],
            labels=torch.where(asked, own(torch.where(asked, labels, known[0])), UNASKED),
            token_sets={name: own(members) for name, members in trials.token_sets.items()},
            relations={name: related[:, :, places] for name, related in trials.relations.items()},
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """The wind tunnel's own."""
        return self.task.baseline_predictives(self.unrendered(trials))

    def token_labels(self) -> Sequence[str]:
        own = self.task.token_labels()
        names = {i: f"{label}: {symbol}" for i, label, symbol in zip(self.symbol_ids, own, self.symbols, strict=True)}
        return labeled(names, self.n_ids)

    def _places(self, trials: Trials) -> Int64[Tensor, " pos"]:
        """Where each position of the wind tunnel comes to stand. **Raises** `InvalidArgument` where that varies."""
        scored = trials.scored[0]
        if self.separator_ids and (bool((trials.scored != scored).any()) or bool((scored[1:] & scored[:-1]).any())):
            raise InvalidArgument(
                f"{self.task.name} asks at adjacent positions, or not at the same ones in every sequence: a separator "
                f"would stand where an answer belongs. Leave separator out."
            )
        before = scored.clone()
        before[0] = False
        inserted = before.long().cumsum(0) if self.separator_ids else torch.zeros_like(scored, dtype=torch.int64)
        return torch.arange(len(scored), device=scored.device) + inserted + len(self.prefix)

    def _places_in(self, trials: Trials) -> Int64[Tensor, " pos"]:
        """The same, read back from rendered trials."""
        is_separator = torch.zeros_like(trials.scored[0])
        if self.separator_ids:
            is_separator[:-1] = trials.scored[0, 1:]
            is_separator[: len(self.prefix)] = False
        places = (~is_separator).nonzero()[:, 0]
        return places[len(self.prefix) :]

    def _length(self, places: Int64[Tensor, " pos"]) -> int:
        return int(places[-1]) + 1
