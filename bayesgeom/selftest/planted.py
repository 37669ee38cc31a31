"""Planted networks: what they use is known by construction, so that an instrument can be tested on them.

Every network has two ReLU blocks without norms. Block 0 looks its token up and writes features into the residual
stream; block 1 reads some of them and writes answer logits. What lies at `resid_pre` of layer 1 (`SITE`) is, in
directions that are orthonormal and turned out of the coordinate axes, with y the standardized quantity:

    code       y + τ noise             the copy that a network can compute its answer from
    correlated S (ρ y + √(1−ρ²) g)     nuisance that goes with y and has S² = 9 times its variance
    unrelated  S k                     nuisance that does not
    faint      ε y                     a clean copy that nothing reads

| network | quantity | block 1 reads | answer |
|---|---|---|---|
| `uses_entropy` | entropy | code, and which answer is named | used |
| `uses_belief` | belief | code | used |
| `ignores_entropy` | entropy | a belief code, uncorrelated with entropy | not used |
| `ignores_belief` | belief | two tokens whose difference names the answer, and an entropy code | not used |

The belief's decoder in `ignores_belief` also has a component along `key`, by which it cancels nuisance and which is
read for another purpose: a swap along it steers the answer, although nothing uses the belief.

The least-squares read-out of the first two is along `faint`, which is free of noise: it has under 1 % of the site's
variance, is read by nothing, and without it y is still decodable with R² = 1 / (1 + τ²). Code and faint copy are one
quantity written twice; that a direction decodes best does not make it the one that is read.

References:
    Haufe et al. 2014, NeuroImage 87 (weights of a decoder and the pattern of a source); Makelov, Lange & Nanda 2023,
    arXiv:2311.17030 (a swap along a direction that nothing reads can steer the answer).
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from bayesgeom.core.sites import RESID_PRE
from bayesgeom.selftest.planted_network import PlantedBlock, PlantedModel, PlantedNetwork
from bayesgeom.selftest.planted_task import LEVELS, N_ANSWERS, N_G, N_K, PlantedTask, beliefs, entropies, factors
from bayesgeom.stats.subspace import random_subspaces

SITE, LAYER = RESID_PRE, 1  # where features lie
WIDTH = 61
NOISE, NUISANCE, CORRELATION, FAINT = 0.2, 3.0, 0.7, 0.3  # τ, S, ρ, ε
GATE = 3.0  # size of a one-hot code that opens a gate: large, so that noise does not open it
_CLOSED = 6.0  # in standard deviations of a code: what a closed gate subtracts
_OFF_ANSWER = -25.0  # logit of every id that is no answer

Features = Mapping[str, Float64[Tensor, "token coordinate"]]
Units = tuple[Float64[Tensor, "unit d_model"], Float64[Tensor, " unit"], Float64[Tensor, "unit answer"]]


def uses_entropy(task: PlantedTask | None = None) -> PlantedModel:
    """Computes its confidence from a linear entropy code; which answer it favors comes from a one-hot code."""
    features = _quantity(standardized(entropies()[:, None]), _numbers()) | {"answer": GATE * one_hot(factors()[:, 0])}
    directions = _directions(features)
    gates = [(answer, directions["answer"][:, answer]) for answer in range(N_ANSWERS)]
    return _planted("planted-uses-entropy", features, _gated(directions["code"][:, 0], gates, n_needed=1), task)


def uses_belief(task: PlantedTask | None = None) -> PlantedModel:
    """Computes its answer from a linear belief code: log p̂ of each answer, by piecewise linear interpolation."""
    features = _quantity(belief_coordinates(), _planes())
    return _planted("planted-uses-belief", features, _log_of_belief(_directions(features)["code"]), task)


def ignores_entropy(task: PlantedTask | None = None) -> PlantedModel:
    """Holds entropy as `uses_entropy` does and computes its answer from a belief code, uncorrelated with entropy."""
    noise, _, _ = _planes()
    copy = _quantity(standardized(entropies()[:, None]), _numbers())
    features = copy | {"read": belief_coordinates() + NOISE * noise}
    return _planted("planted-ignores-entropy", features, _log_of_belief(_directions(features)["read"]), task)


def ignores_belief(task: PlantedTask | None = None) -> PlantedModel:
    """Holds belief as `uses_belief` does and computes its answer from two codes that say nothing of it one by one.

    `sum` is one-hot of (answer + k) mod 3 and `key` one-hot of k: each alone is independent of the answer.
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
    """Mean 0 and variance 1 in every coordinate, tokens being equally likely."""
    centered = values - values.mean(dim=0)
    return centered / centered.square().mean(dim=0).sqrt()


def one_hot(of: Int64[Tensor, " token"]) -> Float64[Tensor, "token value"]:
    """0 and 1 in float64."""
    return torch.nn.functional.one_hot(of).double()


def simplex_plane() -> Float64[Tensor, "answer 2"]:
    """Orthonormal coordinates of the plane in which probabilities of the answers vary."""
    flat = torch.eye(N_ANSWERS, dtype=torch.float64) - 1 / N_ANSWERS
    basis: Tensor = torch.linalg.svd(flat).U[:, : N_ANSWERS - 1]
    return basis


def belief_coordinates() -> Float64[Tensor, "token 2"]:
    """The exact belief in its plane, standardized; by symmetry both coordinates have one scale."""
    return standardized(beliefs() @ simplex_plane())


def _numbers() -> tuple[Float64[Tensor, "token 1"], Float64[Tensor, "token 1"], Float64[Tensor, "token 2"]]:
    """For a number: noise in its code, and the nuisance that goes with it or does not. All are uncorrelated."""
    _, _, g, k = factors().T
    level = standardized(g[:, None].double())
    return standardized(level.square()), level, standardized(one_hot(k) @ simplex_plane())


def _planes() -> tuple[Float64[Tensor, "token 2"], Float64[Tensor, "token 2"], Float64[Tensor, "token 2"]]:
    """The same for the two coordinates of a belief."""
    _, _, g, k = factors().T
    level, plane = standardized(g[:, None].double()), standardized(one_hot(k) @ simplex_plane())
    return standardized(plane * level), plane, torch.cat([level, standardized(level.square())], dim=1)


def _quantity(
    y: Float64[Tensor, "token coordinate"],
    nuisance: tuple[
        Float64[Tensor, "token coordinate"], Float64[Tensor, "token coordinate"], Float64[Tensor, "token other"]
    ],
) -> dict[str, Float64[Tensor, "token _"]]:
    """A quantity as every network holds it."""
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
    """Where each feature is written. The answers' logits come after them, and what is left holds the tokens' codes."""
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
    """One unit a token: 1 on its own code and 0 on all others."""
    overlaps = codes @ codes.T - 2 * torch.eye(len(codes), dtype=torch.float64)
    threshold = (1 + float(overlaps.max())) / 2
    scale = 1 / (1 - threshold)
    return codes * scale, torch.full((len(codes),), -threshold * scale, dtype=torch.float64)


def _interpolation(
    knots: Float64[Tensor, " knot"], values: Float64[Tensor, " knot"]
) -> tuple[float, Float64[Tensor, " knot"]]:
    """v₀ and c with v₀ + Σ c_j ReLU(x − knot_j) = v at the knots, straight between them and flat outside."""
    flat = torch.zeros(1, dtype=torch.float64)
    slopes = torch.cat([flat, values.diff() / knots.diff(), flat])
    return float(values[0]), slopes.diff()


def _log_odds_of_entropy() -> tuple[float, Float64[Tensor, " knot"], Float64[Tensor, " knot"]]:
    """v₀, c and knots: the named answer's log-odds against each other one, as a function of standardized entropy."""
    by_level = slice(0, len(LEVELS) * len(factors()) // (N_ANSWERS * len(LEVELS)), N_K * N_G)
    y = standardized(entropies()[:, None])[by_level, 0]
    named = torch.tensor(LEVELS, dtype=torch.float64)
    order = y.argsort()
    start, changes = _interpolation(y[order], (named / ((1 - named) / (N_ANSWERS - 1))).log()[order])
    return start, changes, y[order]


def _gated(
    code: Float64[Tensor, " d_model"], gates: Sequence[tuple[int, Float64[Tensor, " d_model"]]], *, n_needed: int
) -> Units:
    """Units that give an answer the log-odds of the coded entropy where its gate is open, and 0 elsewhere."""
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
    """Units that give every answer the logarithm of its coded probability."""
    flat, coordinates = beliefs() - 1 / N_ANSWERS, beliefs() @ simplex_plane()
    scale = coordinates.square().mean(dim=0).sqrt()  # what `belief_coordinates` divided by
    rows = (simplex_plane() * scale) @ code.T  # p_a − 1/A of a site's vector
    assert torch.allclose(belief_coordinates() * scale @ simplex_plane().T, flat), "the plane holds every belief"
    knots = beliefs().unique()
    _, changes = _interpolation(knots, knots.log())
    reads = rows.repeat_interleave(len(knots), dim=0)
    biases = (1 / N_ANSWERS - knots).repeat(N_ANSWERS)
    answers = torch.eye(N_ANSWERS, dtype=torch.float64).repeat_interleave(len(knots), dim=0)
    return reads, biases, answers * changes.repeat(N_ANSWERS)[:, None]
