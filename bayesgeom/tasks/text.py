"""Text: what is asked of a tokenizer, and symbols that it writes as one token each.

A text task is bound to a tokenizer once and holds token ids from then on. Symbols are found among candidates that ship
with the project (`words.toml`), since which words are one token is a matter of the vocabulary at hand.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Protocol, runtime_checkable

from bayesgeom.core.errors import InvalidArgument, TaskMismatch

N_LISTED = 40  # candidates that an error names


@runtime_checkable
class Tokenizer(Protocol):
    """What is asked of a tokenizer; every Hugging Face `PreTrainedTokenizerBase` has it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text."""

    def decode(self, token_ids: list[int]) -> str | list[str]:
        """The text of some ids."""


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows how a chat is written."""

    chat_template: object

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """The text of a conversation, up to where the assistant's answer begins."""


def candidates(kind: str) -> tuple[str, ...]:
    """The project's own candidates for `words`, `labels` or `masks`, in the order in which they are tried."""
    listed = tomllib.loads((files("bayesgeom.tasks") / "words.toml").read_text(encoding="utf-8"))
    return tuple(listed[kind])


def single_tokens(tokenizer: Tokenizer, words: Iterable[str]) -> dict[str, int]:
    """The id of each word that is one token and no other word's, in order; after a space wherever that is one token."""
    found: dict[str, int] = {}
    for word in words:
        spellings = [tokenizer.encode(text, add_special_tokens=False) for text in (f" {word}", word)]
        whole = [ids[0] for ids in spellings if len(ids) == 1 and _says(tokenizer, ids[0], word)]
        if whole and word not in found and whole[0] not in found.values():
            found[word] = whole[0]
    return found


def first_symbols(tokenizer: Tokenizer, words: Sequence[str], n: int, *, kind: str, remedy: str) -> dict[str, int]:
    """The first `n` of these words that are one token each. **Raises** `InvalidArgument` where there are fewer.

    `kind` names in the error what was looked for, and `remedy` says what to do.
    """
    found = single_tokens(tokenizer, words)
    if len(found) < n:
        listed = ", ".join(words[:N_LISTED]) + (", …" if len(words) > N_LISTED else "")
        kept = ", ".join([*found][:N_LISTED]) or "none"
        raise InvalidArgument(
            f"{n} {kind} are needed that this tokenizer writes as one token each; of the {len(words)} tried ({listed}) "
            f"it does so for {len(found)} ({kept}). {remedy}"
        )
    return dict([*found.items()][:n])


def mark(tokenizer: Tokenizer, text: str, *, after: str) -> int:
    """The id of a punctuation mark as this tokenizer writes it right after a word.

    **Raises** `InvalidArgument` where it is not one token.
    """
    for before in (f" {after}", after, ""):
        ids = tokenizer.encode(before + text, add_special_tokens=False)
        if len(ids) == (2 if before else 1) and _says(tokenizer, ids[-1], text):
            return ids[-1]
    raise InvalidArgument(f"{text!r} is not one token for this tokenizer; choose another mark.")


def opening(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """What this tokenizer itself puts before a text: a beginning-of-sequence token for some, nothing for others."""
    plain, special = (tokenizer.encode(text, add_special_tokens=added) for added in (False, True))
    for start in range(len(special) - len(plain) + 1):
        if special[start : start + len(plain)] == plain:
            return tuple(special[:start])
    raise InvalidArgument(
        f"this tokenizer writes {text!r} as {plain} without special tokens and as {special} with them."
    )


def asked_in_chat(tokenizer: Tokenizer, message: str) -> tuple[int, ...]:
    """Return the ids of a chat in which the user says this, up to where the assistant's answer begins.

    Args:
        tokenizer: The model's.
        message: What the user says.

    Returns:
        The ids, special tokens included.

    Raises:
        InvalidArgument: the tokenizer has no chat template.
    """
    if not isinstance(tokenizer, ChatTokenizer) or not tokenizer.chat_template:
        raise InvalidArgument(
            "style asks for a chat, and this tokenizer has no chat template: use style='plain', or an instruct model."
        )
    turns = [{"role": "user", "content": message}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def check_ids(ids: Iterable[int], d_vocab: int) -> None:
    """**Raises** `TaskMismatch` for an id that a model of this vocabulary has not."""
    outside = sorted({i for i in ids if not 0 <= i < d_vocab})
    if outside:
        raise TaskMismatch(
            f"the tokenizer gives ids up to {outside[-1]}; the model has {d_vocab} ids, 0 … {d_vocab - 1}. "
            f"Use the tokenizer that belongs to the model."
        )


def labeled(names: Mapping[int, str], n_ids: int) -> list[str]:
    """A label for every id: its name, or its number."""
    return [names.get(i, f"#{i}") for i in range(n_ids)]


def _says(tokenizer: Tokenizer, token_id: int, text: str) -> bool:
    """Whether an id stands for this text, spaces apart; that of an unknown word does not."""
    said = tokenizer.decode([token_id])
    return isinstance(said, str) and (said == text or said.strip() == text.strip() != "")
