"""Families whose blocks differ, give lists, clip in place or scale what they write; models that are refused."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesgeom
from bayesgeom.ablations.batteries import every_head, everything
from bayesgeom.core import run as s
from bayesgeom.core.edits import Replace
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.models.adapters.proof import sentinel_trials
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.resolve import load
from bayesgeom.subspaces.base import InterventionSite, Sample
from bayesgeom.tasks.bijection import Bijection
from tests.diagnosis.test_streamed import assert_alike
from tests.families import D_VOCAB, HYBRID, _sizes, each, lively
from tests.models.huggingface.test_sites import _Nothing, first, text
from tests.supported import tiny

HEADS = {s.Q, s.K, s.Q_ROT, s.K_ROT, s.V, s.Z, s.PATTERN}
SUMS = {s.RESID_PRE, s.ATTN_OUT, s.RESID_MID, s.MLP_OUT, s.RESID_POST}
EVERY = frozenset(s.ALL_SITES) - {s.ROUTER_LOGITS, s.EXPERT_WEIGHTS, s.STATE}  # of a transformer without experts
MIXED = frozenset(s.ALL_SITES) - {s.MLP_POST, s.STATE}
_OLMO: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 6,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}


def built(kind: str, **sizes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**_sizes(**sizes))
    torch.manual_seed(0)
    return lively(transformers.AutoModelForCausalLM.from_config(config)).eval()


def hidden_states(hf: Any, blocks: str) -> list[Tensor]:
    """What entered and left every block, by plain hooks."""
    found: list[Tensor] = []

    def keep(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found.extend(
            (args[0] if args else kwargs["hidden_states"], output[0] if isinstance(output, list) else first(output))
        )

    handles = [block.register_forward_hook(keep, with_kwargs=True) for block in hf.get_submodule(blocks)]
    with torch.no_grad():
        hf(input_ids=text().tokens, use_cache=False)
    for handle in handles:
        handle.remove()
    return [x.clone() for x in found]


@pytest.mark.parametrize("kind", ["Qwen3_5Text", pytest.param("OlmoHybrid", marks=pytest.mark.families)])
def test_attention_in_some_layers_only(kind: str) -> None:
    own = HYBRID if kind == "Qwen3_5Text" else {**_OLMO, "layer_types": HYBRID["layer_types"]}
    hf = built(kind, **own)
    model = HFModel(hf)
    assert model.sites >= SUMS and not HEADS & model.sites, model.withheld
    assert model.withheld[s.K] == "only in layers 2"
    assert {s.K, s.K_ROT, s.Q_ROT, s.TOKEN_KEYS, s.W_K} <= model.partial_sites.keys()
    assert model.partial_sites.pop(s.STATE) == (0, 1)
    assert set(model.partial_sites.values()) == {(2,)} and model.layers_of(s.K, s.RESID_PRE) == (2,)
    run = model.run([text()], record=SUMS, n_recorded=5)
    for layer in range(3):
        entered, left = hidden_states(hf, "model.layers")[2 * layer : 2 * layer + 2]
        torch.testing.assert_close(run.at(s.RESID_PRE)[layer], entered, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(run.at(s.RESID_POST)[layer], left, atol=1e-5, rtol=1e-5)
        both = run.at(s.RESID_PRE)[layer] + run.at(s.ATTN_OUT)[layer] + run.at(s.MLP_OUT)[layer]
        torch.testing.assert_close(both, left, atol=1e-4, rtol=1e-4)


def test_sites_of_some_layers_hold_what_plain_hooks_see() -> None:
    hf = built("OlmoHybrid", **_OLMO)
    model, trials, seen = HFModel(hf), text(), list[Tensor]()
    assert {site: model.partial_sites[site] for site in HEADS} == dict.fromkeys(HEADS, (1,))
    attention = hf.model.layers[1].self_attn
    handles = [
        attention.o_proj.register_forward_pre_hook(lambda _m, args: seen.append(args[0])),
        attention.v_proj.register_forward_hook(lambda _m, _a, out: seen.append(out)),
    ]
    with torch.no_grad():
        hf(input_ids=trials.tokens, use_cache=False)
    for handle in handles:
        handle.remove()
    values, z = seen
    run = model.run([trials], record=[s.Z, s.V, s.PATTERN, s.W_K, s.RESID_POST], n_recorded=5)
    assert run.layers == {s.Z: (1,), s.V: (1,), s.PATTERN: (1,), s.W_K: (1,)} and len(run.at(s.RESID_POST)) == 3
    torch.testing.assert_close(run.at(s.Z)[0].flatten(2), z, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(run.at(s.V)[0].flatten(2), values, atol=1e-6, rtol=1e-6)
    keys = run.at(s.W_K)[0].flatten(0, 1)
    torch.testing.assert_close(keys, attention.k_proj.weight, atol=1e-5, rtol=1e-5)
    other = run.within((1,), (s.Z, s.RESID_POST))
    assert other.spec.n_layers == 1 and not other.layers
    torch.testing.assert_close(other.at(s.RESID_POST)[0], run.at(s.RESID_POST)[1])


def test_probes_measure_the_layers_that_have_their_sites() -> None:
    model, task = HFModel(built("OlmoHybrid", **_OLMO)), Bijection(n_values=11, n_pairs=5)
    found = bayesgeom.diagnose(model, task, n=23, n_untrained=1, seed=0)
    assert not found.skipped.keys() & {"key_overlap", "attention_entropy", "qk_alignment"}
    entropy, keys = found["attention_entropy"], found["key_overlap"]
    assert entropy.entropy_bits.value.shape == (3, 6)
    assert np.isfinite(entropy.entropy_bits.value).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(entropy.entropy_bits.value[[0, 2]]).all()
    run = model.run([task.sample(23, seed=0)], record=[s.PATTERN], n_recorded=23)
    assert run.at(s.PATTERN).shape[:2] == (1, 23)
    assert np.isfinite(keys.mean_overlap.value[0, 0]).tolist() == [False, True, False]
    assert keys.headlines()[0].label.endswith("layer 1") and np.isfinite(keys.headlines()[0].value)
    assert "key_overlap: only layers 1\n" in found.summary()
    assert np.isfinite(found["belief_readout"].total_variation.value[0]).all()  # the stream exists in every layer
    assert found.provenance["layers"]["qk_alignment"] == [1]
    untrained = entropy.entropy_bits.baselines[0].value
    assert np.isfinite(untrained).all(axis=1).tolist() == [False, True, False]


@pytest.mark.families
def test_a_capture_of_a_hybrid_holds_the_layers_of_every_site(tmp_path: Path) -> None:
    model, task = HFModel(built("OlmoHybrid", **_OLMO)), Bijection(n_values=11, n_pairs=5)
    names = ["qk_alignment", "attention_entropy"]
    out = bayesgeom.capture(model, task, out=tmp_path / "c", n=17)
    captured = load(out)
    partial = captured.partial_sites
    assert {partial[site] for site in (s.K, s.PATTERN, s.W_K_GRAM)} == {(1,)} and partial[s.STATE] == (0, 2)
    direct = bayesgeom.diagnose(model, task, n=17, n_untrained=0, probes=names)
    found = bayesgeom.diagnose(out, n_untrained=0, probes=names)
    assert found.provenance["layers"] == direct.provenance["layers"] == {name: [1] for name in names}
    for name in names:
        assert_alike(direct[name], found[name])


def test_queries_that_are_clipped_in_place_are_not_believed() -> None:
    clipped, plain = (HFModel(built("Olmo", clip_qkv=clip)) for clip in (0.5, None))
    assert {s.Q, s.K, s.W_K, s.TOKEN_KEYS} <= clipped.withheld.keys() and {s.Q, s.K} <= plain.sites
    assert "|q| = |q_rot| fails" in clipped.withheld[s.Q] and {s.K_ROT, s.V, s.Z} <= clipped.sites


def test_writes_that_are_scaled(folder: Callable[[str], Path]) -> None:
    factors = {
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.1,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
    }
    hf = built("Granite", **factors)
    model = HFModel(hf)
    assert model.sites == EVERY, model.withheld
    trials, run = text(), model.run([text()], record=SUMS, n_recorded=5)
    found: list[Tensor] = []
    part = hf.model.layers[1].self_attn
    handle = part.register_forward_hook(lambda _m, _i, out: found.append(first(out)))
    with torch.no_grad():
        hf(input_ids=trials.tokens, use_cache=False)
    handle.remove()
    torch.testing.assert_close(run.at(s.ATTN_OUT)[1], 0.22 * found[0], atol=1e-5, rtol=1e-5)
    handle = model.point(s.ATTN_OUT, 1).register_forward_hook(lambda _m, _i, x: 0 * x)
    ablated = model.logits(trials)
    handle.remove()
    handle = part.register_forward_hook(lambda _m, _i, out: (0 * out[0], *out[1:]))
    with torch.no_grad():
        torch.testing.assert_close(ablated, hf(input_ids=trials.tokens, use_cache=False).logits, atol=1e-5, rtol=1e-5)
    handle.remove()


def test_experts_that_do_not_run_fused_run_one_by_one() -> None:
    hf = built("Mixtral", intermediate_size=29, num_local_experts=3, num_experts_per_tok=2)
    with pytest.warns(UserWarning, match=r"fused experts \(grouped_mm\) cannot run here \(strides should be"):
        assert HFModel(hf).sites == MIXED


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "LlamaForSequenceClassification",
            r"is not a causal language model: for 2 sequences of 7 tokens and 97 ids it",
        ),
        ("T5ForConditionalGeneration", r"is an encoder with a decoder, not a causal language model\. Pass a decoder"),
        ("BertForMaskedLM", r"BertForMaskedLM is not causal"),
    ],
)
def test_what_is_no_causal_language_model_is_refused(kind: str, message: str) -> None:
    import transformers as t

    sizes = _sizes(pad_token_id=0)
    match kind:
        case "T5ForConditionalGeneration":
            hf: Any = t.T5ForConditionalGeneration(
                t.T5Config(vocab_size=D_VOCAB, d_model=60, num_layers=3, num_heads=6, d_kv=10, d_ff=53)
            )
        case "BertForMaskedLM":
            hf = t.BertForMaskedLM(t.BertConfig(**sizes))
        case _:
            hf = getattr(t, kind)(t.LlamaConfig(**sizes))
    with pytest.raises(InvalidArgument, match=message):
        HFModel(hf.eval())


def test_ablations_that_a_model_does_not_allow_cost_no_diagnosis(folder: Callable[[str], Path]) -> None:
    task = Bijection(n_values=11, n_pairs=5)
    found = bayesgeom.diagnose(load(folder("mamba")), task, n=5, n_untrained=0, ablations=True, probes="calibration")
    assert set(found) == {"calibration"}
    assert "battery 'all' requires site 'attn_out'" in found.skipped["ablation"]


def test_values_narrower_than_keys_and_their_heads() -> None:
    hf = built(
        "DeepseekV3",
        num_key_value_heads=6,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=6,
        v_head_dim=10,
        first_k_dense_replace=3,
    )
    model, trials = HFModel(hf), text()
    assert {s.Q_ROT, s.K_ROT, s.V, s.PATTERN, s.Z, s.W_O} <= model.sites
    assert (model.spec.d_head, model.spec.d_value, model.spec.to_dict()["d_value"]) == (14, 10, 10)
    run = model.run([trials], record=(s.V, s.PATTERN, s.Z), n_recorded=len(trials))
    attention, seen = hf.model.layers[1].self_attn, list[Tensor]()
    handles = [
        attention.kv_b_proj.register_forward_hook(lambda _m, _args, out: seen.append(out)),
        attention.o_proj.register_forward_pre_hook(lambda _m, args: seen.append(args[0])),
    ]
    hf.set_attn_implementation("eager")
    with torch.no_grad():
        pattern = hf(input_ids=trials.tokens, use_cache=False, output_attentions=True).attentions[1]
    for handle in handles:
        handle.remove()
    v = seen[0].reshape(*trials.tokens.shape, 6, 8 + 10)[..., 8:]
    torch.testing.assert_close(run.at(s.V)[1], v, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run.at(s.PATTERN)[1], pattern, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(run.at(s.Z)[1].flatten(2), seen[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["BitNet", "Qwen3Next"])
@pytest.mark.slow
def test_heads_before_a_gate_or_a_norm(kind: str) -> None:
    hf = built(kind, **(HYBRID if kind == "Qwen3Next" else {}))
    model, trials, layer = HFModel(hf), text(), 2
    assert s.W_O not in model.sites and layer in model.layers_of(s.Z)
    part = hf.model.layers[layer].self_attn.o_proj
    seen: list[Tensor] = []
    handle = part.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    hook = model.point(s.Z, layer).register_forward_hook(lambda _m, _i, z: z * (torch.arange(6) != 4)[:, None])
    model.logits(trials)
    hook.remove()
    handle.remove()
    heads = seen[0].unflatten(-1, (6, -1)).abs().amax(dim=(0, 1, 3))
    assert (heads == 0).tolist() == [False, False, False, False, True, False]


def test_a_model_that_mixes_its_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = tiny("llama")
    norm = hf.model.norm
    own = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: own(x - x.mean(0)))
    with pytest.raises(InvalidArgument, match=r"^\w+ mixes the sequences of a batch: without the others, .*logits\.$"):
        HFModel(hf)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in hf.modules())


def test_a_gate_with_a_bias_withholds_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = built("BitNet")
    norm = hf.model.layers[1].self_attn.attn_sub_norm
    own = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: own(x) + 0.1)
    assert HFModel(hf).withheld[s.Z] == "W_O of layer 1 reads beyond z"


def test_heads_of_some_layers_are_ablated_and_edited() -> None:
    hf = built("Qwen3_5Text", **HYBRID)
    model, trials = HFModel(hf), text()
    assert [own.label for own in every_head(model)] == [f"L2H{head}" for head in range(6)]
    assert len(everything(model)) == 6 + 3 * 3, "six heads, and three kinds of component in three layers"
    replayer = model.replayer()
    edit = Replace(site=s.Z, layer=2, mode="zero", heads=(4,))
    (found,) = replayer.logits(baseline := replayer.baseline(trials), [[edit]], _Nothing())

    def zero(_module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return ((args[0].unflatten(-1, (6, 16)) * (torch.arange(6) != 4)[:, None]).flatten(-2),)

    handle = hf.model.layers[2].self_attn.o_proj.register_forward_pre_hook(zero)
    with torch.no_grad():
        expected = hf(input_ids=trials.tokens, use_cache=False).logits
    handle.remove()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (found - baseline.logits).abs().max() > 1e-3, "the head matters"
    task, place = Bijection(n_values=5, n_pairs=4), InterventionSite(s.Z, layers=(2,))
    place.check_in(model)
    run = model.run(task.stream(8, seed=0), record=(s.Z,), n_recorded=8)
    points = Sample(model=model, run=run, place=place, seed=0).points(2)
    torch.testing.assert_close(points, run.at(s.Z)[0].flatten(0, 1).flatten(1).double())
    with pytest.raises(MissingSite, match=r"requires site 'z', .*only in layers 2"):
        InterventionSite(s.Z, layers=(1, 2)).check_in(model)
    with pytest.raises(MissingSite, match=r"only in layers 2"):
        InterventionSite(s.Z).check_in(model)


@pytest.mark.parametrize("name", [pytest.param("falcon_h1", marks=()), *each(("bamba", "nemotron_h", "zamba2"))])
def test_sites_do_not_depend_on_the_seed(name: str) -> None:
    """Untrained networks, whose branches are small, and those whose every part matters."""
    found = set[frozenset[tuple[s.Site, tuple[int, ...]]]]()
    for hf in [tiny(name), *(untrained(name, seed) for seed in (0, 1, 2))]:
        model = HFModel(hf)
        assert {s.RESID_PRE, s.RESID_POST} <= model.sites and s.STATE not in model.withheld.keys() - model.partial_sites
        found.add(frozenset((site, model.layers_of(site)) for site in s.ALL_SITES))
    assert len(found) == 1


@pytest.mark.parametrize("size", [1e-2, 1.0])
def test_a_third_branch_is_no_part_of_two(size: float) -> None:
    """However small it is: then only what the parts write is withheld, with the equation that fails."""
    hf = built("Llama")
    for block in hf.model.layers:
        third = torch.randn(60, generator=torch.Generator().manual_seed(5))
        vars(block)["forward"] = partial(_with_branch, block.forward, size * 1e-2 * third)
    model = HFModel(hf)
    assert {s.RESID_PRE, s.RESID_POST, s.K, s.PATTERN, s.Z} <= model.sites
    assert not {s.ATTN_OUT, s.MLP_OUT, s.RESID_MID} & model.sites


def _with_branch(forward: Callable[..., Tensor], third: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return forward(*args, **kwargs) + third


def test_a_branch_that_shows_under_edits_alone_leaves_the_stream() -> None:
    hf = built("Llama")
    for block in hf.model.layers:
        vars(block)["forward"] = partial(_with_threshold, block.forward, largest_input(hf, block))
    model = HFModel(hf)
    assert {s.RESID_PRE, s.RESID_POST, s.K, s.PATTERN, s.Z} <= model.sites
    for site in (s.ATTN_OUT, s.RESID_MID, s.MLP_OUT):
        assert "resid_post fails by" in model.withheld[site]


def largest_input(hf: Any, block: nn.Module) -> float:
    tokens = sentinel_trials(D_VOCAB, None, "cpu").tokens
    found = list[float]()
    handle = block.register_forward_pre_hook(lambda _module, args: found.append(float(args[0].abs().max())))
    with torch.no_grad():
        hf(input_ids=tokens)
    handle.remove()
    return found[0]


def _with_threshold(forward: Callable[..., Tensor], most: float, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return forward(x, *args, **kwargs) + 9 * (x.abs() - most).relu()


def test_norms_of_each_head_are_part_of_the_proof() -> None:
    model = HFModel(built("StableLm", qk_layernorm=True))
    assert model.sites == EVERY, model.withheld


def test_a_saturated_soft_cap_is_named() -> None:
    model = HFModel(built("Gemma2", head_dim=14, final_logit_softcapping=0.01))
    with pytest.raises(MissingSite, match="no path from resid_post of the last layer to its logits"):
        model.run([text()], record=(s.LOGIT_LENS,))


def untrained(name: str, seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(tiny(name).config).eval()
