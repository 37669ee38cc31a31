"""Quantized checkpoints: measured with the weights that they stand for, identified by all of them, or refused by name.

Those of GPTQ and AWQ are packed by hand (`packed`), and compared with a plain Llama of the dequantized weights. The
libraries are in no extra: `pip install bitsandbytes`; gptqmodel with optimum, which need a compiler.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import bayesgeom
from bayesgeom.core import run as s
from bayesgeom.core.errors import CheckpointFault, InvalidArgument
from bayesgeom.models.base import Model
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.tasks.bijection import Bijection
from tests.models.huggingface.packed import llama, write_packed
from tests.models.huggingface.test_sites import text

pytestmark = [  # of transformers, when a library builds a model; of torch, when it imports its compiler; of a library
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:bitsandbytes"),
]
LAYER, LAYERS = 1, range(3)


def needs(*libraries: str) -> None:
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")


def matrix(model: Model) -> torch.Tensor:
    return model.static(s.W_K, torch.arange(3), LAYER).flatten(0, 1)


def in_4_bits(kind: str, *, nested: bool = False) -> Any:
    import transformers

    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_compute_dtype=torch.float32,
        bnb_4bit_use_double_quant=nested,
    )


def saved(folder: Path, *, factor: float = 1.0, **sizes: Any) -> Path:
    """A plain Llama; `factor` multiplies the weights of its keys, which leaves their 4-bit codes as they are."""
    hf = llama(**sizes)
    for layer in LAYERS:
        hf.model.layers[layer].self_attn.k_proj.weight.data *= factor
    hf.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "nested"), [("nf4", False), ("nf4", True), ("fp4", False)])
def test_four_bits_of_bitsandbytes(tmp_path: Path, kind: str, nested: bool) -> None:
    needs("bitsandbytes")
    from bitsandbytes import functional

    plain = HFModel(llama())
    model = bayesgeom.load(saved(tmp_path), quantization_config=in_4_bits(kind, nested=nested))
    assert model.sites == plain.sites and model.spec.n_parameters == plain.spec.n_parameters
    assert model.spec.quantization == (
        "bitsandbytes of 4 bits, weights of class Params4bit, dequantized in every product"
    )
    own = llama().model.layers[LAYER].self_attn.k_proj.weight.data
    codes, state = functional.quantize_4bit(own, quant_type=kind, compress_statistics=nested)
    exact = functional.dequantize_4bit(codes, state)
    # On a processor with AVX-512 the library rounds code, scale and product to bfloat16, by at most 2⁻⁸ each.
    torch.testing.assert_close(matrix(model), exact, rtol=3 * 2**-8, atol=1e-6)
    assert (matrix(model) - own).abs().max() > 0.05 * own.abs().max(), "4 bits are coarse"


@pytest.mark.slow
def test_eight_bits_of_bitsandbytes(tmp_path: Path) -> None:
    needs("bitsandbytes")
    import transformers

    plain = HFModel(llama())
    model = bayesgeom.load(saved(tmp_path), quantization_config=transformers.BitsAndBytesConfig(load_in_8bit=True))
    assert model.sites == plain.sites and model.spec.n_parameters == plain.spec.n_parameters
    assert model.spec.quantization == "bitsandbytes of 8 bits, weights of class Int8Params, multiplied in 8 bits"
    own = llama().model.layers[LAYER].self_attn.k_proj.weight.data
    step = own.abs().amax(dim=1, keepdim=True) / 127
    exact = (own / step).round() * step
    off = (matrix(model) - exact).abs() / step
    # Weights pass through float16 (2⁻¹¹, at most 0.07 of a step), so a code at a tie may round the other way.
    assert off.max() < 1.1 and off.mean() < 0.02
    report = bayesgeom.diagnose(model, Bijection(n_values=5, n_pairs=3), n=3, n_untrained=1, probes="calibration")
    assert report.provenance["model"]["quantization"] == model.spec.quantization


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
def test_the_hash_covers_scales_and_does_not_change_in_a_pass(tmp_path: Path, bits: int) -> None:
    needs("bitsandbytes")
    import transformers

    config = in_4_bits("nf4") if bits == 4 else transformers.BitsAndBytesConfig(load_in_8bit=True)
    one, other = (
        bayesgeom.load(saved(tmp_path / str(factor), factor=factor), quantization_config=config) for factor in (1, 2)
    )
    codes = [own.module.model.layers[LAYER].self_attn.k_proj.weight for own in (one, other)]
    assert torch.equal(*codes), "only the scales differ"
    assert (one.logits(text()) - other.logits(text())).abs().max() > 0.1
    assert one.spec.weights_hash != other.spec.weights_hash
    assert bayesgeom.as_model(one.module).spec.weights_hash == one.spec.weights_hash, "the library packs in a pass"
    again = bayesgeom.load(tmp_path / "1", quantization_config=config)
    assert again.spec.weights_hash == one.spec.weights_hash


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # gptqmodel leaves a directory to the collector
@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_packed_checkpoints(tmp_path: Path, method: str) -> None:
    needs("gptqmodel", "optimum")
    twin = HFModel(write_packed(tmp_path, method))
    model = bayesgeom.load(tmp_path, dtype="float32")
    assert model.sites == twin.sites and model.spec.n_parameters == twin.spec.n_parameters
    assert model.spec.quantization == f"{method} of 4 bits, dequantized in every product"
    torch.testing.assert_close(matrix(model), matrix(twin), rtol=1e-6, atol=1e-6)
    # The lively blocks amplify rounding 10⁴ times (test_wrapped); without the packing the logits differ by 0.8.
    torch.testing.assert_close(model.logits(text()), twin.logits(text()), atol=1e-2, rtol=0)
    assert (HFModel(llama()).logits(text()) - twin.logits(text())).abs().max() > 0.1
    assert bayesgeom.as_model(model.module).spec.weights_hash == model.spec.weights_hash
    report = bayesgeom.diagnose(model, Bijection(n_values=5, n_pairs=3), n=3, n_untrained=1, probes="key_overlap")
    assert report.provenance["model"]["quantization"] == model.spec.quantization

    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors[f"model.layers.{LAYER}.self_attn.k_proj.scales"] *= 2
    save_file(tensors, file, metadata={"format": "pt"})
    assert bayesgeom.load(tmp_path, dtype="float32").spec.weights_hash != model.spec.weights_hash


@pytest.fixture
def claims(tmp_path: Path) -> Any:
    """Write a checkpoint whose config claims a quantization."""

    def written(entry: object, **tensors: torch.Tensor) -> Path:
        saved(tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": entry}))
        if tensors:
            file = tmp_path / "model.safetensors"
            save_file(load_file(file) | tensors, file, metadata={"format": "pt"})
        return tmp_path

    return written


@pytest.mark.parametrize(
    ("entry", "library", "message"),
    [
        ({"quant_method": "gptq", "bits": 4}, "optimum", r"a GPTQ quantized model requires optimum \(`pip install opt"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes", r"4-bit quantization requires bitsan"),
    ],
    ids=lambda own: own.get("quant_method") if isinstance(own, dict) else None,
)
def test_a_library_that_is_missing_is_named_in_one_line(claims: Any, entry: Any, library: str, message: str) -> None:
    if importlib.util.find_spec(library) is not None:
        pytest.skip(f"{library} is installed")
    with pytest.raises(InvalidArgument, match=f"cannot be loaded like this: .*{message}") as caught:
        bayesgeom.load(claims(entry))
    assert "\n" not in str(caught.value)


def test_a_format_that_transformers_does_not_know_is_refused(claims: Any) -> None:
    # transformers warns, ignores the scales, and multiplies by the stored numbers.
    name = "model.layers.1.self_attn.k_proj"
    numbers = llama().model.layers[1].self_attn.k_proj.weight.data
    scaled = {f"{name}.weight": (numbers / 3).to(torch.float8_e4m3fn), f"{name}.weight_scale": torch.tensor(3.0)}
    folder = claims({"quant_method": "modelopt", "quant_algo": "FP8"}, **scaled)
    with pytest.raises(InvalidArgument, match=r"is quantized as 'modelopt'.* gptq"):
        bayesgeom.load(folder)


@pytest.mark.parametrize("entry", [7, [], "gptq"])
def test_an_entry_that_is_no_object_is_named(claims: Any, entry: object) -> None:
    with pytest.raises(CheckpointFault, match=r"sets quantization_config to .*, not to a JSON object"):
        bayesgeom.load(claims(entry))
