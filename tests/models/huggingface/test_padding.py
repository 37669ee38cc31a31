"""Padding moved to the right gives what transformers gives for the left-padded batch with mask and positions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesgeom.models.resolve import load
from tests.families import RECURRENT
from tests.models.huggingface.test_sites import ATOL, text

LENGTHS, PAD = (5, 11, 7), 3


def left_padded() -> tuple[Tensor, Tensor]:
    """Three texts of different lengths, flush right, and the mask of their tokens."""
    mask = torch.arange(11) >= 11 - torch.tensor(LENGTHS)[:, None]
    return torch.where(mask, text(3).tokens, PAD), mask


def right_padded() -> Tensor:
    """The same texts, flush left."""
    tokens, mask = left_padded()
    rows = [torch.cat([row[real], row[~real]]) for row, real in zip(tokens, mask, strict=True)]
    return torch.stack(rows)


def with_mask(folder: Path, tokens: Tensor, mask: Tensor, **options: Any) -> Tensor:
    """What transformers itself says of the left-padded batch."""
    import transformers

    hf = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        logits: Tensor = hf(input_ids=tokens, attention_mask=mask.long(), use_cache=False, **options).logits
    return logits


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "llama", "qwen2", "gemma2", "opt", "bloom", "phi3"])
def test_left_and_right_padding_say_the_same(name: str, folder: Callable[[str], Path]) -> None:
    model, (tokens, mask) = load(folder(name)), left_padded()
    ours = model.logits(replace(text(3), tokens=right_padded()))
    positions = (mask.long().cumsum(1) - 1).clamp_min(0)
    options = {} if name in ("opt", "bloom") else {"position_ids": positions}  # those two count positions by the mask
    theirs = with_mask(folder(name), tokens, mask, **options)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(ours[row, :length], theirs[row, 11 - length :], atol=ATOL, rtol=ATOL)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_never_see_what_is_padded_on_the_left(name: str, folder: Callable[[str], Path]) -> None:
    model, turned = load(folder(name)), right_padded()
    together = model.logits(replace(text(3), tokens=turned))
    for row, length in enumerate(LENGTHS):
        alone = text(1, n_pos=length)
        single = model.logits(replace(alone, tokens=turned[row : row + 1, :length]))
        torch.testing.assert_close(together[row, :length], single[0], atol=ATOL, rtol=ATOL)


def test_left_padding_without_positions_changes_what_gpt2_says(folder: Callable[[str], Path]) -> None:
    """The trap itself: the mask hides the padding, and the positions still count it."""
    tokens, mask = left_padded()
    right = with_mask(folder("gpt2"), tokens, mask, position_ids=(mask.long().cumsum(1) - 1).clamp_min(0))
    careless = with_mask(folder("gpt2"), tokens, mask)
    error = (careless - right)[mask]
    assert error.abs().max() > 1e-2
