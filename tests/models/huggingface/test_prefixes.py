"""Sequences with common beginnings: the logits of whole passes, from passes over each different beginning."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesgeom.core import RESID_POST, Trials, concatenate
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.huggingface.prefixes import beginnings, cheapest_cuts
from bayesgeom.models.resolve import load
from bayesgeom.scorecards.architectures import architectures_of
from bayesgeom.training.steps import built
from tests.families import ALL, D_VOCAB, OTHERS, TYPICAL, each
from tests.models.huggingface.test_sites import text


def continued(*, is_early: bool = True, n_continuations: int = 7) -> Trials:
    """Every prompt with several continuations of its last three tokens, in no order, one of them twice."""
    prompts = text(n_pos=29)
    parts = list[Trials]()
    for seed in range(n_continuations):
        generator = torch.Generator().manual_seed(seed % (n_continuations - 1))
        tokens = prompts.tokens.clone()
        tokens[:, -3:] = torch.randint(D_VOCAB, (len(prompts), 3), generator=generator)
        parts.append(replace(prompts, tokens=tokens))
    every = concatenate(parts)
    scored = torch.zeros_like(every.scored)
    for row in range(len(every)):  # sequences differ in their positions, and in where they end
        scored[row, [3 + row % 2, 24, 26 + row % 3] if is_early else [27 + row % 2]] = True
    every = replace(every, scored=scored)
    return every.rows(torch.randperm(len(every), generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("name", each([*ALL, *OTHERS]))
def test_logits_are_those_of_whole_passes(name: str, is_early: bool, folder: Callable[[str], Path]) -> None:
    model, trials = load(folder(name)), continued(is_early=is_early)
    assert isinstance(model, HFModel)
    with torch.no_grad():
        found = None if model._prefixes is None else model._prefixes.logits(trials)
        whole = model._attached.forward.at_scored(trials)
    assert found is not None or name not in {*TYPICAL} - {"mamba"}
    if found is not None:
        assert float((found - whole).abs().max()) <= 1e-5 * float(whole.abs().max())


def test_a_beginning_runs_once_unless_a_hook_or_a_gradient_reads_the_pass(folder: Callable[[str], Path]) -> None:
    model, trials, n_tokens = load(folder("llama")), continued(), list[int]()
    module: Any = model.module
    embedding = module.get_input_embeddings()
    lookup = embedding.forward

    def counted(ids: torch.Tensor) -> torch.Tensor:
        n_tokens.append(ids.numel())
        found: torch.Tensor = lookup(ids)
        return found

    vars(embedding)["forward"] = counted
    whole = trials.tokens.numel()
    plain = model.run([trials], n_recorded=len(trials)).log_answers
    assert sum(n_tokens) < whole / 2
    n_tokens.clear()
    seen = model.run([trials], record=[RESID_POST], n_recorded=len(trials))
    assert n_tokens == [whole]
    torch.testing.assert_close(seen.log_answers, plain, atol=1e-5, rtol=1e-5)
    n_tokens.clear()
    handle = module.lm_head.register_forward_hook(lambda *_: None)
    model.run([trials], n_recorded=len(trials))
    handle.remove()
    model.logits(trials)  # with gradients
    assert n_tokens == [whole, whole]


def test_a_cache_of_recurrent_layers_alone_is_not_continued() -> None:
    (architecture,) = architectures_of("rg-lru")
    model = HFModel(built(architecture.make, D_VOCAB, 29, seed=0))
    trials = continued()
    assert model._prefixes is not None and model._prefixes.logits(trials) is None
    assert model.run([trials], n_recorded=len(trials)).log_answers.isfinite().all()


def test_cuts_are_the_cheapest() -> None:
    counts = [1, 1, 4, 4, 5, 9, 9]
    options = [[*(i for i in range(1, 7) if mask >> (i - 1) & 1), 7] for mask in range(2**6)]

    def cost(cuts: list[int], price: int) -> int:
        return sum(price + counts[stop - 1] * (stop - start) for start, stop in zip([0, *cuts], cuts, strict=False))

    for price in (0, 2, 5, 50):
        assert cheapest_cuts(counts, price)[1] == min(cost(own, price) for own in options)
        assert cost(*cheapest_cuts(counts, price)[:1], price) == cheapest_cuts(counts, price)[1]


def test_beginnings_are_numbered_in_their_order() -> None:
    tokens = torch.randint(3, (17, 5), generator=torch.Generator().manual_seed(0))
    for length, numbers in enumerate(beginnings(tokens), start=1):
        rows = [tuple(row) for row in tokens[:, :length].tolist()]
        assert numbers.tolist() == [sorted({*rows}).index(row) for row in rows]
