"""A task whose answer follows from the current token, and a model that reads it off known coordinates."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar, final

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.core.edits import SubspaceKind
from bayesgeom.core.run import Trials
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.intervention import Intervention
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.subspaces.base import Fit, InterventionSite
from bayesgeom.subspaces.fits import as_fit
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from tests.weights import perturbed

N_TOKENS, N_ANSWERS, WIDTH = 7, 5, 13  # the answer lives in coordinates 0 … 4, the rest is written and never read


def answer_table() -> Float64[Tensor, "token answer"]:
    """Exact predictive of each token: the same probabilities in different orders, so that all entropies are equal."""
    probabilities = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    return torch.stack([probabilities[torch.randperm(N_ANSWERS, generator=generator)] for _ in range(N_TOKENS)])


@final
@dataclass(frozen=True, kw_only=True)
class Echo(WindTunnel):
    """Random tokens; the answer at each depends on that token alone."""

    name: ClassVar[str] = "echo"
    length: int = 3

    @property
    def d_vocab(self) -> int:
        return N_TOKENS

    @property
    def n_pos(self) -> int:
        return self.length

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        tokens = torch.randint(N_TOKENS, (n, self.length), generator=generator)
        predictive = answer_table()[tokens]
        return Trials(
            tokens=tokens,
            scored=torch.ones_like(tokens, dtype=torch.bool),
            answers=torch.arange(N_ANSWERS),
            predictive=predictive,
            belief=predictive,
            labels=predictive.argmax(-1),
            token_sets={"inputs": torch.arange(N_TOKENS)},
            relations={},
        )

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        return self.draw(n, generator), self.draw(n, generator)

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        return {}

    def token_labels(self) -> Sequence[str]:
        return [f"t{token}" for token in range(N_TOKENS)]


def planted_model() -> HookedModel:
    """Blocks that do nothing, embeddings of unit mean square, an output that reads 0 … 4: exact on `Echo`."""
    config = TransformerConfig(
        d_vocab=N_TOKENS, n_ctx=3, n_layers=2, n_heads=1, d_model=WIDTH, d_mlp=11, positions="none", tied=False
    )
    module = Transformer(config, seed=0)
    generator = torch.Generator().manual_seed(1)
    code = answer_table().log()
    code = code - code.mean(dim=1, keepdim=True)
    nuisance = torch.nn.functional.normalize(torch.randn(N_TOKENS, WIDTH - N_ANSWERS, generator=generator), dim=1)
    nuisance[:, 0] = 2.0  # most of it is the same for all tokens, so that its mean keeps nearly all of the norm
    nuisance = torch.nn.functional.normalize(nuisance, dim=1)
    with torch.no_grad():
        for parameter in module.blocks.parameters():
            parameter.zero_()
        module.embed.weight[:, :N_ANSWERS] = code.float()
        rest = (WIDTH - code.square().sum(dim=1, keepdim=True)).sqrt()
        module.embed.weight[:, N_ANSWERS:] = nuisance * rest.float()
        module.unembed.weight.zero_()
        module.unembed.weight[:N_ANSWERS, :N_ANSWERS] = torch.eye(N_ANSWERS)
    return HookedModel(module, name="planted", task=Echo())


def checked(
    model: Model,
    fit: str | Fit,
    *,
    kind: SubspaceKind | Design = "swap",
    place: InterventionSite | None = None,
    n: int,
    seed: int = 0,
) -> Intervention:
    """What `intervene` runs with these arguments, on the model's own task."""
    assert model.task is not None
    at, design = place or InterventionSite(), Design.of(kind)
    return Intervention.of(model, model.task, as_fit(fit), design=design, place=at, n=n, seed=seed)


T = TypeVar("T")


def past_type_checks(value: T, **fields: object) -> T:
    """A copy of a frozen value with other fields, past the type checks that only the tests switch on."""
    copied = copy.copy(value)
    for name, other in fields.items():
        object.__setattr__(copied, name, other)
    return copied


def coordinates(*at: int) -> Float64[Tensor, "d r"]:
    """The basis of some of the planted model's coordinates."""
    return torch.eye(WIDTH, dtype=torch.float64)[:, list(at)]


TASK = Bijection(n_values=11, n_pairs=7, repeats=True)
SIZES = TransformerConfig(d_vocab=22, n_ctx=13, n_layers=2, n_heads=3, d_model=30, d_mlp=17)


def lively(**changes: object) -> HookedModel:
    """An untrained model whose weights are large enough for every term to show."""
    module = perturbed(Transformer(replace(SIZES, **changes), seed=0), 0.2)  # type: ignore[arg-type]
    return HookedModel(module, name="tiny", task=TASK)
