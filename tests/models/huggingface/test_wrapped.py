"""Quantized, compiled and adapted models: unwrapped, with the numbers of the model inside, or refused."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torchao import quantization

import bayesgeom
from bayesgeom.core import run as s
from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.models.huggingface import loading
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.huggingface.weights import weights_identity
from tests.families import _sizes, lively
from tests.models.huggingface.test_sites import text

pytestmark = [  # of transformers, when peft builds a model, and of torch, when it imports its compiler
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


def llama() -> Any:
    import transformers

    torch.manual_seed(0)
    return lively(transformers.LlamaForCausalLM(transformers.LlamaConfig(**_sizes()))).eval()


@pytest.mark.slow
def test_compiled_modules_are_unwrapped() -> None:
    hf = llama()
    with pytest.warns(UserWarning, match="LlamaForCausalLM is compiled: it is measured as it is written"):
        model = bayesgeom.as_model(torch.compile(hf))
    assert isinstance(model, HFModel) and model.module is hf
    assert torch.equal(model.logits(text()), HFModel(llama()).logits(text()))


@pytest.mark.exhaustive
def test_a_module_that_was_compiled_in_place_is_measured_as_it_is_written() -> None:
    hf, plain = llama(), HFModel(llama())
    hf.model.layers[1].compile()
    with pytest.warns(UserWarning, match="it is measured as it is written"):
        model = bayesgeom.as_model(hf)
    assert model.sites == plain.sites
    runs = [own.run([text()], record=[s.PATTERN], n_recorded=2).recorded[s.PATTERN] for own in (model, plain)]
    logits = [own.replayer().baseline(text()).logits for own in (model, plain)]
    torch.testing.assert_close(*runs)
    torch.testing.assert_close(*logits)


def adapted(**options: Any) -> Any:
    """A model with a LoRA adapter of its queries and keys that changes its predictions."""
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"], task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(llama(), config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, own in model.named_parameters():
            if "lora_" in name:
                own.copy_(0.5 * torch.randn(own.shape, generator=generator))
    return model.eval()


def test_an_adapted_model_is_measured_with_its_adapter() -> None:
    wrapped = adapted()
    model, plain = bayesgeom.as_model(wrapped), HFModel(llama())
    merged = HFModel(adapted().merge_and_unload())
    # In float32 they round differently. A relative error of 2⁻²⁴ in every weight changes these logits by up to 6e-4
    # (five draws), since the blocks amplify it 10⁴ times; the two differ by 1.3e-3, and by 4 from the model without it.
    torch.testing.assert_close(model.logits(text()), merged.logits(text()), atol=1e-2, rtol=0)
    assert (model.logits(text()) - plain.logits(text())).abs().max() > 0.1
    assert model.sites == merged.sites == plain.sites, model.withheld
    torch.testing.assert_close(
        *(own.static(s.W_K, torch.arange(3), 1) for own in (model, merged)), atol=1e-5, rtol=1e-5
    )
    assert len({own.spec.weights_hash for own in (model, merged, plain)}) == 3


def test_adapted_and_merged_models_agree_without_rounding() -> None:
    apart, merged = (HFModel(hf) for hf in (adapted().double().get_base_model(), adapted().double().merge_and_unload()))
    torch.testing.assert_close(apart.logits(text()), merged.logits(text()), atol=1e-9, rtol=0)


def hash_of(wrapped: Any) -> str:
    return weights_identity(wrapped.get_base_model())


@pytest.mark.parametrize("options", [{"lora_alpha": 64}, {"use_rslora": True}, {"use_dora": True}])
def test_the_hash_tells_adapters_of_the_same_tensors_apart(options: dict[str, Any]) -> None:
    assert hash_of(adapted(lora_alpha=2)) == hash_of(adapted(lora_alpha=2))
    assert hash_of(adapted(lora_alpha=2)) != hash_of(adapted(**{"lora_alpha": 2, **options}))


def test_the_hash_names_the_adapters_that_are_active() -> None:
    wrapped = adapted()
    wrapped.add_adapter("second", peft.LoraConfig(r=2, target_modules=["q_proj", "k_proj"], task_type="CAUSAL_LM"))
    first = hash_of(wrapped)
    with wrapped.disable_adapter():
        disabled = hash_of(wrapped)
    assert hash_of(wrapped) == first  # enabled again
    wrapped.set_adapter("second")
    second = hash_of(wrapped)
    assert len({first, second, disabled}) == 3
    wrapped.set_adapter("default")
    assert hash_of(wrapped) == first


def saved(tmp_path: Path, **options: Any) -> Path:
    """The directory of an adapter, next to that of its base model."""
    base, folder = tmp_path / "base", tmp_path / "adapter"
    wrapped = adapted(**options)
    llama().save_pretrained(base)
    wrapped.peft_config["default"].base_model_name_or_path = str(base)
    wrapped.save_pretrained(folder)
    return folder


def rewritten(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize(
    ("renamed", "fault"),
    [
        (lambda name: name.replace("layers.1.", "layers.11."), r"lacks \d+ tensors?: .*layers\.1\.self_attn"),
        (lambda name: f"module.{name}", r"lacks \d+ tensors?: base_model"),
    ],
)
def test_an_adapter_whose_names_do_not_match_is_refused(tmp_path: Path, renamed: Any, fault: str) -> None:
    file = saved(tmp_path) / "adapter_model.safetensors"
    save_file({renamed(name): tensor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(CheckpointFault, match=fault):
        bayesgeom.load(file.parent)


def test_an_adapter_of_a_deeper_model_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path) / "adapter_model.safetensors"
    tensors = load_file(file)
    deeper = {name.replace("layers.1.", "layers.11."): tensor.clone() for name, tensor in tensors.items()}
    save_file({**tensors, **deeper}, file)
    with pytest.raises(CheckpointFault, match=r"holds, without a layer, \d+ tensors?: .*layers\.11\."):
        bayesgeom.load(file.parent)


@pytest.mark.parametrize(("given", "used"), [({}, "v1"), ({"revision": None}, "v1"), ({"revision": "v2"}, "v2")])
def test_the_base_model_has_the_revision_of_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], used: str
) -> None:
    folder = saved(tmp_path)
    rewritten(folder / "adapter_config.json", base_model_name_or_path="owner/base", revision="v1")
    calls: list[tuple[Any, Any]] = []
    made = HFModel(llama())

    def recorded(source: Any, options: Any, **_: Any) -> HFModel:
        calls.append((source, options))
        return made

    monkeypatch.setattr(loading, "load_huggingface", recorded)
    bayesgeom.load(folder, **given)
    assert calls == [("owner/base", {"revision": used})]


def test_adapter_directories(tmp_path: Path) -> None:
    folder, wrapped = saved(tmp_path), adapted()
    found = bayesgeom.load(folder)
    assert found.spec.name == "adapter"
    torch.testing.assert_close(found.logits(text()), bayesgeom.as_model(wrapped).logits(text()), atol=1e-5, rtol=1e-5)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointFault, match=r"holds no adapter_model\.safetensors; adapters in pickles are not read"):
        bayesgeom.load(folder)


def test_an_adapter_without_base_model_or_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": null}')
    with pytest.raises(CheckpointFault, match=r"adapter_config\.json names no base model"):
        bayesgeom.load(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    save_file({"weight": torch.ones(2, 3)}, tmp_path / "adapter_model.safetensors")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(InvalidArgument, match=r"is a PEFT adapter: install peft \(pip install peft\) to load it"):
        bayesgeom.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "effect"),
    [
        (lambda: peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"), "prepends learned vectors"),
        (
            lambda: peft.AdaptionPromptConfig(adapter_len=3, adapter_layers=1, task_type="CAUSAL_LM"),
            "adds prompts to",
        ),
        (
            lambda: peft.LoraConfig(alora_invocation_tokens=[1], target_modules=["q_proj"], task_type="CAUSAL_LM"),
            "acts after invocation tokens only",
        ),
    ],
    ids=["prompt tuning", "adaption prompt", "activated LoRA"],
)
def test_adapters_that_do_more_than_change_weights_are_refused(config: Any, effect: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{effect}.*: only those of the weights"):
        bayesgeom.as_model(peft.get_peft_model(llama(), config()))


def test_weights_of_int8_are_measured_as_they_multiply() -> None:
    hf, plain = llama(), HFModel(llama())
    quantization.quantize_(hf.model, quantization.Int8WeightOnlyConfig())
    model = HFModel(hf)
    assert model.sites == plain.sites and model.spec.weights_hash != plain.spec.weights_hash
    assert model.spec.quantization == "weights of class Int8Tensor, dequantized in every product"
    exact = hf.model.layers[1].self_attn.k_proj.weight.dequantize()
    found = model.static(s.W_K, torch.arange(3), 1).flatten(0, 1)
    torch.testing.assert_close(found, exact, atol=1e-6, rtol=1e-6)
    difference = (found - plain.static(s.W_K, torch.arange(3), 1).flatten(0, 1)).abs().max()
    assert 0 < difference < 0.02 * exact.abs().max()
    assert 1e-4 < (model.logits(text()) - plain.logits(text())).abs().max() < 1
