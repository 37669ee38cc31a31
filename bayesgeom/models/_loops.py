"""The selective scan and the convolution of `scan` on a CPU, in float32, compiled by numba.

Channels of a sequence are processed in blocks, all positions of one block first, so that a block's states stay in the
first-level cache. Innermost loops run over the channels of a block and are vectorized by the compiler: they have a
short body, few arrays, and a purely arithmetic exponential. All loops are in one file, because numba's disk cache
detects a changed file, but not a change in an imported one.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Many = tuple[Rows, ...]
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

BLOCK = 128  # channels
SEGMENT = 16  # positions between stored states; those in between are recomputed in the backward pass

_LOWEST = np.float32(-87)  # below, exp leaves the normal numbers of float32
_LOG2_E, _LN_2 = np.float32(np.log2(np.e)), np.float32(np.log(2))
# exp(r) ≈ 1 + r + r² P(r) for |r| ≤ ln 2 / 2: the best P of its degree, relative error 3e-9.
_P0, _P1, _P2, _P3, _P4 = (
    np.float32(c) for c in (4.99999934e-01, 1.66665200e-01, 4.16683957e-02, 8.36878747e-03, 1.38144242e-03)
)
_A3, _A5, _A7, _A9, _A11, _A13 = (np.float32(1 / n) for n in range(3, 14, 2))
_ZERO, _HALF, _ONE, _TWO = (np.float32(c) for c in (0, 0.5, 1, 2))
# Rows of the array for one position of a block.
_DELTA, _SLOPE, _X, _Z, _D, _WRITTEN, _Y, _OUT, _OF_WRITTEN, _OF_DELTA, _P = range(11)
_N_ROWS = 11


def _compiled(kernel: Kernel) -> Kernel:
    """Compile a kernel for this machine; cached on disk if a cache folder is writable."""
    plain = inspect.unwrap(kernel)  # shape checks wrap functions
    options: dict[str, Any] = {
        "fastmath": {"contract", "reassoc", "nsz", "arcp"},
        "error_model": "numpy",
        "nogil": True,
    }
    try:
        ready: Kernel = numba.njit(cache=True, **options)(plain)
    except RuntimeError:  # numba finds no writable folder
        ready = numba.njit(**options)(plain)
    return ready


@_compiled
def _exp(x: Any) -> Any:
    """exp of x ≤ 0 as 2^k exp(r), with the power built from its bits."""
    x = max(x, _LOWEST)
    k = np.int32(x * _LOG2_E - _HALF)
    r = x - np.float32(k) * _LN_2
    p = _ONE + r + r * r * (_P0 + r * (_P1 + r * (_P2 + r * (_P3 + r * _P4))))
    return p * np.int32((k + np.int32(127)) << np.int32(23)).view(np.float32)


@_compiled
def _log1p(u: Any) -> Any:
    """log(1 + u) = 2 artanh(u / (2 + u)) for 0 ≤ u ≤ 1."""
    s = u / (_TWO + u)
    q = s * s
    series = _A3 + q * (_A5 + q * (_A7 + q * (_A9 + q * (_A11 + q * _A13))))
    return _TWO * s * (_ONE + q * series)


@_compiled
def _logistic(x: Any) -> Any:
    """σ(x), from the exponential that cannot overflow."""
    small = _exp(-abs(x))
    return (_ONE if x >= _ZERO else small) / (_ONE + small)


@_compiled
def scan(given: Many, out: Rows, starts: Rows) -> None:
    """Write the scan's result into `out`, and the state before each segment into `starts`.

    `given` are x, δ, A, B, C, D and z, of which A has its states first; `starts` has sequence, segment, state, channel.
    """
    x, delta, A, B, C, D, z = given
    own_A, h = np.zeros((len(A), BLOCK), np.float32), np.empty((len(A), BLOCK), np.float32)
    row = np.zeros((_N_ROWS, BLOCK), np.float32)
    for sequence in range(len(x)):
        for first in range(0, len(D), BLOCK):
            width = min(BLOCK, len(D) - first)
            h[:] = _ZERO
            _enter(own_A, row, A, D, first, width)
            for t in range(x.shape[1]):
                if t % SEGMENT == 0:
                    starts[sequence, t // SEGMENT, :, first : first + width] = h[:, :width]
                for c in range(width):
                    row[_DELTA, c], row[_X, c] = delta[sequence, t, first + c], x[sequence, t, first + c]
                    row[_Z, c] = z[sequence, t, first + c]
                _widen(row)
                _advance(h, own_A, row, B[sequence, t], C[sequence, t])
                for c in range(width):
                    out[sequence, t, first + c] = row[_Y, c] * row[_Z, c] * _logistic(row[_Z, c])


@_compiled
def _enter(own_A: Rows, row: Rows, A: Rows, D: Rows, first: int, width: int) -> None:
    """A and D of a block; channels beyond the last one are zero."""
    own_A[:], row[:] = _ZERO, _ZERO
    own_A[:, :width] = A[:, first : first + width]
    row[_D, :width] = D[first : first + width]


@_compiled
def _widen(row: Rows) -> None:
    """Replace δ by Δ = softplus(δ); compute its slope σ(δ), and Δ x."""
    for c in range(BLOCK):
        raw = row[_DELTA, c]
        small = _exp(-abs(raw))
        row[_DELTA, c] = max(raw, _ZERO) + _log1p(small)
        row[_SLOPE, c] = (_ONE if raw >= _ZERO else small) / (_ONE + small)
    for c in range(BLOCK):
        row[_WRITTEN, c] = row[_DELTA, c] * row[_X, c]
        row[_Y, c] = row[_D, c] * row[_X, c]


@_compiled
def _advance(h: Rows, A: Rows, row: Rows, B: Rows, C: Rows) -> None:
    """Compute one position: the next state, and D ∘ x plus the read-out by C."""
    for n in range(len(A)):
        b, r = B[n], C[n]
        for c in range(BLOCK):
            new = _exp(row[_DELTA, c] * A[n, c]) * h[n, c] + row[_WRITTEN, c] * b
            h[n, c] = new
            row[_Y, c] += new * r


@_compiled
def scan_backward(given: Many, starts: Rows, grad: Rows, found: Many) -> None:
    """Write the gradients of `given` into `found`, arrays of the same layout filled with zeros."""
    A, D = given[2], given[5]
    n_pos, shape = grad.shape[1], (len(A), BLOCK)
    own_A, g, sum_A = np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.float32)
    h, decay = np.zeros((SEGMENT + 1, *shape), np.float32), np.empty((SEGMENT, *shape), np.float32)
    rows, sum_D = np.empty((SEGMENT, _N_ROWS, BLOCK), np.float32), np.empty(BLOCK, np.float32)
    for sequence in range(len(grad)):
        for first in range(0, len(D), BLOCK):
            width = min(BLOCK, len(D) - first)
            g[:], sum_A[:], sum_D[:], h[0] = _ZERO, _ZERO, _ZERO, _ZERO
            for row in rows:
                _enter(own_A, row, A, D, first, width)
            for start in range((n_pos - 1) // SEGMENT * SEGMENT, -1, -SEGMENT):
                here = (sequence, start, min(SEGMENT, n_pos - start), first, width)
                h[0, :, :width] = starts[sequence, start // SEGMENT, :, first : first + width]
                _again(given, grad, here, own_A, (rows, decay, h))
                _back(given, found, here, (own_A, g, sum_A, sum_D), (rows, decay, h))
            found[5][first : first + width] += sum_D[:width]
            found[2][:, first : first + width] += sum_A[:, :width]


@_compiled
def _again(given: Many, grad: Rows, here: tuple[int, ...], A: Rows, made: Many) -> None:
    """Recompute rows, decays and states of a segment."""
    rows, decay, h = made
    x, delta, B, C, z = given[0], given[1], given[3], given[4], given[6]
    sequence, start, length, first, width = here
    for i in range(length):
        t, row = start + i, rows[i]
        for c in range(width):
            row[_DELTA, c], row[_X, c] = delta[sequence, t, first + c], x[sequence, t, first + c]
            row[_Z, c], row[_OUT, c] = z[sequence, t, first + c], grad[sequence, t, first + c]
        _widen(row)
        for n in range(len(A)):
            b, r = B[sequence, t, n], C[sequence, t, n]
            for c in range(BLOCK):
                decay[i, n, c] = _exp(row[_DELTA, c] * A[n, c])
            for c in range(BLOCK):
                new = decay[i, n, c] * h[i, n, c] + row[_WRITTEN, c] * b
                h[i + 1, n, c] = new
                row[_Y, c] += new * r


@_compiled
def _back(given: Many, found: Many, here: tuple[int, ...], own: Many, made: Many) -> None:
    """Compute a segment's gradients, from its last position."""
    rows, decay, h = made
    B, C = given[3], given[4]
    of_x, of_delta, of_B, of_C, of_z = found[0], found[1], found[3], found[4], found[6]
    A, g, sum_A, sum_D = own
    sequence, start, length, first, width = here
    for i in range(length - 1, -1, -1):
        t, row = start + i, rows[i]
        _ungate(row, sum_D)
        for n in range(len(A)):
            b, r = B[sequence, t, n], C[sequence, t, n]
            sum_B, sum_C = _ZERO, _ZERO
            for c in range(BLOCK):
                new = g[n, c] + row[_OUT, c] * r
                g[n, c] = new
                sum_B += new * row[_WRITTEN, c]
                sum_C += row[_OUT, c] * h[i + 1, n, c]
                row[_OF_WRITTEN, c] += new * b
            of_B[sequence, t, n] += sum_B
            of_C[sequence, t, n] += sum_C
            for c in range(BLOCK):
                new = g[n, c] * decay[i, n, c]
                g[n, c] = new
                row[_P, c] = new * h[i, n, c]
            for c in range(BLOCK):
                row[_OF_DELTA, c] += row[_P, c] * A[n, c]
                sum_A[n, c] += row[_P, c] * row[_DELTA, c]
        _leave(row)
        for c in range(width):
            of_x[sequence, t, first + c] = row[_OF_WRITTEN, c]
            of_delta[sequence, t, first + c] = row[_OF_DELTA, c]
            of_z[sequence, t, first + c] = row[_Z, c]


@_compiled
def _ungate(row: Rows, sum_D: Rows) -> None:
    """Replace ∂L/∂out by ∂L/∂y and z by ∂L/∂z; SiLU is z σ(z), its derivative σ(z) (1 + z (1 − σ(z)))."""
    for c in range(BLOCK):
        z, grad = row[_Z, c], row[_OUT, c]
        gate = _logistic(z)
        row[_OUT, c] = grad * z * gate
        row[_Z, c] = grad * row[_Y, c] * gate * (_ONE + z * (_ONE - gate))
        row[_OF_WRITTEN, c], row[_OF_DELTA, c] = _ZERO, _ZERO
    for c in range(BLOCK):
        sum_D[c] += row[_OUT, c] * row[_X, c]


@_compiled
def _leave(row: Rows) -> None:
    """Compute gradients of x and δ from those of Δ x, and of Δ through the decay."""
    for c in range(BLOCK):
        of_written = row[_OF_WRITTEN, c]
        row[_OF_DELTA, c] = (row[_OF_DELTA, c] + of_written * row[_X, c]) * row[_SLOPE, c]
        row[_OF_WRITTEN, c] = of_written * row[_DELTA, c] + row[_D, c] * row[_OUT, c]


@_compiled
def convolve(x: Rows, weight: Rows, bias: Rows, out: Rows) -> None:
    """Write SiLU of the causal convolution into `out`; `weight` has its taps first, the current position last."""
    for sequence in range(len(x)):
        for t in range(x.shape[1]):
            own = out[sequence, t]
            _weigh(x[sequence], weight, bias, t, own)
            for c in range(len(bias)):
                own[c] *= _logistic(own[c])


@_compiled
def convolve_backward(x: Rows, weight: Rows, bias: Rows, grad: Rows, found: Many) -> None:
    """Write the gradients of x, weight and bias into `found`, arrays of the same layout filled with zeros."""
    of_x, of_weight, of_bias = found
    own, n_tap = np.empty(len(bias), np.float32), len(weight)
    for sequence in range(len(x)):
        for t in range(x.shape[1]):
            _weigh(x[sequence], weight, bias, t, own)
            for c in range(len(bias)):
                gate = _logistic(own[c])
                own[c] = grad[sequence, t, c] * gate * (_ONE + own[c] * (_ONE - gate))
            for c in range(len(bias)):
                of_bias[c] += own[c]
            for tap in range(max(0, n_tap - 1 - t), n_tap):
                source = t - n_tap + 1 + tap
                for c in range(len(bias)):
                    of_x[sequence, source, c] += own[c] * weight[tap, c]
                for c in range(len(bias)):
                    of_weight[tap, c] += own[c] * x[sequence, source, c]


@_compiled
def _weigh(x: Rows, weight: Rows, bias: Rows, t: int, own: Rows) -> None:
    """Compute b + Σ_k w_k x_{t − K + 1 + k} for every channel."""
    n_tap = len(weight)
    for c in range(len(bias)):
        own[c] = bias[c]
    for tap in range(max(0, n_tap - 1 - t), n_tap):
        for c in range(len(bias)):
            own[c] += weight[tap, c] * x[t - n_tap + 1 + tap, c]
