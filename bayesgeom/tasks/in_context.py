"""In context: any wind tunnel in words, with one symbol per id and the same exact posterior.

It tests whether a language model that was not trained on the task infers from the prompt alone. Queries, posterior and
evidence are those of the wind tunnel; only the ids change, and the positions if tokens are inserted.

References:
    Agarwal, Dalal & Misra 2025, arXiv:2512.22471 (the wind tunnels, as training tasks).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import NO_LABEL, InvalidArgument, Tokenizer, Trials, check_types
from bayesgeom.core.tokenizer import (
    chat_prompts,
    chat_turns,
    check_ids,
    check_spellings,
    encoded_text,
    first_symbols,
    joined_ids,
    prefix_ids,
    punctuation_id,
    single_tokens,
    token_names,
)
from bayesgeom.tasks.base import (
    EvidenceTask,
    ExchangeableTask,
    TextTask,
    WindTunnel,
    candidates,
    without_prefixes,
)

Style = Literal["plain", "chat", "instruct"]
Spellings = tuple[tuple[tuple[int, ...], ...], ...]  # of each symbol, the first of which is written
MESSAGE, NEXT = "Continue the sequence.", "Next."
EXPLAINED = "{about} The symbols are {shown}. Continue the sequence: write only the next symbol, which is {answers}."
OR = "|"  # between the spellings of a symbol


@final
@dataclass(frozen=True, kw_only=True)
class InContext(TextTask):
    """`task` in words; on the command line `bijection-in-context`, `hmm-in-context`, ….

    Id i gets the i-th single-token symbol among `symbols`, or among the project's words and capital letters. If there
    are as many `symbols` as ids, each may have several tokens, and several spellings: "yes|Yes" writes "yes" and takes
    both as the answer. A `separator` stands before every scored position except one at the start: a bijection reads
    "k1 v1, k2 v2, k3". The default has no separator. With `bos`, a prompt begins with the tokenizer's
    beginning-of-sequence token, if it has one.

    `style` changes the beginning for instruct models. In `chat` the symbols are the assistant's answer, in the
    tokenizer's chat template, to a user who asks to continue the sequence. In `instruct` the user also explains the
    task, the symbols, and what to answer. With `turns`, each answer is a turn of the assistant, and what stands between
    two answers, or "Next.", one of the user.

    Args:
        task: The wind tunnel that is written as text.
        symbols: Words for the ids; empty: the project's.
        separator: Text before scored positions, such as ",".
        bos: Whether a prompt begins with the tokenizer's beginning-of-sequence token.
        style: How a prompt begins, as above.
        turns: Whether answers are turns of a chat.
        about: What the sequence is, for `instruct`; empty: the sentence of the task.

    Raises:
        InvalidArgument: A parameter has the wrong type, or turns are asked of plain text or with a separator.

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
    style: Style = "plain"
    turns: bool = False
    about: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        if self.turns and (self.style == "plain" or self.separator):
            raise InvalidArgument("turns=True needs style='chat' or 'instruct', and no separator.")

    def bind(self, tokenizer: Tokenizer, *, d_vocab: int) -> "BoundInContext":
        is_exact = len(self.symbols) == self.task.d_vocab
        known = [symbol.split(OR) for symbol in self.symbols if is_exact] or self._first(tokenizer)
        names = tuple(spelled[0] for spelled in known)
        prefix = prefix_ids(tokenizer, names[0]) if self.bos and self.style == "plain" else ()
        if self.style != "plain" and not self.turns:
            (prefix,) = chat_prompts(tokenizer, [self._message(names)])
        before, turn_ids = "", tuple[tuple[int, ...], ...]()
        if self.turns:
            before, prefix, turn_ids = turn_parts(tokenizer, self._message(names), names[0])
        spellings = tuple(tuple(spelled_ids(tokenizer, one, before) for one in spelled) for spelled in known)
        check_spellings([*zip(chain(*known), chain(*spellings), strict=True)])
        bound = BoundInContext(
            task=self.task,
            n_ids=d_vocab,
            prefix=prefix,
            separator_ids=(punctuation_id(tokenizer, self.separator, after=names[0]),) if self.separator else (),
            symbols=names,
            symbol_ids=symbol_ids(spellings, d_vocab),
            style=self.style,
            turn_ids=turn_ids,
            spellings=() if all(map(_is_token, spellings)) else spellings,
        )
        check_ids(chain(prefix, bound.separator_ids, *turn_ids, *chain(*spellings)), d_vocab)
        return bound

    def _first(self, tokenizer: Tokenizer) -> list[list[str]]:
        """Return the first single-token candidates, each with one spelling."""
        tried: Sequence[str] = self.symbols or (*candidates("words"), *map(chr, range(ord("A"), ord("Z") + 1)))
        tried = without_prefixes(tried) if self.turns else tried  # they may be several tokens there
        remedy = f"Pass symbols=(…), one for each id, or a task with fewer ids than this {self.task.name}."
        found = first_symbols(tokenizer, tried, self.task.d_vocab, kind="symbols", remedy=remedy)
        return [[symbol] for symbol in found]

    def _message(self, names: Sequence[str]) -> str:
        """Return what the user says first."""
        if self.style == "chat":
            return MESSAGE
        listed = [names[i] for i in self.task.sample(1, seed=0).answers.tolist()]
        labels = zip(names, self.task.token_labels(), strict=True)
        shown = names if self.about else [f"{name} ({label})" for name, label in labels]
        return EXPLAINED.format(
            about=self.about or self.task.sentence.format(task=self.task).replace("the model predicts", "predict"),
            shown=", ".join(shown),
            answers=f"{', '.join(listed[:-1])} or {listed[-1]}",
        )


def _is_token(spelled: Sequence[Sequence[int]]) -> bool:
    return sum(map(len, spelled)) == 1


def symbol_ids(spellings: Sequence[Sequence[Sequence[int]]], d_vocab: int) -> tuple[int, ...]:
    """Return the id of each symbol that is one token, and ids beyond the vocabulary for the others."""
    return tuple(each[0][0] if _is_token(each) else d_vocab + at for at, each in enumerate(spellings))


def turn_parts(
    tokenizer: Tokenizer, message: str, symbol: str
) -> tuple[str, tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the text before an answer, the ids before the first input, and those between symbols.

    The latter are those up to an answer, up to an input, both, and between two inputs.
    """
    opening, asking, closing = chat_turns(tokenizer, message)
    before = f"{opening}{symbol}{asking}"
    start, ends = encoded_text(tokenizer, before + symbol), (asking, closing, f"{closing}{NEXT}{asking}", "\n")
    between = tuple(tuple(encoded_text(tokenizer, before + symbol + text)[len(start) :]) for text in ends)
    return before, tuple(encoded_text(tokenizer, opening)), between


def spelled_ids(tokenizer: Tokenizer, symbol: str, before: str) -> tuple[int, ...]:
    """Return the ids of a symbol in a turn, after a text, or else in a list, where a space stands before it."""
    if before:
        return joined_ids(tokenizer, before, symbol)
    single = single_tokens(tokenizer, [symbol]).get(symbol)
    return joined_ids(tokenizer, "a", f" {symbol}") if single is None else (single,)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BoundInContext(ExchangeableTask):
    """`InContext` in one tokenizer's ids."""

    name: ClassVar[str] = "in-context"
    question: ClassVar[str] = "Does {model} infer in context?"
    sentence: ClassVar[str] = "The task {task.task.name} in words: at each query the model predicts the answer."
    limits: ClassVar[str] = (
        "A model that fails here may not have understood the prompt: style=instruct explains it, turns=True makes each "
        "answer a turn of the chat."
    )
    task: WindTunnel
    n_ids: int
    prefix: tuple[int, ...]
    separator_ids: tuple[int, ...]  # at most one
    symbols: tuple[str, ...]
    symbol_ids: tuple[int, ...]  # beyond the vocabulary for a symbol of several tokens or spellings
    style: Style = "plain"
    turn_ids: tuple[tuple[int, ...], ...] = ()  # up to an answer, up to an input, both, and between two inputs
    spellings: Spellings = ()  # where not every symbol is one token
    widths: tuple[int, ...] = ()  # most tokens of a symbol at position 0, 1, …, then again; empty: those of the longest

    def __post_init__(self) -> None:
        ids, n = (*self.symbol_ids, *self.separator_ids), self.task.d_vocab
        if len(self.symbol_ids) != n or len({*ids}) < len(ids):
            raise InvalidArgument(
                f"{self.task} needs {n} distinct symbols, and a separator that is not one of them; got the ids {ids}."
            )

    def __repr__(self) -> str:
        style = "" if self.style == "plain" else f", {'turns of' if self.turn_ids else 'as'} a chat"
        return f"{self.task} in context{style}{', explained' if self.style == 'instruct' else ''}"

    @property
    def d_vocab(self) -> int:
        return self.n_ids

    @property
    def n_pos(self) -> int:
        return self._size(self._pieces(self.task.sample(1, seed=0)))

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self.rendered(self.task.draw(n, generator))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        original, donor = self.task.draw_pair(n, generator)
        return self.rendered(original), self.rendered(donor)

    def rendered(self, trials: Trials) -> Trials:
        """Render sequences of the wind tunnel in symbols. Inserted tokens are neither scored nor evidence."""
        pieces, table, symbols = self._pieces(trials), self._table.to(trials.tokens.device), trials.tokens
        used = {*self.prefix, *self.separator_ids, *(i for each in self.spellings for i in each[0])}
        filler = next(i for i in range(self.n_ids + 1) if i not in used) if self.spellings else 0
        places, asked = self._places(symbols, pieces, trials.scored)
        n_pos, start = self._size(pieces), places + 1 - self._lengths(symbols)
        tokens = symbols.new_full((len(trials), n_pos + table.shape[1]), filler)  # room for what fills up the last one
        for at, piece in enumerate(pieces):  # what fills up a short symbol is overwritten by what follows
            if at:
                written = table[symbols[:, at - 1]]
                place = start[:, at - 1, None] + torch.arange(table.shape[1], device=start.device)
                tokens.scatter_(1, place, torch.where(written < 0, filler, written))
            if piece:
                after = places[:, at - 1, None] + 1 if at else torch.zeros_like(places[:, :1])
                place = after + torch.arange(len(piece), device=start.device)
                tokens.scatter_(1, place, torch.tensor(piece, device=start.device).expand_as(place))

        def spread(values: Tensor, fill: float | bool, axis: int) -> Tensor:
            """Move the position axis to the rendered positions: of keys to symbols, of the rest to queries."""
            index = _along(values, places if axis == 2 else asked, axis)
            shape = (*values.shape[:axis], n_pos, *values.shape[axis + 1 :])
            return values.new_full(shape, fill).scatter(axis, index, values)

        ids = torch.tensor(self.symbol_ids, device=tokens.device)
        carried = _carried(trials, tokens[:, :n_pos], lambda own: ids[own], spread)
        if not self.spellings:
            return carried
        answers = tuple(self.spellings[i] for i in trials.answers.tolist())
        answers = () if all(map(_is_token, answers)) else answers
        return replace(carried, spellings=answers, token_sets={})  # sets are of ids whose keys are compared

    def unrendered(self, trials: Trials) -> Trials:
        """Return the wind tunnel's own sequences: the inverse of `rendered`."""
        bare, device = self.task.sample(1, seed=0, device=trials.tokens.device), trials.tokens.device
        pieces, table, n = self._pieces(bare), self._table.to(device), len(trials)
        at, symbols = torch.zeros(n, 1, dtype=torch.int64, device=device), bare.tokens.repeat(n, 1)
        window, last = torch.arange(table.shape[1], device=device), trials.tokens.shape[1] - 1
        for step, piece in enumerate(pieces[:-1]):
            at = at + len(piece)
            read = trials.tokens.gather(1, (at + window).clamp_max(last))
            symbols[:, step] = ((read[:, None] == table) | (table < 0)).all(-1).long().argmax(-1)
            at = at + self._lengths(symbols[:, step, None])
        places, asked = self._places(symbols, pieces, bare.scored.expand(n, -1))
        known, order = torch.tensor(self.symbol_ids, device=device).sort()

        def gathered(values: Tensor, _: float | bool, axis: int) -> Tensor:
            return values.gather(axis, _along(values, places if axis == 2 else asked, axis))

        def indices(ids: Tensor) -> Tensor:
            return order[torch.searchsorted(known, ids.contiguous()).clamp_max(len(known) - 1)]

        return replace(_carried(trials, symbols, indices, gathered), spellings=())

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
        return token_names(names, self.n_ids + len(self.spellings))

    @property
    def _table(self) -> Int64[Tensor, "symbol token"]:
        """Return the ids of each symbol as it is written, filled up with −1."""
        written = [torch.tensor(each[0]) for each in self.spellings or [[[i]] for i in self.symbol_ids]]
        return torch.nn.utils.rnn.pad_sequence(written, batch_first=True, padding_value=-1)

    def _lengths(self, symbols: Int64[Tensor, "batch pos"]) -> Int64[Tensor, "batch pos"]:
        return (self._table >= 0).sum(dim=1).to(symbols.device)[symbols]

    def _pieces(self, trials: Trials) -> list[tuple[int, ...]]:
        """Return what is inserted before each position and after the last; raise `InvalidArgument` if it varies."""
        is_scored, n_pos = trials.scored[0].tolist(), trials.tokens.shape[1]
        if not (self.separator_ids or self.turn_ids):
            return [self.prefix, *[()] * n_pos]
        is_adjacent = bool(self.separator_ids) and any(map(min, is_scored, is_scored[1:]))
        if is_adjacent or bool((trials.scored != trials.scored[:1]).any()):
            raise InvalidArgument(
                f"{self.task.name} has queries at adjacent positions, or at positions that vary over sequences: a "
                f"separator would stand in place of an answer. Leave separator out."
            )
        if self.separator_ids:
            return [self.prefix, *(self.separator_ids if own else () for own in is_scored[1:]), ()]
        follows = trials.scored[:, :-1] & (trials.labels[:, :-1] != NO_LABEL)
        if bool((follows & (trials.labels[:, :-1] != trials.tokens[:, 1:])).any()):
            raise InvalidArgument(
                f"{self.task.name} does not show its answers, so that they are no turns: leave turns out."
            )
        asking, closing, both, line = self.turn_ids
        pieces = [self.prefix]
        for asked, answered in zip(is_scored, [False, *is_scored], strict=False):
            pieces.append((both if answered else asking) if asked else (closing if answered else line))
        return pieces if is_scored[-1] else [*pieces[:-1], ()]

    def _size(self, pieces: Sequence[Sequence[int]]) -> int:
        """Return the tokens of the longest sequence with these pieces."""
        widths = self.widths or (self._table.shape[1],)
        return sum(map(len, pieces)) + sum(widths[at % len(widths)] for at in range(len(pieces) - 1))

    def _places(
        self, symbols: Int64[Tensor, "batch pos"], pieces: Sequence[Sequence[int]], scored: Bool[Tensor, "batch pos"]
    ) -> tuple[Int64[Tensor, "batch pos"], Int64[Tensor, "batch pos"]]:
        """Return where each symbol ends, and where it is queried: there, or at the end of the user's turn."""
        inserted = torch.tensor([len(piece) for piece in pieces], device=symbols.device)
        places = (inserted[:-1] + self._lengths(symbols)).cumsum(dim=1) - 1
        return places, places + inserted[1:] * scored if self.turn_ids else places


def _along(values: Tensor, places: Int64[Tensor, "batch pos"], axis: int) -> Tensor:
    """Return the places of each sequence as an index along one axis of the values."""
    shape = [1] * values.ndim
    shape[0], shape[axis] = places.shape
    return places.reshape(shape).expand(*values.shape[:axis], -1, *values.shape[axis + 1 :])


def _carried(
    trials: Trials,
    tokens: Int64[Tensor, "batch pos"],
    ids: Callable[[Tensor], Tensor],
    spread: Callable[[Tensor, float | bool, int], Tensor],
) -> Trials:
    """Return the sequences with these tokens, in other ids, at other positions, which `spread` gives along one axis."""
    labels = spread(trials.labels, NO_LABEL, 1)
    is_labeled = labels != NO_LABEL
    return replace(
        trials,
        tokens=tokens,
        scored=spread(trials.scored, False, 1),
        answers=ids(trials.answers),
        predictive=spread(trials.predictive, torch.nan, 1),
        belief=spread(trials.belief, torch.nan, 1),
        statistics={name: spread(values, torch.nan, 1) for name, values in trials.statistics.items()},
        labels=torch.where(is_labeled, ids(torch.where(is_labeled, labels, trials.answers[0])), NO_LABEL),
        token_sets={name: ids(members) for name, members in trials.token_sets.items()},
        relations={name: spread(related, False, 2) for name, related in trials.relations.items()},
    )
