"""Base classes of tasks: a wind tunnel draws its own sequences and knows its exact posterior.

A text task becomes a wind tunnel when it is bound to a tokenizer.
"""

import inspect
import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass, replace
from enum import IntEnum, unique
from importlib.resources import files
from typing import Any, ClassVar, TypeVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from bayesgeom.core import (
    NO_LABEL,
    InvalidArgument,
    Relations,
    Tokenizer,
    Trials,
    UnknownName,
    check_argument,
    unknown_name,
)
from bayesgeom.core.errors import check_fields, check_known, integer_of, make_plain, quoted
from bayesgeom.core.plugins import discover, field_names, find_plugin, is_foreign
from bayesgeom.core.run import checked_trials
from bayesgeom.core.tokenizer import chat_prompts, check_distinct, check_ids, encoded_text, prompt_ids

BLOCK = 128  # sequences drawn and run at a time
BLOCK_TOKENS = 2**20  # fewer sequences if they are very long, so that memory does not grow with their length
MOST_POSITIONS = 10**8  # of a sequence; more are a typing error
MOST_BITS = 63  # of an integer: torch's largest
_MOST_CONCENTRATION = 1e6  # there log Γ has an error of 1e-9, and a sequence tells next to nothing
MAX_INPUTS = 64  # ids of prompts whose keys are compared: the most frequent ones, which recur often enough
_EXAMPLE, _ANSWERS = 12, 2  # tokens and answers of the example on pages
_COMPARED = 16  # sequences of two draws that are compared


def block_size(n_pos: int) -> int:
    """Return the number of sequences of this length that are drawn and run together.

    Example:
        >>> block_size(39), block_size(2**20)
        (128, 1)
    """
    return max(1, min(BLOCK, BLOCK_TOKENS // n_pos))


_LEAST_VARIANCE = 1e-9  # of a belief: of a certain one the log would be infinite
FORGETTING = 0.8  # weight of a piece of evidence relative to the next one, for a baseline that forgets
FUNCTIONS = "functions"  # the parameter of a task that was made of two functions
_WRAPPED = "task"  # the field in which a text task holds the task that it renders
T = TypeVar("T")


class WindTunnel(ABC):
    """A task whose exact posterior is known at every scored position.

    Concrete tasks are frozen dataclasses: their fields are their parameters, and equal fields mean equal tasks.
    Ids 0 … `d_vocab` − 1 are the input tokens and the answers, so any causal language model can be used on any task.
    A task without a known posterior, such as plain text, sets `has_posterior` to False.
    Pages open with `question`, in which {model} is the model's name, and with `sentence`, which says what a sequence is
    and what is predicted; {task.n_values} in it is the field n_values. `limits` says what an answer does not show.
    `presets` are further names on the command line, each with the parameters that it stands for.
    The class is abstract and has no arguments of its own: those of a concrete task are its fields.

    Example:
        >>> from bayesgeom import tasks
        >>> task = tasks.StickyMarkov(n_states=5, length=7)
        >>> isinstance(task, tasks.WindTunnel), task.d_vocab, task.n_pos
        (True, 5, 7)
    """

    name: ClassVar[str]
    question: ClassVar[str] = "Does {model} infer?"
    sentence: ClassVar[str] = ""
    limits: ClassVar[str] = ""
    has_posterior: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @property
    @abstractmethod
    def d_vocab(self) -> int:
        """Return the number of ids, answers included."""

    @property
    @abstractmethod
    def n_pos(self) -> int:
        """Return the number of tokens in a sequence."""

    @abstractmethod
    def draw(self, n: int, generator: torch.Generator) -> Trials:
        """Draw `n` sequences on the generator's device. Callers use `sample`.

        Args:
            n: Number of sequences.
            generator: Source of the random numbers.
        """

    @abstractmethod
    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw `n` pairs that share the given inputs (keys, matrices) and differ in the latent.

        Callers use `sample_pair`.

        Args:
            n: Number of pairs.
            generator: Source of the random numbers.
        """

    @abstractmethod
    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return the predictions of baselines without the claimed computation, at the scored positions, by name.

        `uniform` and `prior` read no evidence: the answer of a diagnosis is compared with them. `prior` reads what is
        given and the position, as the exact observer does before any evidence. A task with a header needs it. Names
        that begin with `window_` are of observers of the last symbols. Others are shortcuts, which read evidence in
        part: the answer names those that do as well as the model.

        Args:
            trials: Sequences of this task.
        """

    @abstractmethod
    def token_labels(self) -> Sequence[str]:
        """Return a short label for each id, for tables and plots."""

    @final
    def sample(self, n: int, *, seed: int, device: str | torch.device = "cpu") -> Trials:
        """Draw `n` sequences. The same seed on the same kind of device gives the same sequences.

        Args:
            n: Number of sequences.
            seed: Seed of the draw.
            device: Where the tensors are placed.

        Raises:
            InvalidArgument: `n` is below 1, the sequences are too large, or `seed` is not a non-negative integer.
        """
        n = check_count(n)
        drawn = checked_trials(self._afforded(lambda: self.draw(n, _generator(device, seed))), task=self.name)
        if drawn.has_posterior != self.has_posterior:
            raise InvalidArgument(
                f"task {self.name!r} has has_posterior = {self.has_posterior}, but its sequences have "
                f"{len(drawn.answers)} answers: a posterior needs at least one."
            )
        return drawn

    @final
    def sample_pair(self, n: int, *, seed: int, device: str | torch.device = "cpu") -> tuple[Trials, Trials]:
        """Draw `n` originals and their donors, which share the query and differ in the latent.

        Args:
            n: Number of pairs.
            seed: Seed of the draw.
            device: Where the tensors are placed.

        Raises:
            InvalidArgument: As in `sample`.
        """
        n = check_count(n)
        original, donor = self._afforded(lambda: self.draw_pair(n, _generator(device, seed)))
        return checked_trials(original, task=self.name), checked_trials(donor, task=self.name)

    @final
    def _afforded(self, draw: Callable[[], T]) -> T:
        """Return what is drawn; sequences that are too large raise `InvalidArgument`."""
        if self.n_pos > MOST_POSITIONS:
            raise InvalidArgument(f"task {self.name!r} has {self.n_pos:,} positions, too many to draw: lower a size.")
        try:
            return draw()
        except NotImplementedError:  # it draws no pairs
            raise
        except (RuntimeError, MemoryError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidArgument(
                f"task {self.name!r} cannot be drawn ({reason}). If it is too large, lower n or a size."
            ) from error

    @final
    def stream(self, n: int, *, seed: int, device: str | torch.device = "cpu") -> Iterator[Trials]:
        """Draw `n` sequences in blocks, one block at a time, so that memory does not grow with n.

        Blocks have a fixed size and their own seeds: a longer stream begins with the sequences of a shorter one.

        Args:
            n: Number of sequences.
            seed: Seed of the draw.
            device: Where the tensors are placed.

        Raises:
            InvalidArgument: `n` is below 1; raised before anything is drawn.
        """
        n = check_count(n)
        if isinstance(self, FiniteTask):  # each sequence occurs once, in one of the blocks
            whole = self.sample(n, seed=derived_seed(seed, 0), device=device)
            return (whole.rows(slice(start, start + BLOCK)) for start in range(0, n, BLOCK))
        size = block_size(self.n_pos)
        return (
            self.sample(size, seed=derived_seed(seed, block), device=device).rows(slice(0, n - start))
            for block, start in enumerate(range(0, n, size))
        )

    @final
    def config(self) -> dict[str, Any]:
        """Return name and parameters in a form that JSON can store; `task_from_config` is the inverse.

        A field whose metadata has `left_out` is stored only where it has another value than its default.
        """
        assert is_dataclass(self) and not isinstance(self, type), "a task is a dataclass"
        stored = {
            own.name: getattr(self, own.name)
            for own in fields(self)
            if "left_out" not in own.metadata or getattr(self, own.name) != own.default
        }
        inner = {name: value.config() for name, value in stored.items() if isinstance(value, WindTunnel)}
        plain = {name: value for name, value in asdict(self).items() if name in stored and not callable(stored[name])}
        return {"name": self.name, **plain, **inner}

    @final
    def in_words(self, trials: Trials | None = None, model: Sequence[float] = ()) -> dict[str, Any]:
        """Return what pages say of the task, for JSON.

        Args:
            trials: Sequences of this task; the example is the first one. None draws one.
            model: Answer probabilities of a model at the last scored position of the example, if it was run.

        Returns:
            `question`, `sentence` and `limits`, if any; with a posterior also `example`, labels of the last tokens
            up to the last scored position, `is_cut`, whether tokens come before these, `names`, the labels of all
            answers, and `answers`, the exact probability and that of the model, if known, of the most probable ones.
        """
        words: dict[str, Any] = {"question": self.question, "sentence": self.sentence.format(task=self)}
        words |= {"limits": self.limits} if self.limits else {}
        if not self.has_posterior:
            return words
        trials, labels = self.sample(1, seed=0) if trials is None else trials, self.token_labels()
        last = int(trials.scored[0].nonzero()[-1])
        tokens = trials.tokens[0, max(0, last + 1 - _EXAMPLE) : last + 1].tolist()
        exact = trials.predictive[0, last].tolist()
        shares = [tuple(round(share, 4) for share in pair) for pair in zip(exact, *[model] * bool(model), strict=True)]
        names = tuple(labels[answer] for answer in trials.answers.tolist())
        ranked = sorted(zip(names, shares, strict=True), key=lambda answer: -max(answer[1]))
        return {
            **words,
            "example": tuple(labels[token] for token in tokens),
            "is_cut": last >= _EXAMPLE,
            "names": names,
            "answers": dict(ranked[:_ANSWERS]),
        }


def check_draws(task: WindTunnel) -> None:
    """Check that a task of another package draws from the generator that it receives, and from nothing else.

    Raises:
        InvalidArgument: The same seed gives different sequences, or another seed gives the same ones.
    """
    for inner in vars(task).values():
        if isinstance(inner, WindTunnel):
            check_draws(inner)
    if not is_foreign(type(task)) or isinstance(task, FiniteTask):
        return
    first, same, other = (task.draw(_COMPARED, torch.Generator().manual_seed(seed)).tokens for seed in (0, 0, 1))
    if not torch.equal(first, same):
        raise InvalidArgument(f"task {task.name!r} draws other sequences from the same seed: use the given generator.")
    if torch.equal(first, other) and not bool((first == first[0]).all()):  # a task may have a single sequence
        raise InvalidArgument(f"task {task.name!r} draws the same sequences from every seed: use the given generator.")


class FiniteTask(WindTunnel):
    """A fixed set of prompts in ids, which may differ in length, drawn without replacement: the first n of an order."""

    n_ids: int
    prompts: tuple[tuple[int, ...], ...]

    @abstractmethod
    def trials(self, index: Int64[Tensor, " row"]) -> Trials:
        """Return the sequences of these prompts, by their place in the list.

        Args:
            index: Places in the list.
        """

    @property
    @final
    def d_vocab(self) -> int:
        return self.n_ids

    @property
    @final
    def n_pos(self) -> int:
        return max(map(len, self.prompts))

    @property
    @final
    def n_sequences(self) -> int:
        """Return the number of available sequences."""
        return len(self.prompts)

    @final
    def in_order(self, *, device: str | torch.device = "cpu") -> Trials:
        """Return all prompts in the order in which they are listed."""
        return self.trials(torch.arange(self.n_sequences, device=device))

    @final
    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self.trials(self.order_for(n, generator)[:n])

    @final
    def order_for(self, n: int, generator: torch.Generator) -> Int64[Tensor, " row"]:
        """Return a random order of all prompts, of which `n` are wanted.

        Args:
            n: Number of prompts.
            generator: Source of the random numbers.

        Raises:
            InvalidArgument: There are fewer.
        """
        if n > self.n_sequences:
            raise InvalidArgument(
                f"{n} prompts are requested and there are {self.n_sequences}: use n ≤ {self.n_sequences}."
            )
        return torch.randperm(self.n_sequences, generator=generator, device=generator.device)


class LabeledTask(FiniteTask):
    """Sequences with labels of a user in place of a posterior. What is fitted is scored on other sequences."""

    @abstractmethod
    def halves(self) -> "tuple[LabeledTask, LabeledTask]":
        """Return the sequences that fit, and those that score."""


def at_most(task: WindTunnel, n: int) -> int:
    """Return `n`, or the number of sequences of a task that has fewer."""
    return min(n, task.n_sequences) if isinstance(task, FiniteTask) else n


def fit_task(task: WindTunnel) -> WindTunnel:
    """Return the sequences to fit on."""
    return task.halves()[0] if isinstance(task, LabeledTask) else task


def score_task(task: WindTunnel) -> WindTunnel:
    """Return the sequences to score on."""
    return task.halves()[1] if isinstance(task, LabeledTask) else task


class SymmetricTask(WindTunnel):
    """A task whose answers have arbitrary names: renaming them consistently does not change the problem."""

    @property
    @abstractmethod
    def n_names(self) -> int:
        """Return the number of answers to rename."""

    @abstractmethod
    def relabeled(self, trials: Trials, names: Int64[Tensor, "batch name"]) -> Trials:
        """Return the same problems with answer a of sequence b renamed to `names[b, a]` everywhere.

        Args:
            trials: Sequences of this task.
            names: New name of each answer, by sequence.
        """


class EvidenceTask(WindTunnel):
    """A task whose evidence can be drawn again, in part, under the same given parameters: `evidence_response` needs it.

    Pieces of evidence are what the exact answer at the last scored position depends on, except for what is given: the
    keys of a bijection, the matrices of a hidden Markov model, the words of a prompt. They are numbered from the oldest
    to the newest; the newest has age 1.
    """

    @property
    @abstractmethod
    def n_evidence(self) -> int:
        """Return the number of pieces of evidence up to the last scored position; 0 if none can be replaced."""

    @abstractmethod
    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw some pieces of evidence again, from their distribution given the other pieces and what is given.

        The labels are drawn again, too. The distribution is exact: an independent draw would give impossible sequences
        in a bijection, and unlikely ones where the hidden state moves slowly.

        Args:
            trials: Sequences of this task.
            keep: Which pieces stay, from the oldest to the newest.
            generator: Source of the random numbers, on the device of the sequences.
        """


class SymbolTask(EvidenceTask):
    """A task of `length` symbols, each predicted from those before it. Every symbol is evidence; nothing is given."""

    length: int
    statistics: ClassVar[Mapping[str, Callable[[Tensor], Tensor]]] = {}  # of the belief, computed from it

    @abstractmethod
    def observed(
        self, tokens: Int64[Tensor, "batch pos"]
    ) -> tuple[Float64[Tensor, "batch pos hypothesis"], Float64[Tensor, "batch pos symbol"]]:
        """Return the exact belief after each symbol, and the predictive of the next one.

        Args:
            tokens: Symbols, counted from 0.
        """

    @abstractmethod
    def related(self, tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Return the relations of these sequences, by name.

        Args:
            tokens: Symbols, counted from 0.
        """

    @abstractmethod
    def redrawn(
        self, tokens: Int64[Tensor, "batch pos"], keep: Bool[Tensor, " pos"], generator: torch.Generator
    ) -> Int64[Tensor, "batch pos_and_one"]:
        """Draw the symbols that are not kept, and the label, from their distribution given the kept ones.

        Args:
            tokens: Symbols, of which those that are kept are read.
            keep: Which symbols stay.
            generator: Source of the random numbers.
        """

    @property
    @final
    def n_pos(self) -> int:
        return self.length

    @property
    @final
    def n_evidence(self) -> int:
        return self.length

    @final
    def windowed(self, tokens: Int64[Tensor, "batch pos"], w: int) -> Float64[Tensor, "batch pos symbol"]:
        """Return the predictive of the exact observer of the last `w` symbols.

        Args:
            tokens: Symbols, counted from 0.
            w: Number of symbols, at least 1.
        """
        early = self.observed(tokens[:, :w])[1]
        windows = tokens.unfold(1, w, 1)[:, 1:]
        late = self.observed(windows.flatten(0, 1))[1][:, -1].unflatten(0, windows.shape[:2])
        return torch.cat([early, late], dim=1)

    @final
    def trials(self, symbols: Int64[Tensor, "batch pos_and_one"]) -> Trials:
        """Build sequences from symbols, counted from 0; the last symbol is the label and not shown.

        Args:
            symbols: Symbols of each sequence, and its label.
        """
        belief, predictive = self.observed(tokens := symbols[:, :-1].contiguous())
        return next_symbol_trials(
            tokens,
            symbols[:, -1],
            self.d_vocab,
            predictive=predictive,
            belief=belief,
            related=self.related,
            statistics={name: statistic(belief) for name, statistic in self.statistics.items()},
        )

    @final
    def draw(self, n: int, generator: torch.Generator) -> Trials:
        unread = torch.zeros(n, self.length, dtype=torch.int64, device=generator.device)
        return self.trials(self.redrawn(unread, torch.zeros_like(unread[0], dtype=torch.bool), generator))

    @final
    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs of independent sequences; nothing is given."""
        return self.draw(n, generator), self.draw(n, generator)

    @final
    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        return self.trials(self.redrawn(trials.tokens, keep, generator))


class ExchangeableTask(EvidenceTask):
    """A task whose evidence is exchangeable: its order does not change the exact answer. `audit` needs it.

    The exact answers are then a martingale: their mean over the next piece of evidence is what they are without it. A
    task of queries and answers states which query is asked before and after that piece.
    """

    @property
    @abstractmethod
    def is_exchangeable(self) -> bool:
        """Return whether the evidence is exchangeable; a task in words follows the task that it renders."""

    @abstractmethod
    def reordered(self, trials: Trials, order: Int64[Tensor, "batch evidence"]) -> Trials:
        """Return the sequences with their evidence in another order, and the same last query.

        Args:
            trials: Sequences of this task.
            order: A permutation of the pieces of each sequence: piece `order[b, i]` becomes the i-th.
        """

    @property
    @abstractmethod
    def n_continued(self) -> int:
        """Return the number of scored positions that `continued` accepts: 0 … this number − 1."""

    @abstractmethod
    def continued(self, trials: Trials, step: int) -> tuple[Trials, Int64[Tensor, "batch row"]]:
        """Return the sequences up to a scored position, continued by one more piece of evidence in every way.

        Each sequence gives n_answers + 2 rows, one after another. The first asks for the next piece of evidence. The
        second asks, in its place, the query that follows it. The others have one of the answers as the piece, in the
        order of the answers, and then that query.

        Args:
            trials: Sequences of this task.
            step: Index of the scored position.

        Returns:
            The rows, and which scored position of each row is read.
        """

    @abstractmethod
    def discounted(self, trials: Trials, discount: float) -> Float64[Tensor, "batch query_pos answer"] | None:
        """Return the predictive of a filter that forgets: log-likelihoods are weighted by discount^age.

        None where the likelihood of a single piece is not known, as in a task made of functions.

        The newest piece before a query has age 0, and the prior is not discounted; 1 is the exact observer. Evidence
        that rules hypotheses out does so at any weight.

        Args:
            trials: Sequences of this task.
            discount: Weight of a piece relative to the next one, positive.
        """


class TextTask(ABC):
    """A task in words. Its ids depend on the tokenizer, so it becomes a wind tunnel when bound to one.

    Concrete text tasks are frozen dataclasses. The task that `bind` returns holds ids and no tokenizer. Its config
    rebuilds it, so a report can be reproduced from its provenance. The class is abstract and has no arguments of its
    own: those of a concrete task are its fields.

    Example:
        >>> from bayesgeom import tasks
        >>> isinstance(tasks.Prompts(texts=["The sky is"]), tasks.TextTask)
        True
    """

    name: ClassVar[str]

    @abstractmethod
    def bind(self, tokenizer: Tokenizer, *, d_vocab: int) -> WindTunnel:
        """Return the task in this tokenizer's ids.

        Args:
            tokenizer: The model's tokenizer.
            d_vocab: Number of ids of the model, which may exceed the tokenizer's.

        Raises:
            InvalidArgument: The tokenizer has too few single-token words.
            TaskMismatch: The tokenizer gives ids that the model does not have.
        """


def task_from_config(config: Mapping[str, Any]) -> WindTunnel:
    """Rebuild the task that `WindTunnel.config` described.

    Raises:
        UnknownName: The task does not exist.
        InvalidArgument: The task does not take these parameters, or was made of two functions.
    """
    if FUNCTIONS in config:
        raise InvalidArgument(
            f"task {config.get('name')!r} was made of two functions (bayesgeom.tasks.from_functions), which no file "
            f"and no other process has: pass the task itself, to a function that runs the model here."
        )
    parameters = {key: _revived(value) for key, value in config.items()}
    name = str(parameters.pop("name", None))
    # They need texts, so that no command names them; an abstract one may have no name.
    labeled = {kind.name: kind for kind in LabeledTask.__subclasses__() if not inspect.isabstract(kind)}
    # mypy forbids an abstract class as a value, but discovery needs one.
    kind = labeled.get(name) or find_plugin("bayesgeom.tasks", WindTunnel, name)  # type: ignore[type-abstract]
    return _built(kind, name, parameters)


def _revived(value: Any) -> Any:
    """Restore a parameter from JSON: a list becomes a tuple, a mapping the inner task that it describes."""
    if isinstance(value, list):
        return tuple(map(_revived, value))
    return task_from_config(value) if isinstance(value, Mapping) else value


def _built(kind: type[T], name: str, parameters: Mapping[str, Any]) -> T:
    """Build a task; parameters that its class does not take raise `InvalidArgument`."""
    check_known(f"task {name!r}", parameters, field_names(kind))
    _check_types(kind, parameters, of=f"task {name!r}: ")
    try:
        return kind(**parameters)
    except TypeError as error:
        raise InvalidArgument(f"task {name!r} cannot be built from {dict(parameters)}: {error}.") from error


def check_parameters(task: WindTunnel | TextTask) -> None:
    """Check the types of a task's parameters, at the start of its constructor; a saved task holds Python's numbers.

    Raises:
        InvalidArgument: A value has another type than its field.
    """
    _check_types(type(task), vars(task), of=f"task {task.name!r}: ")
    make_plain(task)


def _check_types(kind: type, parameters: Mapping[str, Any], *, of: str) -> None:
    """Raise `InvalidArgument` for a value of another type than its field's: 2.5 pairs, repeats="maybe", ks=3."""
    for name, value in parameters.items():
        if isinstance(value, int) and value.bit_length() > 63:
            raise InvalidArgument(f"{of}{name} must be an integer below 2^63, got one of {value.bit_length()} bits.")
    check_fields(kind, parameters, of=of)


def check_count(n: Any) -> int:
    """Return a number of sequences as Python's integer; raise `InvalidArgument` unless it is a positive integer."""
    count = integer_of(n)
    if count is None or not 0 < count < 2**MOST_BITS:
        raise InvalidArgument(f"n, the number of sequences to draw, must be a positive integer, got {quoted(n)}.")
    return count


def task_from_text(text: str, *, trained: WindTunnel | None = None) -> WindTunnel | TextTask:
    """Build the task that a text such as NAME or NAME:key=value,key=value describes, as on the command line.

    A text task that renders another task (`in-context`) is named after both: `bijection-in-context`. The parameters of
    both are listed together. Integers or words joined by + are a tuple: `ks=1+2+4`, `ks=8+`, `symbols=yes+no`. If NAME
    is the name of `trained`, the checkpoint's own task, other parameters are those of `trained`; otherwise they take
    their defaults.

    Raises:
        UnknownName: The task does not exist.
        InvalidArgument: The text is not of this form, or the task does not take these parameters.
    """
    name, texts = _parsed(text)
    kind, wrapper = _kind_of(name)
    kinds: tuple[Any, ...] = (kind, wrapper) if wrapper else (kind,)
    types = {own.name: own.type for each in kinds for own in fields(each)}
    parameters = {
        key: tuple(value.removesuffix("+").split("+")) if types.get(key) == tuple[str, ...] else literal(value)
        for key, value in texts.items()
    }
    if issubclass(kind, WindTunnel):
        named = name if wrapper is None else name.removesuffix(f"-{wrapper.name}")
        parameters = {**kind.presets.get(named, {}), **parameters}
    if wrapper is None:
        kept = {key: vars(trained)[key] for key in field_names(kind)} if type(trained) is kind else {}
        return _built(kind, name, {**kept, **parameters})
    outer = field_names(wrapper) - {_WRAPPED}
    check_known(f"task {name!r}", parameters, outer | field_names(kind))
    inner = {key: value for key, value in parameters.items() if key not in outer}
    wrapping = {key: value for key, value in parameters.items() if key in outer}
    return _built(wrapper, name, wrapping | {_WRAPPED: _built(kind, kind.name, inner)})


def check_text(text: str) -> set[str]:
    """Check the names in the text of a task, which needs no model, and return the parameters that the task has.

    Raises:
        UnknownName: The task does not exist.
        InvalidArgument: The text is not of the form of a task, or the task has no such parameter.
    """
    name, parameters = _parsed(text)
    kind, wrapper = _kind_of(name)
    known = field_names(kind) | (set() if wrapper is None else field_names(wrapper) - {_WRAPPED})
    check_known(f"task {name!r}", parameters, known)
    return known


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    name, _, listed = text.partition(":")
    parameters: dict[str, str] = {}
    for pair in filter(None, listed.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidArgument(f"{pair!r} in {text!r} is not key=value; write a task as NAME:key=value,key=value.")
        parameters[key.strip()] = value.strip()
    return name.strip(), parameters


_Kinds = dict[str, tuple[type[WindTunnel | TextTask], type[TextTask] | None]]


def task_kinds() -> _Kinds:
    """Return, by task name, the class of the task and the class that renders it in words, if any."""
    # mypy forbids an abstract class as a value, but discovery needs one.
    texts = discover("bayesgeom.tasks", TextTask)  # type: ignore[type-abstract]
    tunnels = discover("bayesgeom.tasks", WindTunnel)  # type: ignore[type-abstract]
    tunnels |= {name: kind for kind in tunnels.values() for name in kind.presets}
    wrappers = {name: kind for name, kind in texts.items() if _WRAPPED in field_names(kind)}
    both: dict[str, type[WindTunnel | TextTask]] = {**tunnels, **texts}
    plain: _Kinds = {name: (kind, None) for name, kind in both.items() if name not in wrappers}
    inner = [(tunnel, wrapper) for wrapper in wrappers for tunnel in tunnels if tunnel not in texts]
    return {**plain, **{f"{name}-{wrapper}": (tunnels[name], wrappers[wrapper]) for name, wrapper in inner}}


def _kind_of(name: str) -> tuple[type[WindTunnel | TextTask], type[TextTask] | None]:
    """Return the class of a task, and the class that renders it in words, if any."""
    if name not in (known := task_kinds()):
        missing = unknown_name("task", name, known)
        is_sentence = len(name.split()) > 1
        raise UnknownName(f"{missing} To run on texts, pass a list of them.") if is_sentence else missing
    return known[name]


def literal(text: str) -> bool | int | float | str | tuple[int, ...]:
    """Parse a value from the command line."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "+" in text and all(part.isdecimal() for part in text.removesuffix("+").split("+")):
        return tuple(map(int, text.removesuffix("+").split("+")))
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def random_order(n: int, size: int, generator: torch.Generator) -> Int64[Tensor, "batch place"]:
    """Draw `n` random orders of 0 … size − 1, in float32 whatever torch's default dtype is."""
    return torch.rand(n, size, generator=generator, dtype=torch.float32, device=generator.device).argsort(dim=1)


def random_completion(
    value_of_key: Int64[Tensor, "batch key"], n_values: int, generator: torch.Generator
) -> Int64[Tensor, "batch key"]:
    """Complete one-to-one maps at random: keys with the value −1 get distinct values that no other key has."""
    is_free_key, device = value_of_key < 0, generator.device
    is_used = torch.zeros(len(value_of_key), n_values + 1, dtype=torch.bool, device=device)
    is_used = is_used.scatter_(1, value_of_key.remainder(n_values + 1), True)[:, :n_values]  # −1 is the last
    order = torch.rand(is_used.shape, generator=generator, dtype=torch.float64, device=device) + is_used.double()
    free_values = order.argsort(dim=1)  # those that are used come last
    place = (is_free_key.long().cumsum(dim=1) - 1).clamp_min(0)
    return torch.where(is_free_key, free_values.gather(1, place), value_of_key)


def trials_at(
    at: slice | Int64[Tensor, " place"],
    tokens: Int64[Tensor, "batch pos"],
    *,
    predictive: Float64[Tensor, "batch place answer"],
    belief: Float64[Tensor, "batch place hypothesis"] | None = None,
    statistics: Mapping[str, Float64[Tensor, "batch place"]] | None = None,
    labels: Int64[Tensor, "batch place"],
    **others: Any,
) -> Trials:
    """Build sequences that are scored at positions `at`, from the values there; `belief` defaults to `predictive`."""

    def spread(values: Shaped[Tensor, "batch place *rest"], other: float) -> Shaped[Tensor, "batch pos *rest"]:
        full = values.new_full((*tokens.shape, *values.shape[2:]), other)
        full[:, at] = values
        return full

    exact = spread(predictive, torch.nan)
    return Trials(
        tokens=tokens,
        scored=spread(torch.ones_like(labels, dtype=torch.bool), other=False),
        predictive=exact,
        belief=exact if belief is None else spread(belief, torch.nan),
        labels=spread(labels, NO_LABEL),
        statistics={name: spread(values, torch.nan) for name, values in (statistics or {}).items()},
        **others,
    )


def next_symbol_trials(
    tokens: Int64[Tensor, "batch pos"],
    last_label: Int64[Tensor, " batch"],
    d_vocab: int,
    *,
    predictive: Float64[Tensor, "batch pos symbol"],
    belief: Float64[Tensor, "batch pos hypothesis"],
    related: Callable[[Tensor], Mapping[str, Bool[Tensor, "batch query_pos key_pos"]]],
    **others: Any,
) -> Trials:
    """Build sequences in which each symbol predicts the next one; the label of the last symbol is not shown."""
    ids = torch.arange(d_vocab, device=tokens.device)
    return Trials(
        tokens=tokens,
        scored=torch.ones_like(tokens, dtype=torch.bool),
        answers=ids,
        predictive=predictive,
        belief=belief,
        labels=torch.cat([tokens[:, 1:], last_label[:, None]], dim=1),
        token_sets={"inputs": ids},
        relations=Relations(draw=related, of=tokens),
        **others,
    )


def moments(
    belief: Float64[Tensor, "*batch hypothesis"], values: Float64[Tensor, "hypothesis coordinate"]
) -> dict[str, Float64[Tensor, "*batch"]]:
    """Return mean and log variance of each coordinate of the hypotheses under a belief, by name.

    The natural log of a variance is at least that of 1e-9. Several coordinates are numbered from 1.

    Example:
        >>> belief, values = torch.tensor([0.5, 0.5]).double(), torch.tensor([[1.0], [3.0]]).double()
        >>> {name: own.item() for name, own in moments(belief, values).items()}
        {'mean': 2.0, 'log_variance': 0.0}
    """
    mean = belief @ values
    variance = (belief @ values.square() - mean.square()).clamp_min(_LEAST_VARIANCE)
    numbers = [""] if values.shape[1] == 1 else [f"_{number}" for number in range(1, values.shape[1] + 1)]
    means = {f"mean{number}": mean[..., at] for at, number in enumerate(numbers)}
    return means | {f"log_variance{number}": variance[..., at].log() for at, number in enumerate(numbers)}


def discounted_sums(
    pieces: Float64[Tensor, "batch piece hypothesis"], discount: float
) -> Float64[Tensor, "batch piece hypothesis"]:
    """Return Σ pieces · discount^age up to each piece, which has age 0.

    Example:
        >>> discounted_sums(torch.ones(1, 3, 1, dtype=torch.float64), 0.5).flatten().tolist()
        [1.0, 1.5, 1.75]
    """
    sums = [pieces[:, 0]]
    for piece in pieces[:, 1:].unbind(dim=1):
        sums.append(discount * sums[-1] + piece)
    return torch.stack(sums, dim=1)


def steps_back(tokens: Shaped[Tensor, "batch pos"]) -> Int64[Tensor, "batch query_pos key_pos"]:
    """Return how many positions each key is before each query."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    return (place[:, None] - place[None, :]).expand(len(tokens), -1, -1)


def over_tokens(
    related: Bool[Tensor, "batch pair pair"], *, n_inputs: int = 1, of_inputs: bool
) -> Bool[Tensor, "batch query_pos key_pos"]:
    """Return a relation of pairs, of inputs and an output, as one to the tokens of either; the last output is cut."""
    output = related & (not of_inputs)
    return torch.stack([*[related & of_inputs] * n_inputs, output], dim=3).flatten(2)[:, :, :-1]


def scored_once(trials: Trials, query: Int64[Tensor, " batch"]) -> Trials:
    """Return the sequences with one scored position each, without relations and window observers.

    Args:
        trials: Sequences.
        query: Which of the scored positions of each sequence stays; −1 is the last one.
    """
    at = trials.scored_positions().gather(1, query.remainder(trials.n_scored)[:, None])[:, 0]
    scored = torch.zeros_like(trials.scored)
    scored[torch.arange(len(trials), device=scored.device), at] = True
    labels = torch.where(scored, trials.labels, NO_LABEL)
    return replace(trials, scored=scored, labels=labels, relations={}, observers=None)


@final
class DerivedSeed(int):
    """A seed that `derived_seed` made: its lowest 32 bits are as random as all of them."""


def check_concentration(alpha: float) -> None:
    """Check α of a Dirichlet or Beta prior.

    Raises:
        InvalidArgument: It is not positive, or so large that marginal likelihoods would be rounding.
    """
    if not 0 < alpha <= _MOST_CONCENTRATION:
        raise InvalidArgument(
            f"concentration must be a positive number, at most {_MOST_CONCENTRATION:,.0f}, got {alpha}."
        )


def checked_seed(seed: Any) -> int:
    """Return a seed as Python's integer; anything but an integer from 0 to 2^63 - 1 raises `InvalidArgument`."""
    integer = integer_of(seed)
    if integer is None or not 0 <= integer < 2**MOST_BITS:
        raise InvalidArgument(f"seed must be a non-negative integer below 2^{MOST_BITS}, got {quoted(seed)}.")
    return integer


def torch_seed(seed: Any) -> int:
    """Return the seed with which a generator of torch starts, so that any two seeds give different draws.

    On the CPU that generator uses the lowest 32 bits alone. Larger seeds of a user are therefore mixed first.

    Raises:
        InvalidArgument: `seed` is not a non-negative integer.
    """
    integer = checked_seed(seed)
    return integer if isinstance(integer, DerivedSeed) or integer < 2**32 else derived_seed(integer)


def _generator(device: str | torch.device, seed: int) -> torch.Generator:
    """Return torch's generator on a device."""
    check_argument("device", device, str | torch.device)
    return torch.Generator(device).manual_seed(torch_seed(seed))


@unique
class Branch(IntEnum):
    """The part of a measurement that a derived seed is for. All reports with one seed use the same sequences.

    Draws of a single report have their own branch, from 3 on, defined in the report's file.
    """

    TRIALS = 0
    UNTRAINED = 1
    RESAMPLING = 2


def derived_seed(seed: int, *path: int) -> int:
    """Return a seed for one part of a computation, independent of the seeds of other parts.

    Raises:
        InvalidArgument: `seed` is not a non-negative integer.
    """
    state = np.random.SeedSequence(checked_seed(seed), spawn_key=path).generate_state(1, np.uint64)
    return DerivedSeed(state[0] >> 1)


def text_ids(
    tokenizer: Tokenizer, texts: Sequence[str], short: str, *, bos: bool, chat: bool = False, last: int, d_vocab: int
) -> list[tuple[int, ...]]:
    """Return the ids of texts, with a beginning-of-sequence token if any, or as messages in the chat template.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        short: The error for a text of fewer than `last` tokens, with {last}, {text!r} and {n}, its own number.
        bos: Whether a text begins with that token.
        chat: Whether each is a message.
        last: Tokens at the end of each text that are scored.
        d_vocab: Number of ids of the model.

    Raises:
        InvalidArgument: A text has fewer tokens, or most texts have the ids of another one.
        TaskMismatch: The model lacks an id.
    """
    if chat:
        ids = chat_prompts(tokenizer, texts)
    else:
        ids = prompt_ids(tokenizer, texts) if bos else [tuple(encoded_text(tokenizer, text)) for text in texts]
    check_ids((i for prompt in ids for i in prompt), d_vocab)
    check_distinct(texts, ids)
    shortest = min(range(len(texts)), key=lambda at: len(ids[at]))
    if len(ids[shortest]) < last:
        raise InvalidArgument(short.format(last=last, text=texts[shortest], n=len(ids[shortest])))
    return ids


def padded_rows(
    prompts: Sequence[Sequence[int]], index: Int64[Tensor, " row"], n_ids: int
) -> tuple[Int64[Tensor, "batch pos"], Int64[Tensor, "batch 1"], Int64[Tensor, " token"]]:
    """Return the ids of chosen prompts, padded on the right to the longest of all, and their lengths.

    The third value are the most frequent ids of all prompts: those whose keys are worth comparing.
    """
    device, longest, counts = index.device, max(map(len, prompts)), Counter(i for prompt in prompts for i in prompt)
    # What fills up a row is an id of no prompt, so that no mean over a token's positions takes padding in.
    unused = next((i for i in range(n_ids) if i not in counts), 0)
    common = [i for i, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_INPUTS]]
    rows = [prompts[i] for i in index.tolist()]
    tokens = torch.tensor([[*row, *[unused] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    return tokens, lengths, torch.tensor(common, dtype=torch.int64, device=device)


def candidates(kind: str) -> tuple[str, ...]:
    """Return the shipped candidates for `words`, `labels` or `masks`, in the order in which they are tried."""
    listed = tomllib.loads((files("bayesgeom.tasks") / "words.toml").read_text(encoding="utf-8"))
    return tuple(listed[kind])


def without_prefixes(labels: Sequence[str]) -> list[str]:
    """Return labels without those that are a prefix of a kept label, or have one as a prefix."""
    kept: list[str] = []
    for label in labels:
        if not any(label.startswith(other) or other.startswith(label) for other in kept):
            kept.append(label)
    return kept
