"""GGUF files: what they say of their bits, what is loaded from them, and what is refused."""

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, quants

import bayesgeom
from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.core.run import Trials
from bayesgeom.models.base import Model

D, D_MLP, N_VOCAB, N_LAYERS, N_HEADS = 64, 96, 37, 2, 2


def write_tiny(file: Path, *, kind: Kind = Kind.Q4_0, seed: int = 0, without: str = "") -> dict[str, np.ndarray]:
    """A Llama of random weights, its matrices in blocks of this kind; what they are after dequantization."""
    rng, writer = np.random.default_rng(seed), GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(41)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(D_MLP)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    shapes = {"token_embd": (N_VOCAB, D)}
    for i in range(N_LAYERS):
        shapes |= {f"blk.{i}.attn_{name}": (D, D) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_gate": (D_MLP, D), f"blk.{i}.ffn_up": (D_MLP, D), f"blk.{i}.ffn_down": (D, D_MLP)}
        shapes |= {f"blk.{i}.attn_norm": (D,), f"blk.{i}.ffn_norm": (D,)}
    shapes |= {"output_norm": (D,), "output": (N_VOCAB, D)}
    stored = {}
    for name, shape in shapes.items():
        if name == without:
            continue
        weights = rng.normal(scale=0.3, size=shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones(shape, dtype=np.float32))
            continue
        blocks = quants.quantize(weights, kind)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
        stored[name] = quants.dequantize(blocks, kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return stored


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    return tmp_path / "tiny.gguf", write_tiny(tmp_path / "tiny.gguf")


def test_weights_are_those_that_the_blocks_stand_for(tiny: tuple[Path, dict[str, np.ndarray]]) -> None:
    file, stored = tiny
    model = bayesgeom.load(file)
    weights = model.module.state_dict()
    for i in range(N_LAYERS):
        for ours, theirs in (("down", "down_proj"), ("gate", "gate_proj"), ("up", "up_proj")):
            found = weights[f"model.layers.{i}.mlp.{theirs}.weight"].numpy()
            np.testing.assert_array_equal(found, stored[f"blk.{i}.ffn_{ours}"])
    assert model.spec.quantization == "read from GGUF (Q4_0 in 16 tensors, F32 in 5 tensors)"
    assert model.spec.to_dict()["quantization"] == model.spec.quantization
    assert model.spec.name == "tiny"


def test_the_directory_of_a_file_is_the_file(tiny: tuple[Path, dict[str, np.ndarray]]) -> None:
    file, _ = tiny
    one, other = bayesgeom.load(file), bayesgeom.load(str(file.parent))
    assert one.spec == other.spec
    write_tiny(file.parent / "other.gguf", seed=1)
    with pytest.raises(InvalidArgument, match=r"holds 2 GGUF files \(other.gguf, tiny.gguf\); name one of them"):
        bayesgeom.load(file.parent)


def test_it_can_be_saved_and_copied(tiny: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    file, _ = tiny
    model = bayesgeom.load(file)
    model.module.save_pretrained(tmp_path / "saved")
    again = bayesgeom.load(tmp_path / "saved")
    assert again.spec.quantization == "" and "quantization" not in again.spec.to_dict()
    assert torch.equal(_logits(model), _logits(again))
    fresh = model.untrained_copy(3)
    assert fresh.spec.quantization == ""
    assert not torch.equal(_logits(model), _logits(fresh))


def test_other_bits_or_another_type_are_another_model(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a.gguf")
    write_tiny(tmp_path / "b.gguf", seed=1)
    hashes = [bayesgeom.load(tmp_path / name).spec.weights_hash for name in ("a.gguf", "b.gguf")]
    hashes.append(bayesgeom.load(tmp_path / "a.gguf", dtype="bfloat16").spec.weights_hash)
    assert len({*hashes}) == 3
    write_tiny(tmp_path / "c.gguf", kind=Kind.Q8_0)
    assert bayesgeom.load(tmp_path / "c.gguf").spec.quantization.startswith("read from GGUF (Q8_0")


def test_bad_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no.gguf").write_bytes(b"not that")
    with pytest.raises(CheckpointFault, match=r"no.gguf is not a complete GGUF file .*magic invalid"):
        bayesgeom.load(tmp_path / "no.gguf")
    write_tiny(tmp_path / "whole.gguf")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:300])
    with pytest.raises(CheckpointFault, match=r"cut.gguf is not a complete GGUF file"):
        bayesgeom.load(tmp_path / "cut.gguf")
    write_tiny(tmp_path / "lacking.gguf", without="blk.1.ffn_up")
    with pytest.raises(CheckpointFault, match=r"lacking.gguf lack 1 tensor of LlamaForCausalLM: .*1.mlp.up_proj"):
        bayesgeom.load(tmp_path / "lacking.gguf")
    with pytest.raises(InvalidArgument, match="revision is for models on the Hugging Face hub"):
        bayesgeom.load(tmp_path / "whole.gguf", revision="main")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InvalidArgument, match=r"whole\.gguf needs gguf: pip install '\.\[gguf\]'"):
        bayesgeom.load(tmp_path / "whole.gguf")


def _logits(model: Model) -> torch.Tensor:
    trials: Trials = bayesgeom.tasks.Bijection(n_values=5, n_pairs=4).sample(3, seed=1)
    with torch.no_grad():
        return model.logits(trials)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(n_tensors: int, n_values: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values)


def value(kind: int) -> bytes:
    """The start of a header whose one value has this type."""
    return header(1, 1) + text("a") + struct.pack("<I", kind)


def tensor(kind: int, size: int) -> bytes:
    return header(1, 0) + text("token_embd.weight") + struct.pack("<IQIQ", 1, size, kind, 0)


def layers(n: int) -> bytes:
    return header(1, 1) + text("llama.block_count") + struct.pack("<II", 4, n) + tensor(0, 4)[24:]


HOSTILE = {
    "arrays in arrays": (
        header(1, 1) + text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 10**5,
        "recursion",
    ),
    "an unknown type": (tensor(999, 4), "999.* is not a valid GGMLQuantizationType"),
    "no weights": (tensor(2, 0) + bytes(48), "contains no tensors"),
    "layers without end": (layers(10**9) + bytes(48), r"declares layers \[1000000000\] and holds tensors of 0"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_headers_are_refused(fault: str, tmp_path: Path) -> None:
    content, message = HOSTILE[fault]
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(CheckpointFault, match=message):
        bayesgeom.load(tmp_path / "a.gguf")


def test_a_file_that_states_no_number_of_layers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GGUFWriter, "add_block_count", lambda self, n: None)
    write_tiny(tmp_path / "a.gguf")
    with pytest.raises(CheckpointFault, match=r"declares layers \[\] and holds tensors of 2"):
        bayesgeom.load(tmp_path / "a.gguf")


def test_a_file_with_more_layers_than_it_declares_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = GGUFWriter.add_block_count
    monkeypatch.setattr(GGUFWriter, "add_block_count", lambda self, n: plain(self, n - 1))
    write_tiny(tmp_path / "a.gguf")
    with pytest.raises(CheckpointFault, match=r"declares layers \[1\] and holds tensors of 2"):
        bayesgeom.load(tmp_path / "a.gguf")
