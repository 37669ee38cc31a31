"""The selective scan of Mamba-1, faster on a CPU than plain autograd over positions, and its convolution.

    h_t = exp(Δ_t A) ∘ h_{t−1} + (Δ_t x_t) B_t   out_t = (C_t h_t + D ∘ x_t) ∘ SiLU(z_t)   Δ = softplus(δ)   h_{−1} = 0

for every channel d of d_inner and every coordinate n of its state. `plain_states` and `read_states` implement these
equations literally; `selective_scan` returns the same outputs and has an explicit backward pass. With g_t = ∂L/∂h_t,
which runs from the end, and y_t = C_t h_t,

    g_t = ∂L/∂y_t C_t + exp(Δ_{t+1} A) ∘ g_{t+1}      p_t = g_t ∘ exp(Δ_t A) ∘ h_{t−1} = ∂L/∂(Δ_t A)
    ∂L/∂C_t = Σ_d ∂L/∂y_t h_t     ∂L/∂B_t = Σ_d g_t Δ_t x_t     ∂L/∂(Δ_t x_t) = Σ_n g_t B_t     ∂L/∂A = Σ_t p_t Δ_t

It is fast because it processes a few sequences and one position at a time, which fit in the processor's cache; has
channels last, so every product runs along whole rows; recomputes states in the backward pass instead of storing them;
and has no autograd node per position. Sums are in float32 or wider for any input dtype.

The convolution is SiLU of a causal depthwise one, c_t = b + Σ_k w_k x_{t − K + 1 + k}, k = 0 … K − 1, each channel for
itself, out = c σ(c).

Reference: Gu & Dao 2023, arXiv:2312.00752, algorithm 2 and section 3.3.
"""

from collections.abc import Iterator
from typing import Any, final

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import silu, softplus

from bayesgeom.core import InvalidArgument
from bayesgeom.core.batching import even_slices

# Size of a chunk's states at one position: a share of a CPU's second-level cache. A GPU processes all at once.
_CPU_BYTES, _GPU_BYTES = 2**18, 2**30
_SEGMENT = 4  # positions between stored states; those in between are recomputed in the backward pass
_N_GIVEN = 7


def causal_conv_silu(
    x: Float[Tensor, "batch pos channel"], weight: Float[Tensor, "channel tap"], bias: Float[Tensor, " channel"]
) -> Float[Tensor, "batch pos channel"]:
    """Return SiLU of the causal convolution of each channel, in x's dtype. The last tap is the current position."""
    wide, n_taps = _wide(x), weight.shape[1]
    padded = torch.nn.functional.pad(wide, (0, 0, n_taps - 1, 0))
    c = torch.addcmul(bias, wide, weight[:, -1])
    for tap in range(n_taps - 1):
        c = torch.addcmul(c, padded[:, tap : tap + x.shape[1]], weight[:, tap])
    return silu(c).to(x.dtype)


def selective_scan(
    x: Float[Tensor, "batch pos d_inner"],
    delta: Float[Tensor, "batch pos d_inner"],
    A: Float[Tensor, "d_inner d_state"],
    B: Float[Tensor, "batch pos d_state"],
    C: Float[Tensor, "batch pos d_state"],
    D: Float[Tensor, " d_inner"],
    z: Float[Tensor, "batch pos d_inner"],
) -> Float[Tensor, "batch pos d_inner"]:
    """Return (C h + D ∘ x) ∘ SiLU(z) at every position, in x's dtype. `delta` is Δ before its softplus."""
    out: Tensor = _Scan.apply(x, delta, A, B, C, D, z)  # type: ignore[no-untyped-call]
    return out


def plain_states(
    x: Float[Tensor, "batch pos d_inner"],
    delta: Float[Tensor, "batch pos d_inner"],
    A: Float[Tensor, "d_inner d_state"],
    B: Float[Tensor, "batch pos d_state"],
) -> Float[Tensor, "batch pos d_inner d_state"]:
    """Return the states h at every position, computed by the plain recurrence."""
    x, delta, A, B = (_wide(part) for part in (x, delta, A, B))
    delta = softplus(delta)
    decay = (delta[..., None] * A).exp().unbind(1)
    written = ((delta * x)[..., None] * B[..., None, :]).unbind(1)
    states = [written[0]]
    for forget, new in zip(decay[1:], written[1:], strict=True):
        states.append(torch.addcmul(new, forget, states[-1]))
    return torch.stack(states, dim=1)


def read_states(
    states: Float[Tensor, "batch pos d_inner d_state"],
    x: Float[Tensor, "batch pos d_inner"],
    C: Float[Tensor, "batch pos d_state"],
    D: Float[Tensor, " d_inner"],
    z: Float[Tensor, "batch pos d_inner"],
) -> Float[Tensor, "batch pos d_inner"]:
    """Return (C h + D ∘ x) ∘ SiLU(z) for given states."""
    with torch.autocast(states.device.type, enabled=False):
        y = einsum(states, _wide(C), "b p d n, b p n -> b p d")
        return ((y + D * _wide(x)) * silu(_wide(z))).to(x.dtype)


@final
class _Scan(torch.autograd.Function):
    """`selective_scan`. Internal axes are position, sequence, state, channel; A has its states first."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        with torch.autocast(given[0].device.type, enabled=False):
            out, starts = torch.empty_like(given[0]), []
            for rows, part in _parts(given):
                read, kept = part.forwards()
                out[rows] = read.transpose(0, 1)
                starts.append(kept)
        ctx.save_for_backward(*given, *starts)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        if torch.is_grad_enabled():
            raise InvalidArgument(
                "the scan of Mamba has first derivatives only, but create_graph=True needs more. Set a hook on "
                "hook_state, so that every state goes through autograd."
            )
        given, starts = ctx.saved_tensors[:_N_GIVEN], ctx.saved_tensors[_N_GIVEN:]
        with torch.autocast(grad.device.type, enabled=False):
            gradients = tuple(torch.zeros_like(tensor) for tensor in given)
            for (rows, part), kept in zip(_parts(given), starts, strict=True):
                for tensor, gradient in zip(gradients, part.gradients(_by_position(grad[rows]), kept), strict=True):
                    if tensor.ndim == 3:
                        tensor[rows] = gradient.transpose(0, 1)
                    else:
                        tensor += gradient
            return gradients


@final
class _Part:
    """Inputs of some sequences in float32 or wider, with views of each position."""

    def __init__(self, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor) -> None:
        self.x, self.raw, self.B, self.C, self.z = (_by_position(tensor) for tensor in (x, delta, B, C, z))
        self.A, self.D, self.n_pos = A, D, len(self.x)
        self.delta = softplus(self.raw)
        self.written = self.delta * self.x
        self.delta_row, self.written_row, self.B_row, self.C_row = (
            tensor.unsqueeze(2).unbind(0) for tensor in (self.delta, self.written, self.B, self.C)
        )
        self.B_column, self.C_column = (tensor.unsqueeze(3).unbind(0) for tensor in (self.B, self.C))

    def room(self, n: int) -> Tensor:
        """Uninitialized states of n positions."""
        return self.A.new_empty(n, self.x.shape[1], *self.A.shape)

    def forwards(self) -> tuple[Tensor, Tensor]:
        """Return the output at every position, and the state before each segment except the first."""
        (decay, h), starts = self.room(2).unbind(0), self.room((self.n_pos - 1) // _SEGMENT)
        y = torch.empty_like(self.x)
        y_row = y.unsqueeze(2).unbind(0)
        for t in range(self.n_pos):
            if t and t % _SEGMENT == 0:
                starts[t // _SEGMENT - 1] = h
            self._step(t, h if t else None, decay, h)
            torch.bmm(self.C_row[t], h, out=y_row[t])
        return y.addcmul_(self.D, self.x).mul_(silu(self.z)), starts

    def gradients(self, grad: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of x, δ, A, B, C, D and z, in this order."""
        gate = self.z.sigmoid()  # SiLU is z σ(z), and its derivative σ(z) (1 + z (1 − σ(z)))
        of_y = grad * gate * self.z
        y, of_written, of_delta, of_A, of_B, of_C = self._backwards(of_y, starts)
        of_z = grad.mul_(gate).mul_(y.addcmul_(self.D, self.x)).mul_((1 - gate).mul_(self.z).add_(1))
        of_delta.addcmul_(of_written, self.x).mul_(self.raw.sigmoid())
        of_x = of_written.mul_(self.delta).addcmul_(self.D, of_y)
        return of_x, of_delta, of_A, of_B, of_C, of_y.mul_(self.x).sum((0, 1)), of_z

    def _step(self, t: int, before: Tensor | None, decay: Tensor, h: Tensor) -> None:
        """Write exp(Δ_t A) into `decay` and h_t into `h`, which may share memory with h_{t−1}."""
        if before is None:
            torch.mul(self.written_row[t], self.B_column[t], out=h)
            return
        torch.mul(self.delta_row[t], self.A, out=decay).exp_()
        torch.mul(before, decay, out=h).addcmul_(self.written_row[t], self.B_column[t])

    def _backwards(self, of_y: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
        """C h, and the gradients of Δ x, of Δ through the decay, of A, B and C. The last segment comes first."""
        y, of_written, of_delta = (torch.zeros_like(self.x) for _ in range(3))
        of_B, of_C = torch.empty_like(self.B), torch.empty_like(self.C)
        y_row, of_y_row, of_written_row, of_delta_row, of_B_row, of_C_row = (
            tensor.unsqueeze(2).unbind(0) for tensor in (y, of_y, of_written, of_delta, of_B, of_C)
        )
        (g, p, of_A), (decay, h) = self.room(3).zero_(), (self.room(_SEGMENT).unbind(0) for _ in range(2))
        ones = self.A.new_ones(1, 1, len(self.A)).expand(len(g), 1, -1)
        for first in reversed(range(0, self.n_pos, _SEGMENT)):
            at_start = starts[first // _SEGMENT - 1] if first else None
            segment = range(first, min(first + _SEGMENT, self.n_pos))
            before = (at_start, *h)  # the state before each position of the segment
            for i, t in enumerate(segment):
                self._step(t, before[i], decay[i], h[i])
                torch.bmm(self.C_row[t], h[i], out=y_row[t])
            for i, t in reversed(list(enumerate(segment))):
                g.addcmul_(of_y_row[t], self.C_column[t])
                torch.bmm(of_y_row[t], h[i].transpose(1, 2), out=of_C_row[t])
                torch.bmm(self.written_row[t], g.transpose(1, 2), out=of_B_row[t])
                torch.bmm(self.B_row[t], g, out=of_written_row[t])
                if (earlier := before[i]) is not None:
                    torch.mul(g.mul_(decay[i]), earlier, out=p)
                    of_A.addcmul_(p, self.delta_row[t])
                    torch.bmm(ones, p.mul_(self.A), out=of_delta_row[t])
        return y, of_written, of_delta, of_A.sum(0).T, of_B, of_C


def _parts(given: tuple[Tensor, ...]) -> Iterator[tuple[slice, _Part]]:
    """Slices of the batch and their inputs."""
    x, delta, A, B, C, D, z = given
    A, D = _wide(A.T).contiguous(), _wide(D)
    room = _CPU_BYTES if x.device.type == "cpu" else _GPU_BYTES
    at_once = max(1, room // (A.numel() * A.element_size()))
    for rows in even_slices(len(x), at_most=at_once):
        yield rows, _Part(x[rows], delta[rows], A, B[rows], C[rows], D, z[rows])


def _by_position(x: Tensor) -> Tensor:
    """Positions first, contiguous, in float32 or wider."""
    return _wide(x).transpose(0, 1).contiguous()


def _wide(x: Tensor) -> Tensor:
    """Convert to float32 unless the dtype is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
