"""Small tokenizers of three kinds, built in memory: whole words, byte pairs with leading spaces, single bytes."""

import functools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from bayesgeom.tasks.base import candidates
from bayesgeom.tasks.prompts import Prompts

MARKS = [":", ",", ";", ".", "?", "_", "*"]
OPENING = "<s>"


def _vocabulary() -> list[str]:
    return [*candidates("words"), *candidates("labels"), *MARKS, *map(chr, range(65, 91))]


@functools.cache
def word_tokenizer(*, n_words: int | None = None) -> PreTrainedTokenizerFast:
    """One id per word, the first `n_words` candidates, and per mark; opens every text with a token of its own."""
    words = [word for word in _vocabulary() if n_words is None or word not in candidates("words")[n_words:]]
    ids = {word: i for i, word in enumerate(["<unk>", OPENING, *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{OPENING} $A", special_tokens=[(OPENING, 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token=OPENING)


@functools.cache
def pair_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE as in GPT-2: words have their space in front, and nothing opens a text."""
    tokenizer = _byte_level(BYTES_AND_MERGES)
    texts = [text for group in Prompts().groups().values() for text in group]
    words = [f" {word}" for word in _vocabulary() for _ in range(50)]
    trainer = trainers.BpeTrainer(
        vocab_size=BYTES_AND_MERGES, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*texts, *words], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@functools.cache
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte on its own: no word is one token."""
    tokenizer = _byte_level(256)
    trainer = trainers.BpeTrainer(
        vocab_size=256, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["a"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


BYTES_AND_MERGES = 2_500


def _byte_level(size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
