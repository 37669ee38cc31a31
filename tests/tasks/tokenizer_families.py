"""Tokenizers as the pretrained families have them, trained in memory on the shipped prompts.

None of the real ones is here and no hub is asked. Each of these has its family's way with spaces, bytes and digits,
which is what decides how a word is found as one token: GPT-2 (byte-level BPE, spaces in front), Llama 2 and Gemma
(SentencePiece BPE, ▁ for spaces, a space put first, bytes for what is unknown), T5 and ALBERT (SentencePiece unigram),
Llama 3 and Qwen (byte-level BPE behind a split that keeps digits apart).
"""

import functools
import math
from collections import Counter

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from bayesgeom.tasks.base import candidates
from bayesgeom.tasks.prompts import Prompts

SIZE = 2_500
BOS = "<s>"
MARKS = [":", ",", ";", ".", "?", "_", "*", "|"]
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
_SPLIT = _WORDS + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def corpus() -> list[str]:
    """The shipped prompts, and every candidate often enough to become a token, in running text."""
    texts = [text for group in Prompts().groups().values() for text in group]
    words = [*candidates("words"), *candidates("labels"), *map(chr, range(65, 91))]
    listed = [", ".join(words[start:] + words[:start]) for start in range(0, len(words), 7)]
    return [*texts, *listed, *(f"{word}: {word}, {word}" for word in words for _ in range(12)), *map(str, range(99))]


def _pieces() -> pre_tokenizers.PreTokenizer:
    """SentencePiece's cuts: at spaces, which become ▁ in front of what follows, and around punctuation."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Punctuation(behavior="isolated")]
    )


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _opened(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, unk_token="<unk>")


@functools.cache
def gpt2_like() -> PreTrainedTokenizerFast:
    """Byte-level BPE; a word carries the space in front of it, and nothing opens a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return _wrapped(tokenizer)


@functools.cache
def llama2_like() -> PreTrainedTokenizerFast:
    """SentencePiece BPE: ▁ for a space, one put before every text, bytes for characters that it does not know."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = _pieces()
    special = ["<unk>", BOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _opened(tokenizer)


@functools.cache
def unigram_like() -> PreTrainedTokenizerFast:
    """SentencePiece unigram: the most probable cut into pieces, ▁ for a space, one put before every text."""
    counts = Counter(piece for text in corpus() for piece, _ in _pieces().pre_tokenize_str(text))
    letters = Counter(letter for piece, n in counts.items() for letter in piece * n)
    total = letters.total()
    pieces = {piece: math.log(n / total) for piece, n in counts.items() if n > 1}
    rare = {letter: math.log(n / total) - 5 for letter, n in letters.items() if letter not in pieces}
    vocabulary = [("<unk>", 0.0), (BOS, 0.0), *(pieces | rare).items()]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = _pieces()
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return _opened(tokenizer)


@functools.cache
def llama3_like() -> PreTrainedTokenizerFast:
    """Byte-level BPE behind tiktoken's split: digits stand apart from words, three at most together."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, initial_alphabet=alphabet, special_tokens=["<unk>", BOS], show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return _opened(tokenizer)


FAMILIES = {"gpt2": gpt2_like, "llama2": llama2_like, "unigram": unigram_like, "llama3": llama3_like}
