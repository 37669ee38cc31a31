"""Planted networks: the quantities that they use are known by construction, so they can test the interventions.

Every network has two ReLU blocks without norms. Block 0 looks up its token and writes features into the residual
stream; block 1 reads some of them and writes answer logits. The features at `resid_pre` of layer 1 (`SITE`) lie along
randomly rotated orthonormal directions. With y the standardized quantity:

    code       y + τ noise             a copy from which a network can compute its answer
    correlated S (ρ y + √(1−ρ²) g)     nuisance correlated with y, with S² = 9 times its variance
    unrelated  S k                     nuisance uncorrelated with y
    faint      ε y                     a clean copy that block 1 does not read

| network | quantity | block 1 reads | expected verdict |
|---|---|---|---|
| `uses_entropy` | entropy | code, and which answer is named | used |
| `uses_belief` | belief | code | used |
| `ignores_entropy` | entropy | a belief code, uncorrelated with entropy | not used |
| `ignores_belief` | belief | two tokens whose difference names the answer, and an entropy code | not used |

The belief's decoder in `ignores_belief` also has a component along `key`, which cancels nuisance. Block 1 reads `key`
for another purpose, so a swap along the decoder steers the answer although the network does not use the belief.

The least-squares read-out of the first two networks lies along `faint`, which is free of noise. It has under 1 % of
the site's variance and block 1 does not read it; without it, y is still decodable with R² = 1 / (1 + τ²). Code and
faint copy are the same quantity written twice: the direction that decodes best need not be the one that is read.

References:
    Haufe et al. 2014, NeuroImage 87 (weights of a decoder and the pattern of a source); Makelov, Lange & Nanda 2023,
    arXiv:2311.17030 (a swap along a direction that the model does not use can steer the answer).
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.run import RESID_PRE
from bayesgeom.selftest.planted_network import PlantedBlock, PlantedModel, PlantedNetwork
from bayesgeom.selftest.planted_task import LEVELS, N_ANSWERS, N_G, N_K, PlantedTask, beliefs, entropies, factors
from bayesgeom.stats.subspace import random_subspaces

SITE, LAYER = RESID_PRE, 1  # the site that holds the features
WIDTH = 61
NOISE, NUISANCE, CORRELATION, FAINT = 0.2, 3.0, 0.7, 0.3  # τ, S, ρ, ε
GATE = 3.0  # size of a one-hot code that opens a gate: large enough that noise does not open it
_CLOSED = 6.0  # amount that a closed gate subtracts, in standard deviations of a code
_OFF_ANSWER = -25.0  # logit of every id that is not an answer

Features = Mapping[str, Float64[Tensor, "token coordinate"]]
Units = tuple[Float64[Tensor, "unit d_model"], Float64[Tensor, " unit"], Float64[Tensor, "unit answer"]]


def uses_entropy(task: PlantedTask | None = None) -> PlantedModel:
    """Return a network that computes its confidence from a linear entropy code and its answer from a one-hot code."""
    features = _quantity(standardized(entropies()[:, None]), _numbers()) | {"answer": GATE * one_hot(factors()[:, 0])}
    directions = _directions(features)
    gates = [(answer, directions["answer"][:, answer]) for answer in range(N_ANSWERS)]
    return _planted("planted-uses-entropy", features, _gated(directions["code"][:, 0], gates, n_needed=1), task)


def uses_belief(task: PlantedTask | None = None) -> PlantedModel:
    """Return a network that computes log p̂ of each answer from a linear belief code, by linear interpolation."""
    features = _quantity(belief_coordinates(), _planes())
    return _planted("planted-uses-belief", features, _log_of_belief(_directions(features)["code"]), task)


def ignores_entropy(task: PlantedTask | None = None) -> PlantedModel:
    """Return a network that holds entropy like `uses_entropy` but answers from a belief code uncorrelated with it."""
    noise, _, _ = _planes()
    copy = _quantity(standardized(entropies()[:, None]), _numbers())
    features = copy | {"read": belief_coordinates() + NOISE * noise}
    return _planted("planted-ignores-entropy", features, _log_of_belief(_directions(features)["read"]), task)


def ignores_belief(task: PlantedTask | None = None) -> PlantedModel:
    """Return a network that holds belief like `uses_belief` but computes its answer from two other codes.

    `sum` is the one-hot code of (answer + k) mod 3 and `key` that of k; each alone is independent of the answer.
    """
    answer, _, _, k = factors().T
    noise, _, _ = _numbers()
    features = _quantity(belief_coordinates(), _planes()) | {
        "sum": GATE * one_hot((answer + k) % N_ANSWERS),
        "key": GATE * one_hot(k),
        "read": standardized(entropies()[:, None]) + NOISE * noise,
    }
    directions = _directions(features)
    gates = [
        ((total - key) % N_ANSWERS, directions["sum"][:, total] + directions["key"][:, key])
        for total in range(N_ANSWERS)
        for key in range(N_K)
    ]
    return _planted("planted-ignores-belief", features, _gated(directions["read"][:, 0], gates, n_needed=2), task)


def standardized(values: Float64[Tensor, "token coordinate"]) -> Float64[Tensor, "token coordinate"]:
    """Return values with mean 0 and variance 1 in every coordinate, with all tokens equally likely."""
    centered = values - values.mean(dim=0)
    return centered / centered.square().mean(dim=0).sqrt()


def one_hot(of: Int64[Tensor, " token"]) -> Float64[Tensor, "token value"]:
    """Return the one-hot code in float64."""
    return torch.nn.functional.one_hot(of).double()


def simplex_plane() -> Float64[Tensor, "answer 2"]:
    """Return orthonormal coordinates of the plane in which probabilities of the answers vary."""
    flat = torch.eye(N_ANSWERS, dtype=torch.float64) - 1 / N_ANSWERS
    basis: Tensor = torch.linalg.svd(flat).U[:, : N_ANSWERS - 1]
    return basis


def belief_coordinates() -> Float64[Tensor, "token 2"]:
    """Return the exact belief in its plane, standardized; by symmetry both coordinates have the same scale."""
    return standardized(beliefs() @ simplex_plane())


def _numbers() -> tuple[Float64[Tensor, "token 1"], Float64[Tensor, "token 1"], Float64[Tensor, "token 2"]]:
    """Return noise, correlated nuisance and unrelated nuisance of a scalar quantity; all are uncorrelated."""
    _, _, g, k = factors().T
    level = standardized(g[:, None].double())
    return standardized(level.square()), level, standardized(one_hot(k) @ simplex_plane())


def _planes() -> tuple[Float64[Tensor, "token 2"], Float64[Tensor, "token 2"], Float64[Tensor, "token 2"]]:
    """Return the same for the two coordinates of a belief."""
    _, _, g, k = factors().T
    level, plane = standardized(g[:, None].double()), standardized(one_hot(k) @ simplex_plane())
    return standardized(plane * level), plane, torch.cat([level, standardized(level.square())], dim=1)


def _quantity(
    y: Float64[Tensor, "token coordinate"],
    nuisance: tuple[
        Float64[Tensor, "token coordinate"], Float64[Tensor, "token coordinate"], Float64[Tensor, "token other"]
    ],
) -> dict[str, Float64[Tensor, "token _"]]:
    """Return the features of a quantity that every network holds."""
    noise, companion, unrelated = nuisance
    return {
        "code": y + NOISE * noise,
        "correlated": NUISANCE * (CORRELATION * y + (1 - CORRELATION**2) ** 0.5 * companion),
        "unrelated": NUISANCE * unrelated,
        "faint": FAINT * y,
    }


def _frame() -> Float64[Tensor, "d_model d_model"]:
    return random_subspaces(WIDTH, WIDTH, draws=1, seed=0)[0]


def _directions(features: Features) -> dict[str, Float64[Tensor, "d_model coordinate"]]:
    """Return the directions of each feature, then those of the logits; the rest holds the tokens' codes."""
    named = {name: values.shape[1] for name, values in features.items()} | {"logits": N_ANSWERS}
    sizes = [*named.values(), WIDTH - sum(named.values())]
    return dict(zip((*named, "tokens"), _frame().split(sizes, dim=1), strict=True))


def _planted(name: str, features: Features, reader: Units, task: PlantedTask | None) -> PlantedModel:
    chosen, directions = task or PlantedTask(), _directions(features)
    reads, biases, answers = reader
    network = PlantedNetwork(chosen.d_vocab, WIDTH, (chosen.n_tokens, len(reads)))
    codes = _token_codes(directions["tokens"])
    written = sum(values @ directions[name].T for name, values in features.items())
    logits = torch.zeros(chosen.d_vocab, WIDTH, dtype=torch.float64)
    logits[chosen.n_tokens :] = directions["logits"].T
    with torch.no_grad():
        network.embed.weight.zero_()[: chosen.n_tokens] = codes
        _set_block(network, 0, (*_lookup(codes), torch.as_tensor(written)))
        _set_block(network, 1, (reads, biases, answers @ directions["logits"].T))
        network.unembed.weight.copy_(logits)
        network.unembed.bias.fill_(_OFF_ANSWER)[chosen.n_tokens :] = 0.0
    return PlantedModel(network, name=name, task=chosen)


def _set_block(network: PlantedNetwork, layer: int, weights: Units) -> None:
    reads, biases, writes = weights
    block = network.blocks[layer]
    assert isinstance(block, PlantedBlock), "the network has no others"
    block.W_in.weight.copy_(reads)
    block.W_in.bias.copy_(biases)
    block.W_out.weight.copy_(writes.T)


def _token_codes(directions: Float64[Tensor, "d_model d_code"]) -> Float64[Tensor, "token d_model"]:
    drawn = torch.randn(
        len(factors()), directions.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    return torch.nn.functional.normalize(drawn, dim=1) @ directions.T


def _lookup(codes: Float64[Tensor, "token d_model"]) -> tuple[Tensor, Tensor]:
    """Return one unit per token, which is 1 for its own code and 0 for all others."""
    overlaps = codes @ codes.T - 2 * torch.eye(len(codes), dtype=torch.float64)
    threshold = (1 + float(overlaps.max())) / 2
    scale = 1 / (1 - threshold)
    return codes * scale, torch.full((len(codes),), -threshold * scale, dtype=torch.float64)


def _interpolation(
    knots: Float64[Tensor, " knot"], values: Float64[Tensor, " knot"]
) -> tuple[float, Float64[Tensor, " knot"]]:
    """Return v₀ and c with v₀ + Σ c_j ReLU(x − knot_j) = v at the knots, linear between them, constant outside."""
    flat = torch.zeros(1, dtype=torch.float64)
    slopes = torch.cat([flat, values.diff() / knots.diff(), flat])
    return float(values[0]), slopes.diff()


def _log_odds_of_entropy() -> tuple[float, Float64[Tensor, " knot"], Float64[Tensor, " knot"]]:
    """Return v₀, c and knots of the named answer's log-odds against any other, as a function of entropy."""
    by_level = slice(0, len(LEVELS) * len(factors()) // (N_ANSWERS * len(LEVELS)), N_K * N_G)
    y = standardized(entropies()[:, None])[by_level, 0]
    named = torch.tensor(LEVELS, dtype=torch.float64)
    order = y.argsort()
    start, changes = _interpolation(y[order], (named / ((1 - named) / (N_ANSWERS - 1))).log()[order])
    return start, changes, y[order]


def _gated(
    code: Float64[Tensor, " d_model"], gates: Sequence[tuple[int, Float64[Tensor, " d_model"]]], *, n_needed: int
) -> Units:
    """Return units that give an answer the log-odds of the coded entropy if its gate is open, and 0 otherwise."""
    start, changes, knots = _log_odds_of_entropy()
    reads, biases, answers = [], [], []
    for answer, direction in gates:
        gate = direction / GATE
        target = torch.nn.functional.one_hot(torch.tensor(answer), N_ANSWERS).double()
        reads += [gate, *(code + _CLOSED * gate for _ in knots)]
        biases += [1.0 - n_needed, *(-float(knot) - _CLOSED * n_needed for knot in knots)]
        answers += [start * target, *(float(change) * target for change in changes)]
    return torch.stack(reads), torch.tensor(biases, dtype=torch.float64), torch.stack(answers)


def _log_of_belief(code: Float64[Tensor, "d_model 2"]) -> Units:
    """Return units that give every answer the logarithm of its coded probability."""
    flat, coordinates = beliefs() - 1 / N_ANSWERS, beliefs() @ simplex_plane()
    scale = coordinates.square().mean(dim=0).sqrt()  # the divisor in `belief_coordinates`
    rows = (simplex_plane() * scale) @ code.T  # p_a − 1/A of a site's vector
    assert torch.allclose(belief_coordinates() * scale @ simplex_plane().T, flat), "the plane holds every belief"
    knots = beliefs().unique()
    _, changes = _interpolation(knots, knots.log())
    reads = rows.repeat_interleave(len(knots), dim=0)
    biases = (1 / N_ANSWERS - knots).repeat(N_ANSWERS)
    answers = torch.eye(N_ANSWERS, dtype=torch.float64).repeat_interleave(len(knots), dim=0)
    return reads, biases, answers * changes.repeat(N_ANSWERS)[:, None]
