"""In context: any wind tunnel in words, with one single-token symbol per id and the same exact posterior.

It tests whether a language model that was not trained on the task infers from the prompt alone. Queries, posterior and
evidence are those of the wind tunnel; only the ids change, and the positions if tokens are inserted.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the wind tunnels, as training tasks).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import NO_LABEL, InvalidArgument, Tokenizer, Trials, check_types
from bayesgeom.core.tokenizer import chat_prompts, check_ids, first_symbols, prefix_ids, punctuation_id, token_names
from bayesgeom.tasks.base import EvidenceTask, ExchangeableTask, TextTask, WindTunnel, candidates, check_affordable

MESSAGE = "Continue the sequence."
_MAP_BYTES = 8.0  # per pair of positions: relations, at the task's positions and at the rendered ones


@final
@dataclass(frozen=True, kw_only=True)
class InContext(TextTask):
    """`task` in words; on the command line `bijection-in-context`, `hmm-in-context`, ….

    Id i gets the i-th single-token symbol among `symbols`, or among the project's words and capital letters. A
    `separator` stands before every scored position except one at the start: a bijection reads "k1 v1, k2 v2, k3". The
    default has no separator. With `bos`, a prompt begins with the tokenizer's beginning-of-sequence token, if it has
    one. With `chat`, the symbols are the assistant's answer, in the tokenizer's chat template, to a user who asks to
    continue the sequence.

    Args:
        task: The wind tunnel that is written as text.
        symbols: Words for the ids, each one token; empty: the project's.
        separator: Text before scored positions, such as ",".
        bos: Whether a prompt begins with the tokenizer's beginning-of-sequence token.
        chat: Whether the sequence is an assistant's answer in the chat template.

    Raises:
        InvalidArgument: A parameter has the wrong type.

    Example:
        >>> from bayesgeom import tasks
        >>> task = tasks.InContext(task=tasks.Bijection(n_values=5, n_pairs=3))
        >>> isinstance(task, tasks.TextTask)  # it becomes a wind tunnel with a model's tokenizer
        True
    """

    name: ClassVar[str] = "in-context"
    task: WindTunnel
    symbols: tuple[str, ...] = ()
    separator: str = ""
    bos: bool = True
    chat: bool = False

    def __post_init__(self) -> None:
        check_types(self)

    def bind(self, tokenizer: Tokenizer, *, d_vocab: int) -> "BoundInContext":
        tried = self.symbols or (*candidates("words"), *map(chr, range(ord("A"), ord("Z") + 1)))
        remedy = f"Pass symbols=(…) with enough single-token ones, or a task with fewer ids than this {self.task.name}."
        symbols = first_symbols(tokenizer, tried, self.task.d_vocab, kind="symbols", remedy=remedy)
        first = next(iter(symbols))
        prefix = prefix_ids(tokenizer, first) if self.bos else ()
        if self.chat:
            (prefix,) = chat_prompts(tokenizer, [MESSAGE])
        bound = BoundInContext(
            task=self.task,
            n_ids=d_vocab,
            prefix=prefix,
            separator_ids=(punctuation_id(tokenizer, self.separator, after=first),) if self.separator else (),
            symbols=tuple(symbols),
            symbol_ids=tuple(symbols.values()),
            chat=self.chat,
        )
        check_ids((*bound.prefix, *bound.separator_ids, *bound.symbol_ids), d_vocab)
        return bound


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BoundInContext(ExchangeableTask):
    """`InContext` in one tokenizer's ids."""

    name: ClassVar[str] = "in-context"
    question: ClassVar[str] = "Does {model} infer in context?"
    sentence: ClassVar[str] = "The task {task.task.name} in words: at each query the model predicts the answer."
    task: WindTunnel
    n_ids: int
    prefix: tuple[int, ...]
    separator_ids: tuple[int, ...]  # at most one
    symbols: tuple[str, ...]
    symbol_ids: tuple[int, ...]
    chat: bool = False

    def __post_init__(self) -> None:
        ids, n = (*self.symbol_ids, *self.separator_ids), self.task.d_vocab
        if len(self.symbol_ids) != n or len({*ids}) < len(ids):
            raise InvalidArgument(
                f"{self.task} needs {n} distinct symbols, and a separator that is not one of them; got the ids {ids}."
            )
        length = float(self.task.n_pos)
        check_affordable(self.task, _MAP_BYTES * length**2, on=("n_pos", "d_vocab"))

    def __repr__(self) -> str:
        return f"{self.task} in context{', as a chat' if self.chat else ''}"

    @property
    def d_vocab(self) -> int:
        return self.n_ids

    @property
    def n_pos(self) -> int:
        return int(self._places(self.task.sample(1, seed=0))[-1]) + 1

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self.rendered(self.task.draw(n, generator))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        original, donor = self.task.draw_pair(n, generator)
        return self.rendered(original), self.rendered(donor)

    def rendered(self, trials: Trials) -> Trials:
        """Render sequences of the wind tunnel in symbols. Inserted tokens are neither scored nor evidence."""
        places, ids = self._places(trials), torch.tensor(self.symbol_ids, device=trials.tokens.device)

        def spread(values: Tensor, fill: float | bool, axis: int) -> Tensor:
            """Move the position axis to the rendered positions."""
            shape = (*values.shape[:axis], int(places[-1]) + 1, *values.shape[axis + 1 :])
            return values.new_full(shape, fill).index_copy(axis, places, values)

        rendered = _carried(
            trials, lambda own: ids[own], spread, filler=self.separator_ids[0] if self.separator_ids else 0
        )
        rendered.tokens[:, : len(self.prefix)] = torch.tensor(self.prefix, dtype=torch.int64, device=ids.device)
        return rendered

    def unrendered(self, trials: Trials) -> Trials:
        """Return the wind tunnel's own sequences: the inverse of `rendered`."""
        places = self._places(self.task.sample(1, seed=0, device=trials.tokens.device))
        known, order = torch.tensor(self.symbol_ids, device=trials.tokens.device).sort()
        return _carried(
            trials,
            lambda ids: order[torch.searchsorted(known, ids.contiguous()).clamp_max(len(known) - 1)],
            lambda values, _, axis: values.index_select(axis, places),
            filler=0,
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return the baselines of the wind tunnel."""
        return self.task.baseline_predictives(self.unrendered(trials))

    @property
    def n_evidence(self) -> int:
        return self.task.n_evidence if isinstance(self.task, EvidenceTask) else 0

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw evidence of the wind tunnel again."""
        assert isinstance(self.task, EvidenceTask), "otherwise n_evidence is 0"
        return self.rendered(self.task.replace_evidence(self.unrendered(trials), keep, generator))

    @property
    def is_exchangeable(self) -> bool:
        return isinstance(self.task, ExchangeableTask) and self.task.is_exchangeable

    def reordered(self, trials: Trials, order: Int64[Tensor, "batch evidence"]) -> Trials:
        """Reorder evidence of the wind tunnel."""
        return self.rendered(self._exchangeable.reordered(self.unrendered(trials), order))

    @property
    def n_continued(self) -> int:
        return self._exchangeable.n_continued if self.is_exchangeable else 0

    def continued(self, trials: Trials, step: int) -> tuple[Trials, Int64[Tensor, "batch row"]]:
        """Continue sequences of the wind tunnel."""
        sequences, read = self._exchangeable.continued(self.unrendered(trials), step)
        return self.rendered(sequences), read

    def discounted(self, trials: Trials, discount: float) -> Float64[Tensor, "batch query_pos answer"] | None:
        return self._exchangeable.discounted(self.unrendered(trials), discount)

    @property
    def _exchangeable(self) -> ExchangeableTask:
        assert isinstance(self.task, ExchangeableTask), "otherwise is_exchangeable is False"
        return self.task

    def token_labels(self) -> Sequence[str]:
        words = self.task.token_labels()
        names = {i: f"{label}: {symbol}" for i, label, symbol in zip(self.symbol_ids, words, self.symbols, strict=True)}
        return token_names(names, self.n_ids)

    def _places(self, trials: Trials) -> Int64[Tensor, " pos"]:
        """Return the rendered position of each position; raise `InvalidArgument` if it varies over sequences."""
        scored = trials.scored[0]
        if self.separator_ids and (bool((trials.scored != scored).any()) or bool((scored[1:] & scored[:-1]).any())):
            raise InvalidArgument(
                f"{self.task.name} has queries at adjacent positions, or at positions that vary over sequences: a "
                f"separator would stand in place of an answer. Leave separator out."
            )
        before = scored.clone()
        before[0] = False
        inserted = before.long().cumsum(0) if self.separator_ids else torch.zeros_like(scored, dtype=torch.int64)
        return torch.arange(len(scored), device=scored.device) + inserted + len(self.prefix)


def _carried(
    trials: Trials,
    ids: Callable[[Tensor], Tensor],
    spread: Callable[[Tensor, float | bool, int], Tensor],
    *,
    filler: int,
) -> Trials:
    """Return the sequences in other ids at other positions, which `spread` gives along one axis."""
    labels = spread(trials.labels, NO_LABEL, 1)
    is_labeled = labels != NO_LABEL
    return replace(
        trials,
        tokens=spread(ids(trials.tokens), filler, 1),
        scored=spread(trials.scored, False, 1),
        answers=ids(trials.answers),
        predictive=spread(trials.predictive, torch.nan, 1),
        belief=spread(trials.belief, torch.nan, 1),
        statistics={name: spread(values, torch.nan, 1) for name, values in trials.statistics.items()},
        labels=torch.where(is_labeled, ids(torch.where(is_labeled, labels, trials.answers[0])), NO_LABEL),
        token_sets={name: ids(members) for name, members in trials.token_sets.items()},
        relations={name: spread(related, False, 2) for name, related in trials.relations.items()},
    )
