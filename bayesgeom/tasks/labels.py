"""Texts with labels of your own: the label stands where other tasks have an exact posterior.

A label is a belief that is certain. Its answer is a token that you name, so that predictions can be scored: KL to the
exact answer is then the cross-entropy of the label, and with two labels the log-odds are the difference of two logits.

References:
    Hewitt & Liang 2019, arXiv:1909.03368 (random labels by type, the control of `belief_readout` on these tasks).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core import NO_LABEL, InvalidArgument, Tokenizer, Trials, checked
from bayesgeom.core.errors import quoted
from bayesgeom.core.tokenizer import (
    decoded_text,
    first_symbols,
    token_names,
)
from bayesgeom.tasks.base import LabeledTask, TextTask, padded_rows, text_ids

NAME = "labeled-texts"
Label = str | int | bool


@checked("texts", "labels", "answers")
def labeled_texts(
    texts: Iterable[str],
    labels: Iterable[Any],
    *,
    answers: Mapping[Label, str] | None = None,
    bos: bool = True,
) -> TextTask:
    """Return the task of texts with your labels, for `diagnose`, `fit_subspace`, `intervene`, `ablate` and `patch`.

    What is fitted is scored on other texts: `belief_readout` fits on half of them, and so does `intervene`, which draws
    both halves from each label. Swaps take another text as donor.

    Args:
        texts: The texts, such as a column of a table; each one once.
        labels: One label for each text, which is that of its last token; or for each text a list with the labels of its
            last tokens, as many for every text. Text, whole numbers or True and False.
        answers: By label, the word that a model would answer, one token of its vocabulary. Default: the labels
            themselves. Probes of activations do not read them.
        bos: Whether a text begins with the tokenizer's beginning-of-sequence token, if it has one.

    Returns:
        The task, which is bound to a model's tokenizer where it is measured.

    Raises:
        InvalidArgument: Texts and labels differ in number, a text is empty or given twice, there are fewer than two
            labels, or one of them occurs only once.

    Example:
        >>> from bayesgeom import tasks
        >>> texts = ["I loved it. It was", "I hated it. It was", "We loved this. It was", "We hated this. It was"]
        >>> tasks.labeled_texts(texts, [1, 0, 1, 0], answers={1: "good", 0: "bad"})
        4 texts with labels 0, 1
    """
    both: Mapping[str, Any] = {"texts": texts, "labels": labels}
    for name, given in both.items():
        is_scalar = isinstance(given, np.ndarray | Tensor) and not given.ndim
        if is_scalar or not isinstance(given, Iterable) or isinstance(given, set | frozenset | bytes | bytearray):
            raise InvalidArgument(f"{name} must be a list, an array or a column of a table, got {quoted(given)}.")
    listed: list[Any] = [texts] if isinstance(texts, str) else list(texts)
    rows = [tuple(_plain(one) for one in _row(value)) for value in ([labels] if isinstance(labels, str) else labels)]
    counts = _checked_counts(listed, rows)
    names = tuple(sorted(counts, key=lambda label: (str(type(label)), label)))
    words: Any = {label: str(label) for label in names} if answers is None else answers
    is_named = isinstance(words, Mapping) and {*words} == {*names}
    if not is_named or not all(isinstance(word, str) for word in words.values()):
        raise InvalidArgument(f"answers must name a word for each of {list(names)}, got {quoted(answers)}.")
    index = {label: at for at, label in enumerate(names)}
    return _LabeledTexts(
        texts=tuple(listed),
        labels=tuple(tuple(index[label] for label in row) for row in rows),
        names=tuple(map(str, names)),
        answers=tuple(words[label] for label in names),
        bos=bos,
    )


def _checked_counts(texts: Sequence[Any], rows: Sequence[Sequence[Label]]) -> Mapping[Label, int]:
    """Return how many texts have each label, after checking that texts and labels fit each other."""
    if len(texts) != len(rows):
        raise InvalidArgument(f"there are {len(texts)} texts and labels of {len(rows)}: each text needs its own.")
    if wrong := [text for text in texts if not isinstance(text, str) or not text.strip()]:
        raise InvalidArgument(f"texts must be non-empty text, got {quoted(wrong[0])}.")
    if twice := [text for text, count in Counter(texts).items() if count > 1]:
        raise InvalidArgument(
            f"text {quoted(twice[0])} is given {texts.count(twice[0])} times: a text that fits may not score. Give it "
            f"once, with the labels of several tokens as a list."
        )
    if len({len(row) for row in rows}) > 1:
        raise InvalidArgument(
            f"every text needs as many labels; text 0 has {len(rows[0])}, others {sorted({len(row) for row in rows})}."
        )
    counts = Counter(label for row in rows for label in dict.fromkeys(row))
    if len(counts) < 2:
        raise InvalidArgument(f"labels must have at least two values, got {quoted([*counts])}.")
    if rare := [label for label, count in counts.items() if count < 2]:
        raise InvalidArgument(f"label {rare[0]!r} is that of one text: it needs two, one to fit and one to score.")
    return counts


def _row(labels: Any) -> Sequence[Any]:
    """Return the labels of one text."""
    if isinstance(labels, np.ndarray | Tensor):
        return list(labels) if labels.ndim else [labels]
    return list(labels) if isinstance(labels, Sequence) and not isinstance(labels, str) else [labels]


def _plain(label: Any) -> Label:
    """Return a label as Python's own value."""
    value = label.item() if isinstance(label, np.generic) or (isinstance(label, Tensor) and not label.ndim) else label
    if not isinstance(value, str | int):
        raise InvalidArgument(f"labels must be text, whole numbers, or True and False; got {quoted(label)}.")
    return value


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class _LabeledTexts(TextTask):
    """Checked texts, and the index of each label into `names`."""

    name: ClassVar[str] = NAME
    texts: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    answers: tuple[str, ...]
    bos: bool

    def __repr__(self) -> str:
        return f"{len(self.texts)} texts with labels {', '.join(self.names)}"

    def bind(self, tokenizer: Tokenizer, *, d_vocab: int) -> "_BoundLabels":
        last, short = len(self.labels[0]), "{last} labels for {text!r}, which has {n} tokens."
        ids = text_ids(tokenizer, self.texts, short, bos=self.bos, last=last, d_vocab=d_vocab)
        remedy = "Pass answers={label: word} with words that are one token each."
        taken = first_symbols(tokenizer, self.answers, len(self.names), kind="answers", remedy=remedy)
        return _BoundLabels(
            n_ids=d_vocab,
            prompts=tuple(ids),
            labels=self.labels,
            names=self.names,
            answers=tuple(taken),
            answer_ids=tuple(taken.values()),
            spelled=_spelled(tokenizer, {i for prompt in ids for i in prompt} - {*taken.values()}, taken=taken),
        )


def _spelled(tokenizer: Tokenizer, ids: Iterable[int], *, taken: Iterable[str]) -> tuple[tuple[int, str], ...]:
    """Return ids with their texts, without those that several ids share, such as parts of a letter."""
    texts = {i: decoded_text(tokenizer, [i]) for i in sorted(ids)}
    counts = Counter([*texts.values(), *taken])
    return tuple((i, text) for i, text in texts.items() if counts[text] == 1)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class _BoundLabels(LabeledTask):
    """Labeled texts in one tokenizer's ids, padded on the right. Answers and hypotheses are the labels, in order."""

    name: ClassVar[str] = NAME
    question: ClassVar[str] = "Does {model} give the labels of these texts?"
    sentence: ClassVar[str] = "Texts with labels of a user: the exact answer is the word of the label."
    n_ids: int
    prompts: tuple[tuple[int, ...], ...]
    labels: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    answers: tuple[str, ...]
    answer_ids: tuple[int, ...]
    spelled: tuple[tuple[int, str], ...] = ()  # other ids and their texts, for pages

    def __repr__(self) -> str:
        return f"{self.n_sequences} texts with labels {', '.join(self.names)}"

    def halves(self) -> "tuple[_BoundLabels, _BoundLabels]":
        """Return two halves with different texts and nearly equal shares of each label."""
        order = np.random.default_rng(0).permutation(self.n_sequences)
        by_label = sorted(order.tolist(), key=lambda at: self.labels[at])
        first, second = (sorted(by_label[start::2]) for start in (0, 1))
        return self._of(first), self._of(second)

    def _of(self, kept: Sequence[int]) -> "_BoundLabels":
        prompts, labels = (tuple(values[at] for at in kept) for values in (self.prompts, self.labels))
        return replace(self, prompts=prompts, labels=labels)

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw different texts, each with another text as its donor, whatever the labels of both are."""
        order = self.order_for(n, generator)
        return self.trials(order[:n]), self.trials(order.roll(-1)[:n])

    def trials(self, index: Int64[Tensor, " row"]) -> Trials:
        tokens, lengths, common = padded_rows(self.prompts, index, self.n_ids)
        answers, chosen = torch.tensor(self.answer_ids, device=index.device), torch.tensor(self.labels)[index.cpu()]
        chosen, position = chosen.to(index.device), torch.arange(tokens.shape[1], device=index.device)
        scored = (position >= lengths - chosen.shape[1]) & (position < lengths)
        exact = torch.full((*tokens.shape, len(answers)), torch.nan, dtype=torch.float64, device=index.device)
        exact[scored] = torch.nn.functional.one_hot(chosen.flatten(), len(answers)).double()
        return Trials(
            tokens=tokens,
            scored=scored,
            answers=answers,
            predictive=exact,
            belief=exact,
            labels=torch.full_like(tokens, NO_LABEL).masked_scatter(scored, answers[chosen]),
            token_sets={"hypotheses": answers, "inputs": common},
            is_labeled=True,
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `uniform`, and `prior`, the frequency of each label among all texts."""
        exact = trials.at_scored(trials.predictive)
        counts = torch.bincount(torch.tensor(self.labels).flatten(), minlength=len(self.names)).to(exact)
        frequencies = (counts / counts.sum()).expand_as(exact)
        return {"uniform": torch.full_like(exact, 1 / len(self.names)), "prior": frequencies}

    def token_labels(self) -> Sequence[str]:
        return token_names({**dict(self.spelled), **dict(zip(self.answer_ids, self.answers, strict=True))}, self.n_ids)
