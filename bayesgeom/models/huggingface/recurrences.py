"""States of recurrent layers: what each recurrence carries from one position to the next.

The projections of a layer hand its terms to one function, and what this returns goes to the output matrix:

    Mamba-1      h_t = exp(Δ_t A) ∘ h_{t−1} + Δ_t B_t x_t           y_t = (C_t h_t + D ∘ x_t) ∘ SiLU(z_t)
    Mamba-2      H_t = exp(Δ_t a) H_{t−1} + B_t (Δ_t x_t)ᵀ          y_t = C_t H_t + D x_t, for every head
    gated delta  S_t = e^{g_t} (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ      y_t = q_t S_t / √d, for every head
    RG-LRU       h_t = a_t ∘ h_{t−1} + b_t                          y_t = h_t

A matrix has a row for each entry of the key (B or k) and a column for each of the value (x or v). A state is computed
position by position from these terms and read as the equation says; where the site has a hook, what leaves its tap is
read instead. An edit changes what is read at its position, but not the carried state. The function's own output, from
another algorithm, proves the states.

A recurrence is found by the name of this function, which many families share. Padding on the right changes nothing.

References: Gu & Dao 2023, arXiv:2312.00752; Dao & Gu 2024, arXiv:2405.21060; Yang, Kautz & Hatamizadeh 2024,
arXiv:2412.06464 (gated delta); De et al. 2024, arXiv:2402.19427 (RG-LRU).
"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from types import FunctionType
from typing import Any, Protocol

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from bayesgeom.core.torch_state import PROCESS_STATE

States = Float[Tensor, "batch pos *state"]
Read = Callable[[Tensor], Tensor]  # maps states to what the function returns


class Through(Protocol):
    """Passes states through a tap. `read` maps them to the output of the recurrence, which is `output`."""

    def __call__(self, states: States, read: Read, output: Float[Tensor, "..."]) -> Float[Tensor, "..."]: ...


def _carried(decay: Float[Tensor, "batch pos *#state"], written: States) -> States:
    """The states h_t = decay_t ∘ h_{t−1} + written_t, from h = 0."""
    state, states = torch.zeros_like(written[:, 0]), []
    for factor, term in zip(decay.unbind(1), written.unbind(1), strict=True):
        state = factor * state + term
        states.append(state)
    return torch.stack(states, dim=1)


def _mamba(given: Mapping[str, Any]) -> tuple[States, Read]:
    delta = given["dt"] if given["delta_bias"] is None else given["dt"] + given["delta_bias"][..., None]
    delta = (softplus(delta) if given["delta_softplus"] else delta).transpose(1, 2)
    x, B, C = (given[name].transpose(1, 2) for name in ("hidden_states", "B", "C"))
    written = einsum((delta * x).float(), B.float(), "b t d, b t n -> b t d n")
    states = _carried((delta[..., None] * given["A"]).exp(), written)

    def read(states: Tensor) -> Tensor:
        y: Tensor = einsum(states, C.to(states), "b t d n, b t n -> b t d")
        y = y if given["D"] is None else y + given["D"] * x
        y = y if given["z"] is None else y * silu(given["z"].transpose(1, 2))
        return y.transpose(1, 2)

    return states, read


def _mamba2(given: Mapping[str, Any]) -> tuple[States, Read]:
    x, dt = given["hidden_states"].float(), given["dt"]
    dt = dt if given["dt_bias"] is None else dt + given["dt_bias"]
    dt = (softplus(dt) if given["dt_softplus"] else dt).clamp(*given["dt_limit"]).float()
    B, C = (given[name].float().repeat_interleave(x.shape[2] // given[name].shape[2], dim=2) for name in ("B", "C"))
    written = einsum(B, dt[..., None] * x, "b t h n, b t h p -> b t h n p")
    states = _carried((dt * given["A"]).exp()[..., None, None], written)

    def read(states: Tensor) -> Tensor:
        y: Tensor = einsum(states, C, "b t h n p, b t h n -> b t h p")
        return y if given["D"] is None else y + given["D"][..., None] * x

    return states, read


def _gated_delta(given: Mapping[str, Any]) -> tuple[States, Read]:
    query, key, value, decay, beta = (given[name].float() for name in ("query", "key", "value", "g", "beta"))
    query, key = (part.repeat_interleave(value.shape[2] // part.shape[2], dim=2) for part in (query, key))
    if given["use_qk_l2norm_in_kernel"]:
        query, key = (part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for part in (query, key))
    state, states = value.new_zeros(*value[:, 0].shape[:2], key.shape[-1], value.shape[-1]), []
    for t in range(value.shape[1]):
        state = decay[:, t, :, None, None].exp() * state
        known = einsum(key[:, t], state, "b h k, b h k v -> b h v")
        change = beta[:, t, :, None] * (value[:, t] - known)
        state = state + einsum(key[:, t], change, "b h k, b h v -> b h k v")
        states.append(state)

    def read(states: Tensor) -> Tensor:
        y: Tensor = einsum(query, states, "b t h k, b t h k v -> b t h v")
        return y * float(query.shape[-1] ** -0.5)

    return torch.stack(states, dim=1), read


def _rg_lru(given: Mapping[str, Any]) -> tuple[States, Read]:
    decay = given["recurrent_gate"] * ~given["reset"]
    return _carried(decay.float(), given["hidden_states"].float()), lambda states: states


_RECURRENCES: Mapping[str, Callable[[Mapping[str, Any]], tuple[States, Read]]] = {
    "mamba_selective_scan": _mamba,
    "mamba2_chunk_scan": _mamba2,
    "torch_chunk_gated_delta_rule": _gated_delta,
    "_rnn_scan": _rg_lru,
}
_RUNNING: ContextVar[Through | None] = ContextVar("recurrence", default=None)


def _name_of(part: nn.Module) -> str | None:
    """The function that a module's forward pass calls, if it is a known recurrence."""
    forward = inspect.unwrap(type(part).forward)
    names = forward.__code__.co_names if isinstance(forward, FunctionType) else ()
    return next((name for name in _RECURRENCES if name in names), None)


def recurrence_of(block: nn.Module) -> str | None:
    """Return the path of the part that computes a known recurrence; None if there is none."""
    return next((path for path, part in block.named_modules() if _name_of(part) is not None), None)


@contextlib.contextmanager
def routed_states(routes: Iterable[tuple[nn.Module, Through]]) -> Iterator[None]:
    """Pass the states of these modules through taps; other modules and other threads are not affected."""
    tapped = list[Callable[..., Any]]()
    with contextlib.ExitStack() as stack:
        for part, through in routes:
            name = _name_of(part)
            assert name is not None, "found when the model was attached"
            stack.enter_context(PROCESS_STATE)
            stack.enter_context(_replaced(vars(part), "forward", _running(part.forward, through)))
            is_method = name in vars(type(part))  # otherwise the modules of a file share one function
            names = vars(part) if is_method else vars(sys.modules[type(part).__module__])
            function = vars(type(part))[name].__get__(part) if is_method else names[name]
            if function not in tapped:
                tapped.append(_tapped(name, function))
                stack.enter_context(_replaced(names, name, tapped[-1]))
        yield


@contextlib.contextmanager
def _replaced(names: dict[str, Any], name: str, value: object) -> Iterator[None]:
    former = {name: names[name]} if name in names else {}
    names[name] = value
    try:
        yield
    finally:
        del names[name]
        names.update(former)


def _running(forward: Callable[..., Any], through: Through) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        token = _RUNNING.set(through)
        try:
            return forward(*args, **kwargs)
        finally:
            _RUNNING.reset(token)

    return run


def _tapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        result, through = function(*args, **kwargs), _RUNNING.get()
        if through is None:
            return result
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        states, read = _RECURRENCES[name](given.arguments)
        first, *rest = result if isinstance(result, tuple) else (result,)
        first = through(states, lambda x: read(x).to(first.dtype), first)
        return (first, *rest) if isinstance(result, tuple) else first

    return run
