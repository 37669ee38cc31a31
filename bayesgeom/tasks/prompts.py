"""Prompts: ordinary text without an exact posterior; uncertainty is the model's own next-token entropy.

They serve the geometry of pretrained models. Prompts of four domains stop in mid-sentence. The last token is measured,
and prompts are selected into quintiles of the model's entropy. The shipped ones (`prompts.toml`) were written for this
project.

References:
    Agarwal, Dalal & Misra 2025, Paper III of their trilogy, section 4.2 (the selection; their prompts are not
    released).
"""

import codecs
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.core import NO_LABEL, InvalidArgument, Tokenizer, Trials, check_types, unknown_name
from bayesgeom.core.tokenizer import token_names
from bayesgeom.tasks.base import FiniteTask, TextTask, padded_rows, text_ids

QUINTILES = 5
JOINT, BETWEEN = "+", "\n\n"
_SHORT = "last={last} tokens of each prompt are requested; {text!r} has {n}."
_KEYS = ("text", "prompt")  # of a line of JSONL
_MARKS = {  # UTF-32 first: its mark begins with that of UTF-16
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Prompts(TextTask):
    """Your `texts`, optionally grouped by domain, or the shipped prompts; `domain` selects one group.

    `domain="mathematics+code"` joins one prompt of each of two domains, half of the pairs in each order; the two orders
    are two groups. The last `last` tokens of a prompt are scored. With `bos`, a prompt begins with the tokenizer's
    beginning-of-sequence token, if it has one; a text that begins with it gets no second one. With `chat`, it is a
    user's message in the tokenizer's chat template, up to the start of the assistant's answer. `per_quintile` prompts
    of each group are selected from each quintile of the model's entropy at their end; 0 takes all prompts.

    Args:
        texts: Prompts, or lists of prompts by domain; None: the shipped ones.
        domain: One of the groups, or two joined by +; empty: all.
        last: Tokens scored at the end of a prompt.
        bos: Whether a prompt begins with the tokenizer's beginning-of-sequence token.
        per_quintile: Prompts of each group per quintile of the model's entropy; 0: all.
        chat: Whether a prompt is a user's message in the chat template.

    Raises:
        InvalidArgument: `last` is below 1, a group has no prompts, or a prompt is empty.

    Example:
        >>> from bayesgeom import tasks
        >>> tasks.Prompts(texts=["The sky is", "Two and two make"])
        Prompts(2 texts)
    """

    name: ClassVar[str] = "prompts"
    texts: Sequence[str] | Mapping[str, Sequence[str]] | None = None
    domain: str = ""
    last: int = 1
    bos: bool = True
    per_quintile: int = 0
    chat: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.texts, str):
            raise InvalidArgument(
                f"texts must be a list of prompts, or lists by domain, got {self.texts!r:.40}: put it into a list."
            )
        check_types(self)
        if self.last < 1:
            raise InvalidArgument(
                f"last, the number of tokens scored at the end of a prompt, must be at least 1, got {self.last}."
            )
        for name, texts in self.groups().items():
            if not texts or any(not text.strip() for text in texts):
                raise InvalidArgument(f"group {name!r} has no prompts, or an empty one: add texts, or remove it.")

    def __repr__(self) -> str:
        shown = {
            name: value for name, value in vars(self).items() if name != "texts" and value != vars(type(self))[name]
        }
        stored = [] if self.texts is None else [f"{sum(map(len, self.groups().values()))} texts"]
        return f"Prompts({', '.join([*stored, *(f'{name}={value!r}' for name, value in shown.items())])})"

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return the prompts by domain; an unknown domain raises `UnknownName`."""
        known = _grouped(self.texts)
        if not self.domain:
            return known
        parts = [part.strip() for part in self.domain.split(JOINT)] if self.domain not in known else [self.domain]
        for part in parts:
            if part not in known:
                raise unknown_name("domain", part, known)
        match parts:
            case [only]:
                return {only: known[only]}
            case [a, b] if a != b:
                pairs = list(zip(known[a], known[b], strict=False))  # the longer group's surplus has no partner
                return {
                    f"{a}, then {b}": tuple(f"{x}{BETWEEN}{y}" for x, y in pairs[0::2]),
                    f"{b}, then {a}": tuple(f"{y}{BETWEEN}{x}" for x, y in pairs[1::2]),
                }
            case _:
                raise InvalidArgument(f"domain must join two different domains with {JOINT}, got {self.domain!r}.")

    def bind(self, tokenizer: Tokenizer, *, d_vocab: int) -> "BoundPrompts":
        groups = self.groups()
        texts = [text for members in groups.values() for text in members]
        ids = text_ids(tokenizer, texts, _SHORT, bos=self.bos, chat=self.chat, last=self.last, d_vocab=d_vocab)
        return BoundPrompts(
            n_ids=d_vocab,
            prompts=tuple(ids),
            groups=tuple(i for i, members in enumerate(groups.values()) for _ in members),
            group_names=tuple(groups),
            last=self.last,
            per_quintile=self.per_quintile,
        )


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BoundPrompts(FiniteTask):
    """`Prompts` in one tokenizer's ids, padded on the right to the longest. Trials have groups and no posterior."""

    name: ClassVar[str] = "prompts"
    sentence: ClassVar[str] = "Plain text: its exact posterior is unknown, so nothing here measures inference."
    has_posterior: ClassVar[bool] = False
    n_ids: int
    prompts: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...]
    group_names: tuple[str, ...]
    last: int = 1
    per_quintile: int = 0

    def __repr__(self) -> str:
        return f"{self.n_sequences} prompts ({'; '.join(self.group_names)})"

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Refuse: ordinary text has no pairs that differ in a latent variable.

        Raises:
            InvalidArgument: Always.
        """
        raise InvalidArgument(
            "prompts have no pairs, because their latent variables are unknown: swap on evidence or on a wind tunnel "
            "in context (bijection-in-context)."
        )

    def select(
        self, entropies_bits: Float[np.ndarray, " prompt"], *, per_quintile: int, seed: int = 0
    ) -> "BoundPrompts":
        """Return `per_quintile` prompts of every quintile of the entropies in each group.

        Args:
            entropies_bits: Entropy of the model's prediction for each prompt, in their order.
            per_quintile: Number of prompts of each quintile and group.
            seed: Seed of the choice.

        Raises:
            InvalidArgument: A group has too few prompts, or an entropy is missing.
        """
        if len(entropies_bits) != self.n_sequences or not np.isfinite(entropies_bits).all():
            raise InvalidArgument(
                f"{self.n_sequences} prompts need a finite entropy each; got {int(np.isfinite(entropies_bits).sum())} "
                f"finite ones of {len(entropies_bits)}."
            )
        rng, chosen = np.random.default_rng(seed), list[int]()
        for group, name in enumerate(self.group_names):
            members = np.flatnonzero(np.array(self.groups) == group)
            if per_quintile < 1 or len(members) < QUINTILES * per_quintile:
                raise InvalidArgument(
                    f"per_quintile={per_quintile} prompts of five quintiles are requested of {len(members)} in "
                    f"{name!r}: use 1 … {len(members) // QUINTILES}."
                )
            for quintile in np.array_split(members[entropies_bits[members].argsort(kind="stable")], QUINTILES):
                chosen += rng.permutation(quintile)[:per_quintile].tolist()
        kept = sorted(chosen)
        prompts, groups = tuple(self.prompts[at] for at in kept), tuple(self.groups[at] for at in kept)
        return replace(self, prompts=prompts, groups=groups, per_quintile=0)

    def trials(self, index: Int64[Tensor, " row"]) -> Trials:
        device = index.device
        tokens, lengths, common = padded_rows(self.prompts, index, self.n_ids)
        position = torch.arange(tokens.shape[1], device=device)
        nothing = torch.zeros(*tokens.shape, 0, dtype=torch.float64, device=device)
        return Trials(
            tokens=tokens,
            scored=(position >= lengths - self.last) & (position < lengths),
            answers=torch.zeros(0, dtype=torch.int64, device=device),
            predictive=nothing,
            belief=nothing,
            labels=torch.full_like(tokens, NO_LABEL),
            token_sets={"inputs": common},
            groups=torch.tensor(self.groups, device=device)[index],
            group_names=self.group_names,
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """None: there are no answers to predict."""
        return {}

    def token_labels(self) -> Sequence[str]:
        return token_names({}, self.n_ids)


def texts_in(file: Path) -> tuple[str, ...]:
    """Read prompts from a file: one a line, or JSONL with the prompt as "text" or "prompt"; other columns are ignored.

    It is JSONL if its name ends in .jsonl, or if its first line is a JSON object. Spaces at both ends of a line belong
    to the prompt; byte-order marks and empty lines at the end of the file do not.

    Args:
        file: The file, in UTF-8, or in UTF-16 or UTF-32 with a byte-order mark.

    Raises:
        InvalidArgument: It is empty or in another encoding, a line is empty, or a line of JSONL has no prompt. The
            message names the line.
    """
    content = file.read_bytes()
    encoding = next((encoding for mark, encoding in _MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        content = content if encoding == "utf-8" else content.decode(encoding).encode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file} begins as {encoding} and is not: save the file as UTF-8.") from error
    if b"\0" in content:  # as in UTF-16 without its mark
        raise InvalidArgument(f"{file} has zero bytes, so it is no text in UTF-8: save the file as UTF-8.")
    lines = [line.removeprefix(codecs.BOM_UTF8) for line in content.splitlines()]  # joined files have one in each
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise InvalidArgument(f"{file} holds no prompts: write one a line.")
    is_jsonl, texts = file.suffix == ".jsonl" or isinstance(_parsed(lines[0]), dict), list[str]()
    for number, line in enumerate(lines, 1):
        try:
            text: Any = line.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"line {number} of {file} is not UTF-8: save the file as UTF-8.") from error
        if is_jsonl:
            parsed = _parsed(line)
            members = parsed if isinstance(parsed, dict) else {}
            text = next((members[key] for key in _KEYS if key in members), None)
            if not isinstance(text, str):
                there = f"has the keys {', '.join(members)}" if members else "is no JSON object"
                raise InvalidArgument(f'line {number} of {file} {there}: each line needs its prompt as "text".')
        if not text.strip():
            raise InvalidArgument(f"line {number} of {file} is empty: remove it, or write a prompt there.")
        texts.append(text)
    return tuple(texts)


def _parsed(line: bytes) -> object:
    """The JSON value of a line; None for other text."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _grouped(texts: Sequence[str] | Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
    match texts:
        case None:
            shipped = tomllib.loads((files("bayesgeom.tasks") / "prompts.toml").read_text(encoding="utf-8"))
            return {name: tuple(members) for name, members in shipped.items()}
        case Mapping():
            return {name: tuple(members) for name, members in texts.items()}
        case _:
            return {"prompts": tuple(texts)}
