"""The LSTM against a loop over gates, and its state."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.native.lstm import LSTM, LSTMConfig
from tests.weights import perturbed

SMALL = LSTMConfig(d_vocab=11, n_ctx=7, n_layers=2, d_model=10)


def lively(config: LSTMConfig = SMALL) -> LSTM:
    return perturbed(LSTM(config, seed=0), 0.3).eval()


def some_tokens(n_pos: int = 7) -> Tensor:
    return torch.randint(11, (5, n_pos), generator=torch.Generator().manual_seed(2))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def norm(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def twin(module: LSTM, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and h of every layer and position: one gate at a time."""
    weights = {name: tensor.double().numpy() for name, tensor in module.state_dict().items()}
    d, x, states = module.config.d_model, weights["embed.weight"][tokens], []
    for layer in range(module.config.n_layers):
        own = {name.removeprefix(f"blocks.{layer}.lstm."): tensor for name, tensor in weights.items()}
        given, h, c = norm(x, weights, f"blocks.{layer}.ln"), np.zeros(d), np.zeros(d)
        written = np.zeros_like(x)
        for t in range(len(x)):
            gates = own["weight_ih_l0"] @ given[t] + own["bias_ih_l0"] + own["weight_hh_l0"] @ h + own["bias_hh_l0"]
            i, f, g, o = gates.reshape(4, d)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            written[t] = h
        states.append(written)
        x = x + written
    return norm(x, weights, "ln_final") @ weights["embed.weight"].T, np.stack(states)


def test_logits_and_states_match_a_loop_over_gates() -> None:
    module, tokens = lively(), some_tokens()
    with torch.no_grad():
        logits, cache = module.run_with_cache(tokens)
    for row, ids in enumerate(tokens.tolist()):
        expected, states = twin(module, ids)
        np.testing.assert_allclose(logits[row].numpy(), expected, atol=1e-4)
        for layer in range(2):
            np.testing.assert_allclose(cache[f"blocks.{layer}.hook_state"][row].numpy(), states[layer], atol=1e-5)


def test_forget_gates_start_open() -> None:
    bias = LSTM(SMALL, seed=0).requires_grad_(False).blocks[1].lstm.bias_ih_l0
    assert bool((bias[10:20] == 1).all())
    assert float(bias[:10].abs().max()) < 10**-0.5


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="every size of an LSTM must be at least 1"):
        LSTMConfig(d_vocab=11, n_ctx=7, n_layers=0)
