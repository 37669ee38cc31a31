"""What a Hugging Face model takes: its weights, one untrained copy's at a time, and passes within the byte budget."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bayesgeom
from bayesgeom.core import run as s
from bayesgeom.models.base import Model, bytes_of_pass
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.native.wrapped import LlamaConfig
from bayesgeom.models.resolve import load, of_module
from bayesgeom.report.answer import N_COPIES
from bayesgeom.tasks.bijection import Bijection
from tests.families import ATTENTION, D_VOCAB
from tests.models.huggingface.test_sites import text
from tests.shape_checks import ARE_ON


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only reference counts free anything: what a circle held would stay."""
    gc.disable()
    yield
    gc.enable()


def shipped() -> Model:
    config = LlamaConfig(d_vocab=22, n_ctx=13, n_layers=2, n_heads=6, n_kv_heads=2, d_model=60, d_mlp=29)
    return of_module(config.build(seed=0))


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", ["llama", "our own"])
@pytest.mark.skipif(ARE_ON, reason="the checks of annotations keep the first function that they see, and what it holds")
def test_untrained_copies_are_freed_one_at_a_time(
    name: str, folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shipped() if name == "our own" else load(folder(name))
    modules: list[weakref.ref[nn.Module]] = []
    made = HFModel.untrained_copy

    def untrained_copy(self: HFModel, seed: int) -> HFModel:
        assert not any(module() is not None for module in modules), "the copy before is still there"
        copy = made(self, seed)
        modules.append(weakref.ref(copy.module))
        return copy

    def logits(self: HFModel, trials: Any) -> Any:
        if self is model:
            assert not any(module() is not None for module in modules), "a copy is there while the model runs"
        return run(self, trials)

    run = HFModel.logits
    monkeypatch.setattr(HFModel, "untrained_copy", untrained_copy)
    monkeypatch.setattr(HFModel, "logits", logits)
    found = bayesgeom.diagnose(model, Bijection(n_values=11, n_pairs=7, repeats=True), n=5, n_untrained=3)
    assert len(modules) == N_COPIES and "value_manifold" in found.reports


def test_copies_have_the_models_type_from_the_start(folder: Callable[[str], Path]) -> None:
    model = load(folder("llama"), dtype="bfloat16")
    seen = set[torch.dtype]()
    handle = nn.modules.module.register_module_parameter_registration_hook(lambda m, n, p: seen.add(p.dtype))
    copy = model.untrained_copy(0)
    handle.remove()
    assert seen == {torch.bfloat16} and torch.get_default_dtype() == torch.float32
    for (name, buffer), (_, own) in zip(copy.module.named_buffers(), model.module.named_buffers(), strict=True):
        assert buffer.dtype == own.dtype == torch.float32, name
        assert torch.equal(buffer, own), "the rotation is as fine as the model's own"


@pytest.mark.parametrize("seed", range(3))
def test_sites_are_distinguished_in_bfloat16(seed: int) -> None:
    """Untrained, a sublayer writes next to nothing, and what is near nothing is near anything small."""
    import transformers

    torch.manual_seed(seed)
    model = HFModel(ATTENTION["olmo2"].build(transformers).to(torch.bfloat16))
    assert {s.RESID_PRE, s.RESID_MID, s.ATTN_OUT, s.MLP_OUT, s.RESID_POST} <= model.sites, model.withheld


def test_a_block_beyond_the_budget_is_run_in_parts(folder: Callable[[str], Path]) -> None:
    model, trials = load(folder("llama")), text(11)
    sizes: list[int] = []
    handle = model.module.register_forward_hook(lambda m, i, out: sizes.append(len(out.logits)))
    each = bytes_of_pass(model.spec, trials)
    parts = model.run([trials], record=(s.RESID_POST,), n_recorded=9, budget_bytes=4 * each)
    assert sizes == [3, 3, 3, 2], "nine are recorded, and each part keeps to the budget"
    whole = model.run([trials], record=(s.RESID_POST,), n_recorded=9)
    handle.remove()
    assert each > 4 * 2 * 11 * D_VOCAB, "logits of every position, and their copy"
    torch.testing.assert_close(parts.at(s.RESID_POST), whole.at(s.RESID_POST), atol=1e-5, rtol=1e-5)
    assert abs(parts.behavior.off_answer_prob - whole.behavior.off_answer_prob).max() < 1e-5
