"""The slow twin of the engine: one whole pass per ablation, with hooks registered by hand and scores written out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from bayesgeom.ablations import Ablation, Component
from bayesgeom.core.run import Trials
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.tasks.bijection import Bijection
from tests.weights import perturbed

TASK = Bijection(n_values=11, n_pairs=7)  # 22 ids, 13 positions of which 7 are scored
SIZES = TransformerConfig(d_vocab=22, n_ctx=13, n_layers=3, n_heads=5, d_model=30, d_mlp=17)
LAYERS, HEADS = range(3), range(5)


def lively(**changes: Any) -> HookedModel:
    """A model whose weights are large enough for every term to show."""
    module = perturbed(Transformer(replace(SIZES, **changes), seed=0), 0.2)
    return HookedModel(module, name="tiny", task=TASK)


def n_hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in module.modules())


Hook = Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]
Kept = Mapping[str, Tensor]


@final
@dataclass(frozen=True)
class Plain:
    """What replaces activations: a mode, the cached activations of some other trials, and the trials' own."""

    module: Transformer
    trials: Trials
    means: Kept
    own: Kept

    @classmethod
    def of(cls, module: Transformer, trials: Trials, others: Trials) -> "Plain":
        with torch.no_grad():
            means = {name: kept.mean(dim=0) for name, kept in module.run_with_cache(others.tokens)[1].items()}
            return cls(module, trials, means, dict(module.run_with_cache(trials.tokens)[1]))

    def substitute(self, name: str, like: Tensor, mode: str) -> Tensor:
        """What `mode` puts in place of the activation called `name`."""
        if mode == "zero":
            return torch.zeros_like(like)
        if mode == "mean":
            return self.means[name].expand_as(like)
        kept = self.own[name]
        return torch.stack([kept[i - 1] for i in range(len(kept))])  # the first takes the last's

    def logits(self, ablation: Ablation, mode: str) -> Tensor:
        """Logits at the scored positions, from a whole pass under forward hooks."""
        chosen = ablation.mode or mode
        handles = [self.register(component, chosen) for component in ablation.components]
        try:
            with torch.no_grad():
                out = self.module(self.trials.tokens)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack([row[scored] for row, scored in zip(out, self.trials.scored, strict=True)])

    def register(self, component: Component, mode: str) -> Any:
        layer = component.layer
        if component.kind == "block":
            return self.module.get_submodule(f"blocks.{layer}").register_forward_hook(lambda m, inputs, out: inputs[0])
        point = {"head": "attn.hook_z", "attention": "hook_attn_out", "mlp": "hook_mlp_out"}[component.kind]
        name = f"blocks.{layer}.{point}"

        def hook(m: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
            instead = self.substitute(name, out, mode)
            if component.head is None:
                return instead
            return torch.cat(
                [(instead if h == component.head else out)[:, :, h : h + 1] for h in range(out.shape[2])], dim=2
            )

        return self.module.get_submodule(name).register_forward_hook(hook)

    def scores(self, ablation: Ablation, mode: str) -> np.ndarray:
        """KL (bits), entropy error (bits) and correctness, by metric, sequence and position."""
        return scored(self.logits(ablation, mode), self.trials)


def scored(logits: Tensor, trials: Trials) -> np.ndarray:
    """The engine's three metrics, from their formulas."""
    answers = trials.answers.numpy()
    raw = logits.double().numpy()[:, :, answers]
    log_model = raw - raw.max(-1, keepdims=True)
    log_model = log_model - np.log(np.exp(log_model).sum(-1, keepdims=True))
    exact = np.stack([p[s] for p, s in zip(trials.predictive.numpy(), trials.scored.numpy(), strict=True)])
    labels = np.stack([r[s] for r, s in zip(trials.labels.numpy(), trials.scored.numpy(), strict=True)])
    log_exact = np.log(np.where(exact > 0, exact, 1.0))
    kl = (exact * (log_exact - log_model)).sum(-1)
    entropies = [-(np.exp(log_model) * log_model).sum(-1), -(exact * log_exact).sum(-1)]
    correct = answers[log_model.argmax(-1)] == labels
    return np.stack([kl / np.log(2), np.abs(entropies[0] - entropies[1]) / np.log(2), correct])


def heads(*places: tuple[int, int]) -> tuple[Component, ...]:
    return tuple(Component(layer, "head", head) for layer, head in places)


def some_sets() -> Sequence[Ablation]:
    """Sets whose parts meet: in one layer, across layers, in another mode, twice the same."""
    return [
        Ablation((*heads((0, 1), (0, 4), (2, 3)), Component(1, "mlp"))),
        Ablation((*heads((1, 2)), Component(1, "attention"))),
        Ablation((*heads((1, 0)), Component(1, "mlp"))),
        Ablation((Component(0, "block"), Component(2, "block"))),
        Ablation((*heads((2, 4)), Component(1, "block"), Component(0, "mlp"))),
        Ablation((Component(0, "mlp"), Component(1, "attention"), Component(2, "mlp"))),
        Ablation((*heads((0, 0), (0, 0)),)),
        Ablation(tuple(Component(layer, kind) for layer in LAYERS for kind in ("attention", "mlp"))),
        Ablation(heads(*((layer, head) for layer in LAYERS for head in HEADS))),
        Ablation((Component(2, "attention"),), mode="zero"),
        Ablation(heads((0, 3), (2, 3)), mode="mean"),
        Ablation((*heads((0, 2)), Component(2, "mlp")), mode="resample"),
    ]
