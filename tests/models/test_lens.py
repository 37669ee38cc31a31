"""Models of transformer-lens: the same numbers as the Hugging Face model's own, and nothing that cannot be proven."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformer_lens
from torch import nn

from bayesgeom.core import run as s
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.models.adapters.lens import LensModel
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import as_model, load
from tests.families import each, saved
from tests.models.huggingface.test_sites import edited_logits, plain, text
from tests.tasks.tokenizers import pair_tokenizer, word_tokenizer

LACKING = {
    "gpt2": set(),
    "llama": set(),
    "gemma2": set(),
    "gpt_neox": {"q", "k", "q_rot", "k_rot"},  # its rotated keys never fire
    "opt": {"pattern", "mlp_post"},  # edits of its patterns do nothing; the bridge states 4 · d_model hidden units
    "bloom": {"q", "k", "q_rot", "k_rot"},  # its positions come in by a bias that the bridge does not show
    "mamba": {site.name for site in s.ALL_SITES} - {"resid_pre", "resid_post"},
}
STATIC = {site.name for site in s.ALL_SITES if site.is_static}


def bridge(folder: Path) -> Any:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    hf = plain(folder)
    return build_bridge_from_module(hf, type(hf).__name__, hf_config=hf.config, model_name="x", tokenizer=None)


@pytest.mark.parametrize("name", each(LACKING))
def test_a_bridge_gives_what_the_model_itself_gives(name: str, tmp_path: Path) -> None:
    own, model, trials = load(saved(name, tmp_path / name)), as_model(bridge(tmp_path / name)), text()
    assert isinstance(model, LensModel)
    assert {site.name for site in own.sites - model.sites} <= LACKING[name] | STATIC, model.withheld
    assert {site.name for site in model.sites} & LACKING[name] == set()
    ours, theirs = (m.run([trials], record=model.sites, n_recorded=5) for m in (model, own))
    for site in model.sites:
        expected = theirs.at(site)
        if name == "opt" and site == s.Q_ROT:
            expected = expected * own.spec.d_head**0.5  # here the scale is with the scores, there with the query
        torch.testing.assert_close(ours.at(site), expected, atol=1e-5, rtol=1e-5)
    assert_edits_agree(model, own)


def test_a_tokenizer_is_for_a_bridge_without_one(tmp_path: Path) -> None:
    given, tokenizer = bridge(saved("gpt2", tmp_path / "gpt2")), word_tokenizer()
    assert as_model(given, tokenizer).tokenizer is tokenizer and given.tokenizer is None
    given.tokenizer = tokenizer
    assert as_model(given).tokenizer is tokenizer
    with pytest.raises(InvalidArgument, match="already has a tokenizer"):
        as_model(given, pair_tokenizer())


def assert_edits_agree(model: Model, own: Model) -> None:
    before = own.logits(text())
    for site in model.sites - {s.Q, s.Q_ROT}:
        expected = edited_logits(own, text(), site, 1, lambda x: x.flip(1))
        found = edited_logits(model, text(), site, 1, lambda x: x.flip(1))
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4, msg=lambda m, n=site.name: f"{n}: {m}")
        assert (found - before).abs().max() > 1e-3


def test_what_is_withheld_says_why(tmp_path: Path) -> None:
    model = as_model(bridge(saved("gpt_neox", tmp_path / "neox")))
    with pytest.raises(MissingSite, match=r"'k_rot', which TransformerBridge does not provide \(met 0 times in layer"):
        model.run([text()], record=(s.K_ROT,))
    with pytest.raises(InvalidArgument, match=r"is a bridge, which cannot be instantiated again"):
        model.untrained_copy(0)


def test_a_native_bridge_has_untrained_copies() -> None:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    sizes = {"n_layers": 3, "d_model": 31, "n_heads": 6, "d_head": 8, "d_mlp": 53, "d_vocab": 97, "n_ctx": 61}
    given = TransformerBridge.boot_native(TransformerBridgeConfig(**sizes, act_fn="gelu", seed=1))
    model = as_model(given)
    one, same, other = (model.untrained_copy(seed) for seed in (3, 3, 4))
    assert one.sites == model.sites >= {s.RESID_POST, s.K, s.PATTERN, s.Z, s.MLP_POST}
    logits = [each.logits(text()) for each in (model, one, same, other)]
    assert torch.equal(logits[1], logits[2]) and given.cfg.seed == 1
    assert not any(torch.allclose(logits[at], logits[1]) for at in (0, 3))


def test_a_users_hooks_act_and_stay(tmp_path: Path) -> None:
    lens, seen = bridge(saved("llama", tmp_path / "llama")), list[str]()
    point = lens.hook_dict["blocks.1.hook_mlp_out"]
    point.add_hook(lambda value, hook: (seen.append(hook.name), 0 * value)[1])
    model = as_model(lens)
    run = model.run([text()], record=(s.MLP_OUT,), n_recorded=5)
    assert run.at(s.MLP_OUT)[1].abs().max() == 0 < run.at(s.MLP_OUT)[0].abs().max()
    assert len(point.fwd_hooks) == 1 and seen
    assert all(not other.fwd_hooks for other in lens.hook_dict.values() if other is not point)


@pytest.mark.skipif("HookedTransformer" not in vars(transformer_lens), reason="transformer-lens 4 has none")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "kind", [{}, {"n_key_value_heads": 2, "normalization_type": "RMS"}, {"parallel_attn_mlp": True}]
)
def test_a_hooked_transformer_gives_its_cache(kind: dict[str, Any]) -> None:
    config = transformer_lens.HookedTransformerConfig(
        n_layers=3, d_model=31, n_heads=6, d_head=8, d_mlp=53, d_vocab=97, n_ctx=61, act_fn="gelu", seed=1, **kind
    )
    lens: nn.Module = transformer_lens.HookedTransformer(config)
    model = as_model(lens)
    assert {site.name for site in s.ALL_SITES} - {site.name for site in model.sites} <= {"resid_mid", "state", *STATIC}
    run = model.run([text()], record=model.sites, n_recorded=5)
    _, cache = lens.run_with_cache(text().tokens)
    for site, name in ((s.K, "attn.hook_k"), (s.PATTERN, "attn.hook_pattern"), (s.RESID_POST, "hook_resid_post")):
        expected = torch.stack([cache[f"blocks.{layer}.{name}"] for layer in range(3)])
        torch.testing.assert_close(run.at(site), expected, atol=1e-6, rtol=1e-6)
    assert model.untrained_copy(3).sites == model.sites
