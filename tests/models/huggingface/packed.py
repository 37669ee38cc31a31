"""Tiny Llamas in the 4-bit formats of GPTQ and AWQ, packed here by hand, with the weights that they stand for."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.families import _sizes, lively

GROUP, BITS = 32, 4
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # where AWQ's kernel expects the eight numbers of an int32
WIDTHS = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def llama(**sizes: Any) -> Any:
    """A Llama whose widths the kernels accept: multiples of their blocks."""
    import transformers

    torch.manual_seed(0)
    return lively(transformers.LlamaForCausalLM(transformers.LlamaConfig(**_sizes(**WIDTHS | sizes)))).eval()


def write_packed(folder: Path, method: str) -> Any:
    """Write a checkpoint of `gptq` or `awq`; return the plain Llama with the dequantized weights."""
    hf, stored = llama().half(), {}
    hf.save_pretrained(folder)
    for path, module in hf.named_modules():
        if not isinstance(module, torch.nn.Linear) or path == "lm_head":
            continue
        codes, zeros, scales = quantized(module.weight.data.T.float())
        stored |= {f"{path}.{name}": own for name, own in PACKED[method](codes, zeros, scales).items()}
        of_row = torch.arange(len(codes)) // GROUP
        exact = scales.float()[of_row] * (codes - zeros[of_row])
        module.weight.data = exact.T.contiguous().half()
    whole = {
        name: own.contiguous()
        for name, own in hf.state_dict().items()
        if name.removesuffix(".weight") not in {key.rpartition(".")[0] for key in stored}
    }
    save_file({**whole, **stored}, folder / "model.safetensors", metadata={"format": "pt"})
    own = {"quant_method": method, "bits": BITS, "group_size": GROUP}
    own |= {"desc_act": False, "sym": False} if method == "gptq" else {"zero_point": True, "version": "gemm"}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": own}))
    return hf.float()


def quantized(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of 0 … 15, zero points and scales of a matrix `in out`, in groups of rows."""
    grouped = weights.unflatten(0, (-1, GROUP))
    low, high = grouped.amin(dim=1), grouped.amax(dim=1)
    scales = ((high - low) / (2**BITS - 1)).half()
    zeros = (-low / scales.float()).round().clamp(1, 2**BITS - 1)  # GPTQ's first format stores the zero less one
    codes = (grouped / scales.float()[:, None] + zeros[:, None]).round().clamp(0, 2**BITS - 1)
    return codes.flatten(0, 1).int(), zeros.int(), scales


def packed(codes: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Eight numbers of 4 bits in an int32, along the last axis; the first in the lowest bits."""
    eight = codes.long().unflatten(-1, (-1, 8))[..., list(order)]
    whole = (eight << (BITS * torch.arange(8))).sum(dim=-1)
    return torch.where(whole >= 2**31, whole - 2**32, whole).int()


def _of_gptq(codes: Tensor, zeros: Tensor, scales: Tensor) -> dict[str, Tensor]:
    of_row = torch.arange(len(codes), dtype=torch.int32) // GROUP
    return {"qweight": packed(codes.T).T.contiguous(), "qzeros": packed(zeros - 1), "scales": scales, "g_idx": of_row}


def _of_awq(codes: Tensor, zeros: Tensor, scales: Tensor) -> dict[str, Tensor]:
    return {"qweight": packed(codes, _AWQ_ORDER), "qzeros": packed(zeros, _AWQ_ORDER), "scales": scales}


PACKED = {"gptq": _of_gptq, "awq": _of_awq}
