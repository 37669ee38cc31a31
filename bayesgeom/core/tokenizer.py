"""The interface of a tokenizer, single-token symbols, and chat templates.

A text task is bound to a tokenizer once and then holds token ids. The tokenizer's vocabulary decides which words are
single tokens. A chat template is a program of somebody else that turns a message into a prompt: it runs in the sandbox
of transformers.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, runtime_checkable

from bayesgeom.core.errors import InvalidArgument, TaskMismatch, quoted
from bayesgeom.core.plugins import Contained

N_LISTED, N_SHOWN = 40, 8  # candidates listed, and ids of a text shown, in an error
_MARK = "@0@"  # stands for a symbol where a chat template is taken apart


@runtime_checkable
class Tokenizer(Protocol):
    """The interface that text tasks need; every Hugging Face `PreTrainedTokenizerBase` has it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""

    def decode(self, token_ids: list[int]) -> str | list[str]:
        """Return the text of some ids."""


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer with a chat template."""

    chat_template: object

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        """Return the text of a conversation, up to the start of the assistant's answer."""


def encoded_text(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Return the ids of a text.

    Raises:
        InvalidArgument: The tokenizer, a program of somebody else's, fails.
    """
    with Contained() as encoding:
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))
    raise InvalidArgument(f"this tokenizer cannot encode {quoted(text)} ({encoding.fault}): restore its files.")


def decoded_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of some ids.

    Raises:
        InvalidArgument: The tokenizer, a program of somebody else's, fails.
    """
    with Contained() as decoding:
        text = tokenizer.decode(list(ids))
        return text if isinstance(text, str) else "".join(text)
    raise InvalidArgument(f"this tokenizer cannot decode {quoted(list(ids))} ({decoding.fault}): restore its files.")


def single_tokens(tokenizer: Tokenizer, words: Iterable[str]) -> dict[str, int]:
    """Return the id of each word that is one token of its own, in order; the form after a space is preferred."""
    id_by_word: dict[str, int] = {}
    for word in words:
        spellings = [encoded_text(tokenizer, text) for text in (f" {word}", word)]
        whole = [ids[0] for ids in spellings if len(ids) == 1 and _says(tokenizer, ids[0], word)]
        if whole and word not in id_by_word and whole[0] not in id_by_word.values():
            id_by_word[word] = whole[0]
    return id_by_word


def first_symbols(tokenizer: Tokenizer, words: Sequence[str], n: int, *, kind: str, remedy: str) -> dict[str, int]:
    """Return the ids of the first `n` words that are single tokens.

    Args:
        tokenizer: The model's tokenizer.
        words: Candidates, in the order in which they are tried.
        n: Number of words needed.
        kind: What the words are, for the error message.
        remedy: What the user can do, for the error message.

    Raises:
        InvalidArgument: Fewer than `n` candidates are single tokens.
    """
    ids = single_tokens(tokenizer, words)
    if len(ids) < n:
        listed = ", ".join(words[:N_LISTED]) + (", …" if len(words) > N_LISTED else "")
        kept = ", ".join([*ids][:N_LISTED]) or "none"
        raise InvalidArgument(
            f"the task needs {n} {kind} that are single tokens; of the {len(words)} candidates ({listed}) this "
            f"tokenizer has {len(ids)} ({kept}). {remedy}"
        )
    return dict([*ids.items()][:n])


def joined_ids(tokenizer: Tokenizer, before: str, text: str) -> tuple[int, ...]:
    """Return the ids of a text directly after another one.

    Raises:
        InvalidArgument: The tokenizer joins the two texts, or it cannot write the second one.
    """
    start, whole = encoded_text(tokenizer, before), encoded_text(tokenizer, before + text)
    ids = tuple(whole[len(start) :])
    if whole[: len(start)] != start or not ids:
        raise InvalidArgument(f"this tokenizer joins {before[-N_LISTED:]!r} and {text!r}: choose another text.")
    if "".join(decoded_text(tokenizer, ids).split()) != "".join(text.split()):
        raise InvalidArgument(f"this tokenizer cannot write {text!r}: choose another text.")
    return ids


def check_spellings(spellings: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """Check that no spelling of an answer is, or begins with, another one: its probability would count twice.

    Raises:
        InvalidArgument: Two spellings share their tokens.
    """
    for (shorter, ids), (longer, others) in pairwise(sorted(spellings, key=lambda entry: entry[1])):
        if others[: len(ids)] == ids:
            raise InvalidArgument(
                f"the symbols {longer!r} and {shorter!r} share the tokens {list(ids)}, so that no probability "
                f"belongs to one of them alone: choose others."
            )


def punctuation_id(tokenizer: Tokenizer, text: str, *, after: str) -> int:
    """Return the id of a punctuation mark directly after a word.

    Raises:
        InvalidArgument: The mark is not a single token.
    """
    for before in (f" {after}", after, ""):
        ids = encoded_text(tokenizer, before + text)
        if len(ids) == (2 if before else 1) and _says(tokenizer, ids[-1], text):
            return ids[-1]
    raise InvalidArgument(f"{text!r} is not a single token for this tokenizer; choose another mark.")


def prefix_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the ids that this tokenizer puts before a text: a beginning-of-sequence token, or nothing."""
    plain, special = (encoded_text(tokenizer, text, add_special_tokens=with_special) for with_special in (False, True))
    for start in range(len(special) - len(plain) + 1):
        if special[start : start + len(plain)] == plain:
            return tuple(special[:start])
    raise InvalidArgument(
        f"this tokenizer encodes {text!r} as {plain} without special tokens and as {special} with them."
    )


def prompt_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the ids of each text after what this tokenizer puts before a text, unless the text begins with it.

    `<s>` at the start of a text is a beginning-of-sequence token for many tokenizers: there is no second one.
    """
    prefix = prefix_ids(tokenizer, max(texts, key=len))  # a text that is "<s>" alone does not tell
    ids = (tuple(encoded_text(tokenizer, text)) for text in texts)
    return [text_ids if prefix and text_ids[: len(prefix)] == prefix else (*prefix, *text_ids) for text_ids in ids]


def chat_prompts(tokenizer: Tokenizer, messages: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the ids of a chat with each user message, up to the start of the assistant's answer.

    Args:
        tokenizer: The model's tokenizer.
        messages: The user's messages, each in a chat of its own.

    Returns:
        The ids, special tokens included.

    Raises:
        InvalidArgument: The tokenizer has no chat template, or one that fails or leaves the message out.
    """
    return [tuple(encoded_text(tokenizer, _chat_text(tokenizer, [message]))) for message in messages]


def chat_turns(tokenizer: Tokenizer, message: str) -> tuple[str, str, str]:
    """Return the texts up to a user's first input, below a message, up to the answer, and up to the next input.

    Raises:
        InvalidArgument: The tokenizer has no chat template, or one that writes earlier turns in another form.
    """
    texts = _chat_text(tokenizer, [f"{message}\n{_MARK}", _MARK, _MARK]).split(_MARK)
    if len(texts) != 4 or texts[1] != texts[3]:
        raise InvalidArgument("the chat template of this tokenizer rewrites earlier turns: use turns=False.")
    return texts[0], texts[1], texts[2]


def _fault_in(text: object, message: str) -> str:
    """Return what is wrong with the text that a chat template makes of a message; "" for nothing."""
    if not isinstance(text, str):
        return f"it makes {quoted(text)}, which is no text"
    if " ".join(message.split()) not in " ".join(text.split()):
        return "it leaves the user's message out"
    return "its characters cannot be encoded" * any("\ud800" <= character <= "\udfff" for character in text)


def _chat_text(tokenizer: Tokenizer, turns: Sequence[str]) -> str:
    """Return the text of a chat whose turns are the user's and the assistant's by turns, up to the next answer."""
    if not isinstance(tokenizer, ChatTokenizer) or not tokenizer.chat_template:
        raise InvalidArgument(
            "this tokenizer has no chat template: use style='plain' or chat=False, or an instruct model."
        )
    chat, text = [{"role": ("user", "assistant")[at % 2], "content": turn} for at, turn in enumerate(turns)], ""
    with Contained() as rendering:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    if fault := rendering.fault.rstrip(".") or _fault_in(text, turns[0]):
        raise InvalidArgument(
            f"the chat template of this tokenizer cannot be used: {fault}. Use style='plain' or chat=False."
        )
    return text


def check_ids(ids: Iterable[int], d_vocab: int) -> None:
    """Raise `TaskMismatch` for an id outside the model's vocabulary."""
    outside = sorted({i for i in ids if not 0 <= i < d_vocab})
    if outside:
        raise TaskMismatch(
            f"the tokenizer gives ids up to {outside[-1]}; the model has {d_vocab} ids. Use the model's own tokenizer."
        )


def check_distinct(texts: Sequence[str], ids: Sequence[tuple[int, ...]]) -> None:
    """Check that most different texts have different ids.

    Raises:
        InvalidArgument: They have not, as with a tokenizer whose vocabulary lacks their words.
    """
    of_ids: dict[tuple[int, ...], set[str]] = {}
    for text, text_ids in zip(texts, ids, strict=True):
        of_ids.setdefault(text_ids, set()).add(text)
    if 2 * len(of_ids) > len(set(texts)):
        return
    shared_ids, same = max(of_ids.items(), key=lambda entry: len(entry[1]))
    first, second = sorted(same)[:2]
    raise InvalidArgument(
        f"this tokenizer gives {len(of_ids)} encodings to {len(set(texts))} different texts: {first!r} and {second!r} "
        f"are both {list(shared_ids[:N_SHOWN])}. Its vocabulary lacks their words; use the tokenizer of the model."
    )


def token_names(names: Mapping[int, str], n_ids: int) -> list[str]:
    """Return a label for every id: its name, or its number."""
    return [names.get(i, f"#{i}") for i in range(n_ids)]


def _says(tokenizer: Tokenizer, token_id: int, text: str) -> bool:
    """Return whether an id decodes to this text, ignoring spaces; the id of unknown words does not."""
    decoded = decoded_text(tokenizer, [token_id])
    return decoded == text or decoded.strip() == text.strip() != ""
