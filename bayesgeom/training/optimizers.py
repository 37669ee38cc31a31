"""The optimizers of a recipe, and their state as plain tensors so that it can be stored without pickles."""

import math
import re
from typing import final

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from bayesgeom.training.recipe import Recipe

_IN_A_BLOCK = re.compile(r"(^|\.)\d+\.")  # blocks.0.attn.W_Q.weight, model.layers.0.self_attn.q_proj.weight
# Two axes, and yet no map from one space to another: a Mamba's decay rates. Or a narrow map whose size at
# initialization means something: what makes its step sizes.
_NOT_BY_MUON = ("A_log", "dt_proj.weight")


@final
class Optimizers:
    """AdamW over everything, or Muon over the blocks' matrices and AdamW over the rest."""

    def __init__(self, recipe: Recipe, module: nn.Module) -> None:
        self.recipe = recipe
        named = dict(module.named_parameters())
        matrices = [name for name, p in named.items() if _is_matrix_of_a_block(name, p)]
        by_muon = set(matrices) if recipe.optimizer == "muon" else set()
        rest = [p for name, p in named.items() if name not in by_muon]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr=recipe.lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay)
        ]
        if by_muon:
            self.parts.append(
                torch.optim.Muon(
                    [named[name] for name in matrices],
                    lr=recipe.matrix_lr,
                    momentum=0.95,
                    weight_decay=recipe.weight_decay,
                    adjust_lr_fn="original",
                )
            )
        self.peaks = [part.param_groups[0]["lr"] for part in self.parts]

    def step(self, step: int) -> None:
        """One update at this step's learning rates, and gradients cleared."""
        for part, peak in zip(self.parts, self.peaks, strict=True):
            part.param_groups[0]["lr"] = peak * schedule(self.recipe, step)
            if self.recipe.decay_steps is not None and step >= self.recipe.decay_steps:
                part.param_groups[0]["weight_decay"] = 0.0
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Shaped[Tensor, "..."]]:
        """Every tensor that the next step depends on."""
        return {
            f"optimizer.{which}.{index}.{key}": value
            for which, part in enumerate(self.parts)
            for index, entries in part.state_dict()["state"].items()
            for key, value in entries.items()
        }

    def restore(self, state: dict[str, Shaped[Tensor, "..."]]) -> None:
        """Put back what `state` gave."""
        for which, part in enumerate(self.parts):
            entries: dict[int, dict[str, Tensor]] = {}
            for name, value in state.items():
                _, owner, index, key = name.split(".")
                if int(owner) == which:
                    entries.setdefault(int(index), {})[key] = value
            part.load_state_dict({"state": entries, "param_groups": part.state_dict()["param_groups"]})


def schedule(recipe: Recipe, step: int) -> float:
    """Share of the peak learning rate: linear warm-up, then a half cosine that reaches zero after the last step."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))


def _is_matrix_of_a_block(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon may take it: a linear map inside a block. An LSTM's four gates are taken as the one map they are."""
    return bool(_IN_A_BLOCK.search(name)) and parameter.ndim == 2 and not name.endswith(_NOT_BY_MUON)
