"""Replaying a Hugging Face model from the edited block on: the plain loop's logits, or a warning that there is none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesgeom.core import run as s
from bayesgeom.core.edits import Edit, Replace
from bayesgeom.models.base import BaselinePass, entry
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.replay.hooked import PlainLoop, PrefixReplay
from bayesgeom.models.resolve import as_model, load
from tests.families import ATTENTION, N_LAYERS, RECURRENT, each
from tests.models.huggingface.test_sites import text

SITES = (s.RESID_PRE, s.Z, s.ATTN_OUT, s.RESID_MID, s.MLP_OUT, s.RESID_POST)


class Shifted:
    """Mean and donor are the baseline's own, over the batch and of the next trial."""

    def __init__(self, baseline: BaselinePass) -> None:
        self.baseline = baseline

    def mean(self, site: s.Site, layer: int) -> Tensor:
        return self.baseline.stored[site, layer].mean(dim=0)

    def donor(self, site: s.Site, layer: int) -> Tensor:
        return self.baseline.stored[site, layer].roll(1, 0)


def variants(model: HFModel) -> list[list[Edit]]:
    """Every site and layer, each mode; heads; and a pair of edits in two layers."""
    modes = ("zero", "mean", "resample")
    found: list[list[Edit]] = [
        [Replace(site=site, layer=layer, mode=mode)]
        for site in SITES
        if site in model.sites
        for layer in range(model.spec.n_layers)
        for mode in modes
    ]
    if s.Z in model.sites:
        found += [
            [Replace(site=s.Z, layer=layer, mode="mean", heads=(head,))] for layer in range(N_LAYERS) for head in (0, 3)
        ]
        found.append(
            [Replace(site=s.Z, layer=0, mode="zero", heads=(1, 2)), Replace(site=s.MLP_OUT, layer=2, mode="mean")]
        )
    return found


@pytest.mark.parametrize("name", each([*ATTENTION, *RECURRENT]))
def test_a_replay_gives_what_whole_passes_give(name: str, folder: Callable[[str], Path]) -> None:
    model, trials = load(folder(name)), text()
    assert isinstance(model, HFModel)
    fast, slow = model.replayer(), PlainLoop(model)
    assert isinstance(fast, PrefixReplay)
    baseline = slow.baseline(trials)
    fast.baseline(trials)
    groups: dict[tuple[int, int], list[list[Edit]]] = {}
    for variant in variants(model):
        groups.setdefault(entry(variant), []).append(variant)
    for group in groups.values():
        expected = slow.logits(baseline, group, Shifted(baseline))
        found = fast.logits(baseline, group, Shifted(baseline))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert (expected - baseline.logits).abs().amax(dim=(1, 2, 3)).min() > 1e-4, "every ablation does something"


@pytest.mark.parametrize("name", ["llama", "gptj"])
def test_blocks_before_the_edit_do_not_run(name: str, folder: Callable[[str], Path]) -> None:
    model, trials = load(folder(name)), text()
    fast, ran = model.replayer(), list[int]()
    baseline = fast.baseline(trials)
    blocks = model.module.get_submodule(ATTENTION[name].blocks)
    for layer, block in enumerate(blocks):
        block.get_submodule(ATTENTION[name].attention).register_forward_hook(lambda m, i, o, at=layer: ran.append(at))
    fast.logits(baseline, [[Replace(site=s.Z, layer=1, mode="zero")]] * 3, Shifted(baseline))
    assert ran == [1, 2], "once for all three variants"
    assert all("forward" not in vars(block) and not block._forward_pre_hooks for block in blocks)


def test_an_exception_leaves_the_blocks_as_they_were(folder: Callable[[str], Path]) -> None:
    model, trials = load(folder("llama")), text()
    fast = model.replayer()
    baseline = fast.baseline(trials)
    before = model.logits(trials)

    class Failing(Shifted):
        def mean(self, site: s.Site, layer: int) -> Tensor:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fast.logits(baseline, [[Replace(site=s.MLP_OUT, layer=2, mode="mean")]], Failing(baseline))
    assert torch.equal(model.logits(trials), before)


@pytest.mark.parametrize("block", [1, 2])
def test_a_model_that_carries_more_than_the_stream_takes_whole_passes(
    block: int, folder: Callable[[str], Path]
) -> None:
    """Something passed on beside the residual stream: a block that reads what the first one left."""
    import transformers

    hf = transformers.AutoModelForCausalLM.from_pretrained(folder("llama"))
    left: dict[str, Any] = {"value": torch.zeros(())}
    hf.model.layers[0].mlp.register_forward_hook(lambda m, i, out: left.update(value=out))
    hf.model.layers[block].mlp.register_forward_hook(lambda m, i, out: out + left.pop("value", torch.zeros(())))
    model = as_model(hf)
    with pytest.warns(UserWarning, match=rf"because block {block} reads more .*: every ablation runs"):
        assert isinstance(model.replayer(), PlainLoop)


def test_dropout_stays_off(folder: Callable[[str], Path]) -> None:
    import transformers

    hf = transformers.AutoModelForCausalLM.from_pretrained(folder("gpt2"), resid_pdrop=0.5).train()
    model, trials = as_model(hf), text()
    assert torch.equal(model.replayer().baseline(trials).logits, model.replayer().baseline(trials).logits)
    assert hf.training
