"""Muon in float32: torch's update without bfloat16, and no bfloat16 product in a float32 run."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.environment import Precision
from bayesgeom.training.loop import training_step
from bayesgeom.training.optimizers import Float32Muon, Optimizers, orthogonalized
from tests.dynamics.trainings import a_recipe

TINY = a_recipe(name="tiny", task=Bijection(n_values=5, n_pairs=3), warmup=3, steps=7, batch_size=5, snapshots=0)


@pytest.mark.parametrize("shape", [(13, 7), (7, 13), (11, 11)])
def test_an_update_is_torchs_without_the_rounding_of_bfloat16(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    start, *gradients = (torch.randn(*shape, generator=generator) for _ in range(6))
    ends = []
    for kind in (torch.optim.Muon, Float32Muon):
        parameter = nn.Parameter(start.clone())
        optimizer = kind([parameter], lr=0.03, momentum=0.95, weight_decay=0.1, adjust_lr_fn="original")
        for gradient in gradients:
            parameter.grad = gradient
            optimizer.step()
        ends.append((parameter.detach() - start, optimizer.state[parameter]["momentum_buffer"]))
    (theirs, their_average), (ours, our_average) = ends
    assert torch.allclose(their_average, our_average, atol=1e-6)
    assert 0 < float((theirs - ours).norm() / theirs.norm()) < 0.03  # 2⁻⁸ in each of five iterations


@pytest.mark.parametrize("shape", [(13, 7), (7, 13)])
def test_orthogonalization_keeps_the_singular_vectors(shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    along = left.T @ orthogonalized(matrix, (3.4445, -4.775, 2.0315), 5, 1e-7) @ right.T
    assert float((along - along.diag().diag()).abs().max()) < 1e-12
    assert float(along.diag().min()) > 0.3 and float(along.diag().max()) < 1.3


class _Types(TorchDispatchMode):
    """Collects the types of all tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.found |= {
            own.dtype for own in (made if isinstance(made, tuple | list) else [made]) if torch.is_tensor(own)
        }
        return made


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_float32_step_computes_nothing_in_bfloat16(optimizer: Any, precision: Precision) -> None:
    recipe = replace(TINY, optimizer=optimizer)
    module = recipe.model_config().build(seed=0)
    with _Types() as types:
        training_step(recipe, module, Optimizers(recipe, module, precision), 0, "cpu", precision)
    assert (torch.bfloat16 in types.found) is (precision == "bfloat16")


def test_its_state_is_torchs() -> None:
    """A run that was begun with torch's goes on."""
    module = TINY.model_config().build(seed=0)
    states: list[dict[str, Tensor]] = []
    for precision in ("float32", "bfloat16"):
        optimizers = Optimizers(TINY, module, precision)
        training_step(TINY, module, optimizers, 0, "cpu", precision)
        states.append(optimizers.state())
    assert {name: own.shape for name, own in states[0].items()} == {name: own.shape for name, own in states[1].items()}
