"""SiLU of a causal depthwise convolution, computed a few sequences at a time, with an explicit backward pass.

    c_t = b + Σ_k w_k x_{t − K + 1 + k}, k = 0 … K − 1, each channel for itself      out = c σ(c)

On a CPU, torch's grouped convolution takes most of the time of a small Mamba's step; shifts and sums in the cache are
faster. Sums are in float32 or wider for any input dtype.
"""

from collections.abc import Iterator
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from bayesgeom.core.batching import even_slices
from bayesgeom.models.native.compiled import as_array, refuse_second_derivatives, serves

# Size of one buffer of a chunk: a share of a CPU's second-level cache. A GPU processes the whole batch at once.
_CPU_BYTES, _GPU_BYTES = 2**18, 2**30


def causal_conv_silu(
    x: Float[Tensor, "batch pos channel"], weight: Float[Tensor, "channel tap"], bias: Float[Tensor, " channel"]
) -> Float[Tensor, "batch pos channel"]:
    """Return SiLU of the causal convolution of each channel, in x's dtype. The last tap is the current position."""
    suits_loops = serves((x, weight, bias)) and x.shape[-1:] == weight.shape[:1] == bias.shape
    convolution = _CompiledConvolution if suits_loops else _Convolution
    out: Tensor = convolution.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


@final
class _Convolution(torch.autograd.Function):
    """`causal_conv_silu`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for rows, own in _chunks(x):
            out[rows] = torch.nn.functional.silu(_convolved(own, weight, bias))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight, bias = ctx.saved_tensors
        gx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        gweight, gbias = torch.zeros_like(weight), torch.zeros_like(bias)
        for rows, own in _chunks(x):
            c = _convolved(own, weight, bias)
            gate = c.sigmoid()
            of_c = grad[rows] * gate * (1 + c * (1 - gate))
            gbias += of_c.sum((0, 1))
            of_x = of_c * weight[:, -1]
            for tap, back in _taps(weight):
                if back < x.shape[1]:
                    early, late = of_x[:, : x.shape[1] - back], of_c[:, back:]
                    gweight[:, tap] += (late * own[:, : x.shape[1] - back]).sum((0, 1))
                    if back:
                        early.addcmul_(late, weight[:, tap])
            gx[rows] = of_x
        return gx, gweight, gbias


@final
class _CompiledConvolution(torch.autograd.Function):
    """`causal_conv_silu` in float32 on a CPU, with loops compiled by numba."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from bayesgeom.models.native.compiled import loops

        ctx.save_for_backward(x, weight, bias)
        out = torch.empty(x.shape)
        loops.convolve(as_array(x), as_array(weight.T), as_array(bias), out.numpy())
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        from bayesgeom.models.native.compiled import loops

        refuse_second_derivatives()
        x, weight, bias = ctx.saved_tensors
        arrays = as_array(x), as_array(weight.T), as_array(bias)
        found = tuple(torch.zeros(array.shape) for array in arrays)
        loops.convolve_backward(*arrays, as_array(grad), tuple(gradient.numpy() for gradient in found))
        of_x, of_weight, of_bias = found
        return of_x.to(x.dtype), of_weight.T.to(weight.dtype), of_bias.to(bias.dtype)


def _convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    c = torch.addcmul(bias, x, weight[:, -1])
    for tap, back in _taps(weight):
        if 0 < back < x.shape[1]:
            c[:, back:].addcmul_(x[:, : x.shape[1] - back], weight[:, tap])
    return c


def _taps(weight: Tensor) -> list[tuple[int, int]]:
    """Each tap and its offset: the number of positions that it looks back."""
    n = weight.shape[1]
    return [(tap, n - 1 - tap) for tap in range(n)]


def _chunks(x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the batch and their values, in float32 or wider."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    room = _CPU_BYTES if x.device.type == "cpu" else _GPU_BYTES
    at_once = max(1, room // (x.shape[1] * x.shape[2] * dtype.itemsize))
    for rows in even_slices(len(x), at_most=at_once):
        yield rows, x[rows].to(dtype)
