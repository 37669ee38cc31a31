"""Loading by path and by name: the same model, nothing executed, and one sentence for each way of being wrong."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bayesgeom.core import run as s
from bayesgeom.core.errors import CheckpointFault, InvalidArgument, MissingSite, NonFinite, TaskMismatch
from bayesgeom.models.config import quiet
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.resolve import as_model, load
from tests.families import D_VOCAB, N_CTX, saved
from tests.models.huggingface.test_sites import text


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("llama", tmp_path_factory.mktemp("loading") / "llama")


@pytest.fixture
def copied(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "llama"))


def change_config(path: Path, **changed: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changed))


def test_a_path_and_a_loaded_model_are_the_same(llama: Path) -> None:
    import transformers

    model = load(llama)
    twin = as_model(transformers.AutoModelForCausalLM.from_pretrained(llama))
    assert isinstance(model, HFModel) and isinstance(twin, HFModel)
    assert model.tokenizer is None and model.task is None
    assert model.spec.weights_hash == twin.spec.weights_hash
    assert model.spec.name == "llama" and twin.spec.name == "LlamaForCausalLM"
    assert torch.equal(model.logits(text()), twin.logits(text()))
    sizes = {"n_layers": 3, "n_heads": 6, "n_kv_heads": 2, "d_model": 60, "d_head": 10, "d_mlp": 29, "d_vocab": D_VOCAB}
    assert sizes.items() <= model.spec.to_dict().items()
    assert (model.spec.architecture, model.spec.dtype, model.spec.n_ctx) == ("llama", "float32", N_CTX)
    assert model.spec.score_scale == pytest.approx(10**-0.5)


def in_parts(path: Path, named: str) -> None:
    """The same weights, under the name that an index gives them."""
    weights = load_file(path / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, named)}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "model.safetensors").rename(path / "part.safetensors")


def test_an_index_of_weight_files_is_followed(copied: Path, llama: Path) -> None:
    in_parts(copied, "part.safetensors")
    assert load(copied).spec.weights_hash == load(llama).spec.weights_hash


def test_a_whole_file_beside_an_index_is_refused(copied: Path) -> None:
    in_parts(copied, "part.safetensors")
    (copied / "model.safetensors").write_bytes((copied / "part.safetensors").read_bytes())
    with pytest.raises(CheckpointFault, match=r"holds model.safetensors and model.safetensors.index.json"):
        load(copied)


@pytest.mark.parametrize(
    "named",
    [
        "weights.bin",
        "../other.safetensors",
        "/part.safetensors",
    ],
)
def test_an_index_that_names_anything_else_is_refused(copied: Path, named: str) -> None:
    in_parts(copied, named)
    torch.save(load_file(copied / "part.safetensors"), copied / "weights.bin")
    shutil.copy(copied / "part.safetensors", copied.parent / "other.safetensors")
    with pytest.raises(CheckpointFault, match=r"index\.json names '.*as a file of weights"):
        load(copied)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "cannot be read as JSON"), ("[]", "has no weight_map"), ('{"weight_map": 3}', "has no weight_map")],
)
def test_a_damaged_index_is_refused(copied: Path, text: str, reason: str) -> None:
    in_parts(copied, "part.safetensors")
    (copied / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointFault, match=reason):
        load(copied)


def test_an_index_that_names_a_part_that_is_not_there_is_refused(copied: Path) -> None:
    in_parts(copied, "lost.safetensors")
    with pytest.raises(CheckpointFault, match=r"names 'lost\.safetensors', which is not in"):
        load(copied)


@pytest.mark.parametrize(
    "changed",
    [
        {"_attn_implementation": "org/kernel"},
        {"_experts_implementation": "org/kernel"},
        {"text_config": {"_attn_implementation": "org/kernel"}},
    ],
)
def test_an_attention_implementation_from_the_hub_is_refused(copied: Path, changed: dict[str, Any]) -> None:
    change_config(copied, **changed)
    with pytest.raises(InvalidArgument, match=r"sets .*_implementation.* to '.*', which transformers may fetch"):
        load(copied)


def test_a_config_may_not_name_weights_elsewhere(copied: Path) -> None:
    change_config(copied, transformers_weights="../other.safetensors")
    with pytest.raises(InvalidArgument, match=r"sets transformers_weights to '\.\./other"):
        load(copied)


def test_a_tokenizer_next_to_the_weights_is_loaded(copied: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0, "red": 1, "blue": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(copied)
    model = load(copied)
    assert isinstance(model, HFModel) and model.tokenizer is not None
    assert model.tokenizer.encode("blue red", add_special_tokens=False) == [2, 1]


def test_bfloat16_keeps_its_sites(llama: Path) -> None:
    whole, half = load(llama), load(llama, dtype="bfloat16")
    assert half.spec.dtype == "bfloat16" and half.sites == whole.sites, half.withheld
    run, twin = (m.run([text()], record=(s.K_ROT, s.PATTERN, s.RESID_POST), n_recorded=5) for m in (half, whole))
    for site in (s.K_ROT, s.PATTERN, s.RESID_POST):
        assert run.at(site).dtype == torch.float32
        assert (run.at(site) - twin.at(site)).abs().max() < 0.1 * twin.at(site).abs().max()


def test_device_map_leaves_numbers_as_they_are(llama: Path) -> None:
    import transformers

    spread = load(llama, device_map="auto")
    whole = load(llama)
    trials = text()
    assert spread.sites == whole.sites
    assert torch.equal(spread.logits(trials), whole.logits(trials))
    # Weights on disk: parameters are on the meta device, and every site still tells the truth.
    devices: dict[str, Any] = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.layers.2": "disk",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    hf = transformers.AutoModelForCausalLM.from_pretrained(
        llama, device_map=devices, offload_folder=llama.parent / "offload"
    )
    assert hf.model.layers[1].self_attn.k_proj.weight.device.type == "meta"
    offloaded = as_model(hf)
    assert offloaded.sites == whole.sites, offloaded.withheld
    run, twin = (m.run([trials], record=m.sites, n_recorded=5) for m in (offloaded, whole))
    for site in whole.sites:
        torch.testing.assert_close(run.at(site), twin.at(site), atol=1e-6, rtol=1e-6)
    assert offloaded.spec.weights_hash == whole.spec.weights_hash and offloaded.spec.device == "cpu"


def test_untrained_copies_are_new_and_of_the_same_shape(llama: Path) -> None:
    model = load(llama, dtype="bfloat16")
    state = torch.random.get_rng_state()
    one, again, other = (model.untrained_copy(seed) for seed in (7, 7, 11))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert one.spec.weights_hash == again.spec.weights_hash
    assert len({one.spec.weights_hash, other.spec.weights_hash, model.spec.weights_hash}) == 3
    same = {"name": "", "weights_hash": ""}
    assert one.spec.to_dict() | same == model.spec.to_dict() | same
    assert one.sites == model.sites and one.spec.name == "llama at initialization 7"


def test_a_prompt_longer_than_the_context_is_refused(llama: Path) -> None:
    with pytest.raises(TaskMismatch, match=rf"sequences have {N_CTX + 1} tokens; llama has positions for {N_CTX}"):
        load(llama).run([text(n_pos=N_CTX + 1)])
    assert load(saved("mamba", llama.parent / "mamba")).spec.n_ctx is None


def test_a_hub_name_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        CheckpointFault, match=r"'somebody/some-model' is neither .* could not be loaded from the Hugging Face hub: .+"
    ) as refused:
        load("somebody/some-model", revision="main")
    assert "\n" not in str(refused.value)


def test_a_directory_without_safetensors(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with pytest.raises(
        CheckpointFault, match=r"contains no safetensors \(there is pytorch_model\.bin, and opening a pick"
    ):
        load(copied)
    (copied / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointFault, match=r"contains no safetensors \(it has none\)"):
        load(copied)


def test_truncated_or_missing_weights(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointFault, match=r"lack 1 tensor of LlamaForCausalLM: model\.layers\.1\.self_attn\.k"):
        load(copied)
    data = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointFault, match=r"truncated or corrupt"):
        load(copied)


def test_weights_of_another_shape(copied: Path) -> None:
    change_config(copied, intermediate_size=31)
    named = (
        r"shapes that its config requires in 9 tensors: .*gate_proj\.weight is \(29, 60\), not \(31, 60\).*config\.json"
    )
    with pytest.raises(CheckpointFault, match=named) as refused:
        load(copied)
    assert "\n" not in str(refused.value)


def test_weights_that_are_no_numbers(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    weights["model.layers.1.self_attn.k_proj.weight"][3, 5] = torch.nan
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NonFinite, match=r"llama returns NaN or infinite logits"):
        load(copied)


def test_code_that_comes_with_a_model_is_not_run(copied: Path) -> None:
    (copied / "modeling.py").write_text("raise SystemExit('ran')")
    change_config(
        copied, model_type="novel", auto_map={"AutoConfig": "modeling.C", "AutoModelForCausalLM": "modeling.M"}
    )
    with pytest.raises(InvalidArgument, match=r"names own code.*trust_remote_code"):
        load(copied)
    change_config(copied, auto_map={})
    with pytest.raises(InvalidArgument, match=r"needs code that comes with it"):
        load(copied)


def test_sharded_heads_are_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    hf = transformers.AutoModelForCausalLM.from_pretrained(llama)
    monkeypatch.setattr(hf, "_tp_size", 2)
    with pytest.raises(InvalidArgument, match=r"tensor-parallel.*device_map"):
        as_model(hf)


def louder(out: Any) -> Any:
    return (1.5 * out[0], *out[1:]) if isinstance(out, tuple) else 1.5 * out


def test_a_site_whose_identity_fails_is_withheld(llama: Path) -> None:
    """Somebody's own hook, or another scale, makes one layer behave otherwise than its parts say."""
    import transformers

    hf = transformers.AutoModelForCausalLM.from_pretrained(llama)
    hf.model.layers[2].self_attn.register_forward_hook(lambda m, i, out: louder(out))
    model = as_model(hf)
    assert {s.K_ROT, s.PATTERN, s.V, s.MLP_OUT} < model.sites
    for site in (s.Z, s.ATTN_OUT, s.W_O):
        reason = rf"'{site.name}', which Llama\S+ does not provide \(identity W_O z \+ b = attn_out fails .* layer 2\)"
        with pytest.raises(MissingSite, match=reason):
            model.run([text()], record=(site,))
    other = transformers.AutoModelForCausalLM.from_pretrained(llama)
    other.model.layers[2].self_attn.scaling *= 1.5
    model = as_model(other)
    assert model.sites.isdisjoint({s.Q_ROT, s.K_ROT, s.Q, s.K, s.TOKEN_KEYS, s.W_K}) and s.PATTERN in model.sites
    with pytest.raises(
        MissingSite, match=r"\(identity softmax\(scale · q_rot·k_rot\) = pattern fails by .* in layer 2"
    ):
        model.run([text()], record=(s.K,))


def test_loggers_of_libraries_are_restored_after_loading() -> None:
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    with quiet():
        assert {logger.level for logger in loggers} == {logging.ERROR}
    assert [logger.level for logger in loggers] == levels
