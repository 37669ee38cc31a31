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
| `uses_entropy` | entropy | code, and which answer is named | causal |
| `uses_belief` | belief | code | causal |
| `ignores_entropy` | entropy | a belief code, uncorrelated with entropy | inert |
| `ignores_belief` | belief | two tokens whose difference names the answer, and an entropy code | inert |
| `looks_up` | entropy | which of the 15 posteriors it is, a one-hot code | causal; goes with the category code |

`looks_up` never computes entropy: random token code → one of 15 one-hot categories → logits. Yet entropy is linear in
the one-hot code, so swapping it along that direction moves the answer. The verdict must be the same at every τ.

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
from dataclasses import dataclass
from typing import ClassVar, cast, final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from bayesgeom.core import MLP_OUT, RESID_POST, RESID_PRE, TOKEN_EMBEDDINGS, InvalidArgument, ModelSpec, Site, Trials
from bayesgeom.models.base import Model
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.stats.information import entropy_bits
from bayesgeom.stats.subspace import random_subspaces, standardized
from bayesgeom.tasks.base import WindTunnel

LEVELS = (0.4, 0.55, 0.7, 0.85, 0.97)  # probability of the named answer
N_ANSWERS, N_G, N_K = 3, 5, 3


@final
@dataclass(frozen=True, kw_only=True)
class PlantedTask(WindTunnel):
    """The exact posterior at each position depends only on that position's token; tokens are independent.

    A token encodes an answer, its probability, and two nuisance values that do not affect the posterior:

        token = (answer a, level l, nuisance g, nuisance k), uniform over all combinations,
        P(a | token) = LEVELS[l], the other answers share the rest equally.

    So all moments at a position are finite sums over `n_tokens` tokens and can be computed exactly. Entropy depends on
    the level alone; averaged over answers, belief and entropy are uncorrelated. The two sequences of a pair share the
    nuisance and differ in answer and level.

    With `shares_nuisance=False` donors draw their own nuisance, so a swap can transfer it.
    """

    name: ClassVar[str] = "planted"
    length: int = 7
    shares_nuisance: bool = True

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidArgument(f"length must be a positive integer, got {self.length}.")

    @property
    def n_tokens(self) -> int:
        """Number of input tokens; the ids of the answers follow."""
        return N_ANSWERS * len(LEVELS) * N_G * N_K

    @property
    def d_vocab(self) -> int:
        return self.n_tokens + N_ANSWERS

    @property
    def n_pos(self) -> int:
        return self.length

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self.trials(self._parts(n, N_ANSWERS * len(LEVELS), generator), self._nuisance(n, generator))

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        nuisance = self._nuisance(n, generator)
        original = self.trials(self._parts(n, N_ANSWERS * len(LEVELS), generator), nuisance)
        others = nuisance if self.shares_nuisance else self._nuisance(n, generator)
        return original, self.trials(self._parts(n, N_ANSWERS * len(LEVELS), generator), others)

    def trials(self, posterior: Int64[Tensor, "batch pos"], nuisance: Int64[Tensor, "batch pos"]) -> Trials:
        """Return the sequences of given (answer, level) and (g, k) pairs, each pair encoded as one number."""
        tokens = posterior * (N_G * N_K) + nuisance
        predictive = beliefs()[tokens.cpu()].to(tokens.device)
        first = self.n_tokens
        return Trials(
            tokens=tokens,
            scored=torch.ones_like(tokens, dtype=torch.bool),
            answers=torch.arange(first, first + N_ANSWERS, device=tokens.device),
            predictive=predictive,
            belief=predictive,
            labels=posterior // len(LEVELS) + first,
            token_sets={"inputs": torch.arange(first, device=tokens.device)},
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return `uniform` over the answers."""
        return {"uniform": torch.full_like(trials.at_scored(trials.predictive), 1 / N_ANSWERS)}

    def token_labels(self) -> Sequence[str]:
        named = [f"a{a}l{level}g{g}k{k}" for a, level, g, k in factors().tolist()]
        return [*named, *(f"answer {answer}" for answer in range(N_ANSWERS))]

    def _parts(self, n: int, n_values: int, generator: torch.Generator) -> Int64[Tensor, "batch pos"]:
        return torch.randint(n_values, (n, self.length), generator=generator, device=generator.device)

    def _nuisance(self, n: int, generator: torch.Generator) -> Int64[Tensor, "batch pos"]:
        return self._parts(n, N_G * N_K, generator)


def factors() -> Int64[Tensor, "token 4"]:
    """Return answer, level, g and k of every token."""
    return torch.cartesian_prod(*(torch.arange(size) for size in (N_ANSWERS, len(LEVELS), N_G, N_K)))


def beliefs() -> Float64[Tensor, "token answer"]:
    """Return the exact posterior at every token."""
    answer, level = factors()[:, 0], factors()[:, 1]
    named = torch.tensor(LEVELS, dtype=torch.float64)[level, None]
    is_named = torch.nn.functional.one_hot(answer, N_ANSWERS).double()
    return is_named * named + (1 - is_named) * (1 - named) / (N_ANSWERS - 1)


def entropies() -> Float64[Tensor, " token"]:
    """Return the exact entropy at every token, in bits."""
    return entropy_bits(beliefs())


@final
class PlantedBlock(nn.Module):
    """resid_pre → + W_out ReLU(W_in resid_pre + b) → resid_post."""

    def __init__(self, d_model: int, d_hidden: int) -> None:
        super().__init__()
        self.W_in, self.W_out = nn.Linear(d_model, d_hidden), nn.Linear(d_hidden, d_model, bias=False)
        self.hook_resid_pre, self.hook_mlp_out, self.hook_resid_post = HookPoint(), HookPoint(), HookPoint()

    def forward(self, resid: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        resid = self.hook_resid_pre(resid)
        return cast(Tensor, self.hook_resid_post(resid + self.hook_mlp_out(self.W_out(self.W_in(resid).relu()))))


@final
class PlantedNetwork(HookedRootModule):
    """Tokens in, logits over all ids out, each position alone; weights are random until they are planted."""

    def __init__(self, d_vocab: int, d_model: int, d_hidden: tuple[int, ...], *, seed: int = 0) -> None:
        super().__init__()
        self.d_hidden = d_hidden
        self.embed = nn.Embedding(d_vocab, d_model)
        self.blocks = nn.ModuleList(PlantedBlock(d_model, size) for size in d_hidden)
        self.unembed = nn.Linear(d_model, d_vocab)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                nn.init.normal_(parameter, std=d_model**-0.5, generator=generator)
        self.setup()  # type: ignore[no-untyped-call]  # transformer-lens does not annotate it

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        resid = self.embed(tokens)
        for block in self.blocks:
            resid = block(resid)
        return cast(Tensor, self.unembed(resid))


@final
class PlantedModel(Model):
    """A planted network behind the `Model` interface."""

    def __init__(self, module: PlantedNetwork, *, name: str, task: WindTunnel) -> None:
        self.module, self.task = module, task
        self._module = module
        self.withheld: Mapping[Site, str] = {}
        weight = module.embed.weight
        self.spec = ModelSpec(
            name=name,
            architecture="planted",
            n_layers=len(module.blocks),
            d_model=weight.shape[1],
            d_mlp=max(module.d_hidden),
            d_vocab=len(weight),
            n_ctx=None,
            n_parameters=sum(parameter.numel() for parameter in module.parameters()),
            dtype="float32",
            device=str(weight.device),
            weights_hash=weights_hash(module.state_dict()),
        )

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset({RESID_PRE, MLP_OUT, RESID_POST, TOKEN_EMBEDDINGS})

    def point(self, site: Site, layer: int) -> nn.Module:
        return self._module.get_submodule(f"blocks.{layer}.hook_{site.name}")

    @torch.no_grad()
    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        assert site == TOKEN_EMBEDDINGS, "no other static site is available"
        return cast(Tensor, self._module.embed(tokens))

    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        return trials.at_scored(self._module(trials.tokens))

    def untrained_copy(self, seed: int) -> "PlantedModel":
        module = PlantedNetwork(self.spec.d_vocab, self.spec.d_model, self._module.d_hidden, seed=seed)
        assert self.task is not None, "set on construction"
        return PlantedModel(module, name=f"{self.spec.name} untrained, seed {seed}", task=self.task)

    def replayer(self) -> PlainLoop:
        return PlainLoop(self)


SITE, LAYER = RESID_PRE, 1  # the site that holds the features
WIDTH = 61
NOISE, NUISANCE, CORRELATION, FAINT = 0.2, 3.0, 0.7, 0.3  # τ, S, ρ, ε
GATE = 3.0  # size of a one-hot code that opens a gate: large enough that noise does not open it
_CLOSED = 6.0  # amount that a closed gate subtracts, in standard deviations of a code
_OFF_ANSWER = -25.0  # logit of every id that is not an answer

Features = Mapping[str, Float64[Tensor, "token coordinate"]]
Units = tuple[Float64[Tensor, "unit d_model"], Float64[Tensor, " unit"], Float64[Tensor, "unit answer"]]


def uses_entropy(*, noise: float = NOISE) -> PlantedModel:
    """Return a network that computes its confidence from a linear entropy code and its answer from a one-hot code."""
    features = _quantity(standardized(entropies()[:, None]), _numbers(), noise)
    features |= {"answer": GATE * one_hot(factors()[:, 0])}
    directions = _directions(features)
    gates = [(answer, directions["answer"][:, answer]) for answer in range(N_ANSWERS)]
    return _planted("planted-uses-entropy", features, _gated(directions["code"][:, 0], gates, n_needed=1))


def uses_belief(*, noise: float = NOISE) -> PlantedModel:
    """Return a network that computes log p̂ of each answer from a linear belief code, by linear interpolation."""
    features = _quantity(belief_coordinates(), _planes(), noise)
    return _planted("planted-uses-belief", features, _log_of_belief(_directions(features)["code"]))


def ignores_entropy(*, noise: float = NOISE) -> PlantedModel:
    """Return a network that holds entropy like `uses_entropy` but answers from a belief code uncorrelated with it."""
    features = _quantity(standardized(entropies()[:, None]), _numbers(), noise)
    features |= {"read": belief_coordinates() + noise * _planes()[0]}
    return _planted("planted-ignores-entropy", features, _log_of_belief(_directions(features)["read"]))


def ignores_belief(*, noise: float = NOISE) -> PlantedModel:
    """Return a network that holds belief like `uses_belief` but computes its answer from two other codes.

    `sum` is the one-hot code of (answer + k) mod 3 and `key` that of k; each alone is independent of the answer.
    """
    answer, _, _, k = factors().T
    features = _quantity(belief_coordinates(), _planes(), noise) | {
        "sum": GATE * one_hot((answer + k) % N_ANSWERS),
        "key": GATE * one_hot(k),
        "read": standardized(entropies()[:, None]) + noise * _numbers()[0],
    }
    directions = _directions(features)
    gates = [
        ((total - key) % N_ANSWERS, directions["sum"][:, total] + directions["key"][:, key])
        for total in range(N_ANSWERS)
        for key in range(N_K)
    ]
    return _planted("planted-ignores-belief", features, _gated(directions["read"][:, 0], gates, n_needed=2))


def looks_up(*, noise: float = NOISE) -> PlantedModel:
    """Return a network that looks up its logits by the category of its token, and never computes the entropy."""
    category = torch.arange(len(factors())) // (N_G * N_K)
    features = {"category": GATE * one_hot(category) + noise * _numbers()[0]}
    logits = beliefs()[:: N_G * N_K].log()
    reads = 2.5 / GATE * _directions(features)["category"].T  # units are 1 in their own category and 0 in others
    biases = torch.full((len(logits),), -1.5, dtype=torch.float64)
    return _planted("planted-looks-up", features, (reads, biases, logits))


def one_hot(of: Int64[Tensor, " token"]) -> Float64[Tensor, "token value"]:
    """Return the one-hot code in float64."""
    return torch.nn.functional.one_hot(of).double()


def simplex_plane() -> Float64[Tensor, "answer 2"]:
    """Return orthonormal coordinates of the plane in which probabilities of the answers vary."""
    flat = torch.eye(N_ANSWERS, dtype=torch.float64) - 1 / N_ANSWERS
    return cast(Tensor, torch.linalg.svd(flat).U[:, : N_ANSWERS - 1])


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
    size: float,
) -> dict[str, Float64[Tensor, "token _"]]:
    """Return the features of a quantity, its code with noise of this size."""
    noise, companion, unrelated = nuisance
    return {
        "code": y + size * noise,
        "correlated": NUISANCE * (CORRELATION * y + (1 - CORRELATION**2) ** 0.5 * companion),
        "unrelated": NUISANCE * unrelated,
        "faint": FAINT * y,
    }


def _directions(features: Features) -> dict[str, Float64[Tensor, "d_model coordinate"]]:
    """Return the directions of each feature, then those of the logits; the rest holds the tokens' codes."""
    named = {name: values.shape[1] for name, values in features.items()} | {"logits": N_ANSWERS}
    sizes = [*named.values(), WIDTH - sum(named.values())]
    frame = random_subspaces(WIDTH, WIDTH, draws=1, seed=0)[0]
    return dict(zip((*named, "tokens"), frame.split(sizes, dim=1), strict=True))


def _planted(name: str, features: Features, reader: Units) -> PlantedModel:
    chosen, directions = PlantedTask(), _directions(features)
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
