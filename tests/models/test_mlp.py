"""The MLP: per position it sees one token, over the prefix all of them, and neither sees what comes later."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.native.mlp import MLPConfig, PositionwiseMLP
from tests.weights import perturbed

POSITION = MLPConfig(d_vocab=11, n_ctx=7, n_layers=2, d_model=10, d_mlp=13)
PREFIX = replace(POSITION, context="prefix", d_embed=3, tied=False)


def lively(config: MLPConfig) -> PositionwiseMLP:
    return perturbed(PositionwiseMLP(config, seed=0), 0.3).eval()


def some_tokens(n_pos: int = 7) -> Tensor:
    return torch.randint(11, (5, n_pos), generator=torch.Generator().manual_seed(2))


def norm(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    scaled = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def twin(module: PositionwiseMLP, tokens: list[int], pos: int) -> np.ndarray:
    """Logits of one position; the prefix as one long vector with zeros to its left."""
    config, weights = module.config, {name: t.double().numpy() for name, t in module.state_dict().items()}
    embedded = weights["embed.weight"][tokens]
    if config.context == "position":
        x = embedded[pos] + weights["pos_embed.weight"][pos]
    else:
        padded = np.concatenate([np.zeros((config.n_ctx, config.width)), embedded[: pos + 1]])[-config.n_ctx :]
        x = weights["window.bias"] + np.einsum("mek,ke->m", weights["window.weight"], padded)
    for layer in range(config.n_layers):
        own = {name.removeprefix(f"blocks.{layer}."): tensor for name, tensor in weights.items()}
        hidden = own["W_in.weight"] @ norm(x, own, "ln") + own["W_in.bias"]
        x = x + own["W_out.weight"] @ (hidden * (1 + erf(hidden / np.sqrt(2))) / 2) + own["W_out.bias"]
    return weights["embed.weight" if config.tied else "unembed.weight"] @ norm(x, weights, "ln_final")


@pytest.mark.parametrize(("config", "n_pos"), [(POSITION, 7), (POSITION, 3), (PREFIX, 7), (PREFIX, 3), (PREFIX, 13)])
def test_logits_match_one_position_at_a_time(config: MLPConfig, n_pos: int) -> None:
    module, tokens = lively(config), some_tokens(n_pos)
    with torch.no_grad():
        logits = module(tokens)
    expected = [[twin(module, row, pos) for pos in range(n_pos)] for row in tokens.tolist()]
    np.testing.assert_allclose(logits.numpy(), np.array(expected), atol=1e-4)


def test_a_token_enters_at_its_own_place() -> None:
    module, ids = lively(PREFIX), torch.arange(11)
    with torch.no_grad():
        alone = module.run_with_cache(ids[:, None])[1]["blocks.0.hook_resid_pre"][:, 0]
        torch.testing.assert_close(module.entering(ids), alone - module.window.bias, atol=1e-5, rtol=1e-5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="every size of an MLP must be at least 1"):
        replace(POSITION, n_layers=0)
    for broken in ({"context": "position"}, {"tied": True}):
        with pytest.raises(
            InvalidArgument, match="requires context='prefix', which projects embeddings, and tied=False"
        ):
            replace(PREFIX, **broken)
