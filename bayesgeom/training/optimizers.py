"""The optimizers of a recipe, with their state as plain tensors that can be stored without pickles."""

import math
import re
from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from bayesgeom.core import InvalidArgument
from bayesgeom.core.errors import quoted
from bayesgeom.training.environment import Precision
from bayesgeom.training.recipes import Recipe

_IN_A_BLOCK = re.compile(r"(^|\.)\d+\.")  # blocks.0.attn.W_Q.weight, model.layers.0.self_attn.q_proj.weight
# Parameters with two axes that Muon does not train: a Mamba's decay rates are not a linear map, and the projection of
# its step sizes depends on its initial scale.
_NOT_BY_MUON = ("A_log", "dt_proj.weight")


@final
class Optimizers:
    """AdamW over everything, or Muon over the blocks' matrices and AdamW over the rest."""

    def __init__(self, recipe: Recipe, module: nn.Module, precision: Precision = "bfloat16") -> None:
        self.recipe = recipe
        named = dict(module.named_parameters())
        in_blocks = [name for name, p in named.items() if _IN_A_BLOCK.search(name) and p.ndim == 2]
        matrices = [name for name in in_blocks if not name.endswith(_NOT_BY_MUON)]
        by_muon = set(matrices) if recipe.optimizer == "muon" else set()
        rest = [p for name, p in named.items() if name not in by_muon]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(rest, lr=recipe.lr, betas=(0.9, 0.95), weight_decay=recipe.weight_decay)
        ]
        if by_muon:
            muon = torch.optim.Muon if precision == "bfloat16" else Float32Muon
            self.parts.append(
                muon(
                    [named[name] for name in matrices],
                    lr=recipe.matrix_lr,
                    momentum=0.95,
                    weight_decay=recipe.weight_decay,
                    adjust_lr_fn="original",
                )
            )
        self.peaks = [part.param_groups[0]["lr"] for part in self.parts]

    def step(self, step: int) -> None:
        """Update the parameters at this step's learning rates, and clear the gradients."""
        for part, peak in zip(self.parts, self.peaks, strict=True):
            part.param_groups[0]["lr"] = peak * schedule(self.recipe, step)
            if self.recipe.decay_steps is not None and step >= self.recipe.decay_steps:
                part.param_groups[0]["weight_decay"] = 0.0
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Shaped[Tensor, "..."]]:
        """Return the tensors of the optimizers' state, by optimizer, parameter and key.

        Raises:
            InvalidArgument: There is other state.
        """
        state = {
            f"optimizer.{which}.{index}.{key}": value
            for which, part in enumerate(self.parts)
            for index, entries in part.state_dict()["state"].items()
            for key, value in entries.items()
        }
        for name, value in state.items():
            if not isinstance(value, Tensor):
                raise InvalidArgument(f"{name} is {quoted(value)}, and only tensors are stored: use another optimizer.")
        return state

    def restore(self, state: Mapping[str, Shaped[Tensor, "..."]]) -> None:
        """Restore the output of `state`. Learning rates and other settings stay."""
        entries: list[dict[int, dict[str, Tensor]]] = [{} for _ in self.parts]
        for name, value in state.items():
            _, which, index, key = name.split(".", 3)
            entries[int(which)].setdefault(int(index), {})[key] = value.clone()
        for part, stored in zip(self.parts, entries, strict=True):
            part.load_state_dict({"state": stored, "param_groups": part.state_dict()["param_groups"]})


@final
class Float32Muon(torch.optim.Muon):
    """Muon with all products in the parameters' own precision; torch's orthogonalizes in bfloat16 on every processor.

    Without bfloat16 instructions torch's takes three quarters of a training step. Updates differ by the rounding of
    bfloat16. State and arguments are the same; Nesterov momentum is always used.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is supported
        """Update every parameter that has a gradient, in place."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                average = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(average, group["momentum"])
                direction = orthogonalized(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                n_out, n_in = parameter.shape
                parameter.add_(direction, alpha=-group["lr"] * math.sqrt(max(1, n_out / n_in)))


def orthogonalized(
    matrix: Float[Tensor, "out in"], coefficients: tuple[float, float, float], n_steps: int, eps: float
) -> Float[Tensor, "out in"]:
    """Bring the singular values of a matrix near 1 by Newton–Schulz iterations, in the matrix's own precision.

    References:
        Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.

    Example:
        >>> near = orthogonalized(torch.diag(torch.tensor([3.0, 4.0])), (3.4445, -4.775, 2.0315), 5, 1e-7)
        >>> bool((torch.linalg.svdvals(near) - 1).abs().max() < 0.5)
        True
    """
    a, b, c = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]
    iterate = matrix.T if is_tall else matrix
    iterate = iterate / iterate.norm().clamp(min=eps)
    for _ in range(n_steps):
        gram = iterate @ iterate.T
        iterate = torch.addmm(iterate, torch.addmm(gram, gram, gram, beta=b, alpha=c), iterate, beta=a)
    return iterate.T if is_tall else iterate


def schedule(recipe: Recipe, step: int) -> float:
    """Return the share of the peak learning rate: linear warm-up, then a half cosine to zero after the last step."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))
