"""Models on several devices, without a second device: tensors that know a place, and refuse to meet one of another.

Accelerate moves what enters a block inside the block's `forward`, after its pre-hooks. So what a pre-hook saw lies on
the device before, and what the block's parts give on the next.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from bayesgeom.core import run as s
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.models.resolve import load
from tests.families import each
from tests.models.huggingface.test_sites import text

HERE, THERE = torch.device("cpu"), torch.device("cpu", 0)  # two names of one memory, and not equal
_COPIES = ("copy_", "__setitem__")  # from device to device, as torch does


class Placed(Tensor):
    """A tensor that only meets tensors of its own place, and tensors without one, as weights are here."""

    place: torch.device | None = None

    @property
    def device(self) -> torch.device:
        return self.place or HERE

    def to(self, *args: Any, **kwargs: Any) -> Any:
        target = args[0] if args else kwargs.get("device")
        place = (
            target.place if isinstance(target, Placed) else target if isinstance(target, torch.device) else self.place
        )
        return at(self.as_subclass(Tensor).to(*args, **kwargs), place)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat, _ = tree_flatten((args, kwargs or {}))
        places = [x.place for x in flat if isinstance(x, Placed) and x.place is not None]
        if len(set(places)) > 1 and func.__name__ not in _COPIES:
            raise RuntimeError(f"Expected all tensors to be on the same device ({func.__name__})")
        out = super().__torch_function__(func, types, args, kwargs or {})
        return tree_map(lambda x: at(x, places[0] if places else None), out)


def at(x: Any, place: torch.device | None) -> Any:
    """A tensor at a place; None is no place."""
    if not isinstance(x, Tensor) or isinstance(x, nn.Parameter):
        return x
    out = x.as_subclass(Tensor).as_subclass(Placed)
    out.place = place
    return out


def spread(hf: Any) -> Any:
    """Let every block, and what follows, move what it is given to a place of its own, as accelerate does."""

    def moving(part: nn.Module, place: torch.device | None) -> None:
        own = part.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree_map(lambda x: at(x, place), (args, kwargs))
            return own(*args, **kwargs)

        vars(part)["forward"] = forward

    base = hf.base_model.decoder if hf.config.model_type == "opt" else hf.base_model
    blocks = next(part for part in base.children() if isinstance(part, nn.ModuleList))
    for layer, block in enumerate(blocks):
        moving(block, (HERE, THERE)[layer % 2])
    for part in base.children():
        if "norm" in type(part).__name__.lower():
            moving(part, None)
    return hf


@pytest.fixture
def two(folder: Callable[[str], Path]) -> Callable[[str], tuple[HFModel, HFModel]]:
    """A family's model, whole and spread."""

    def made(name: str) -> tuple[HFModel, HFModel]:
        import transformers

        hf = transformers.AutoModelForCausalLM.from_pretrained(folder(name), attn_implementation="eager").eval()
        whole = load(folder(name))
        assert isinstance(whole, HFModel)
        return whole, HFModel(spread(hf))

    return made


@pytest.mark.parametrize("name", each(("llama", "gpt2", "gptj", "gemma2", "opt", "gpt_neox", "bloom")))
def test_sites_and_edits_are_the_same_on_several_devices(
    name: str, two: Callable[[str], tuple[HFModel, HFModel]]
) -> None:
    whole, parts = two(name)
    assert parts.sites == whole.sites, parts.withheld
    trials, sites = text(), [site for site in whole.sites if not site.is_static]
    recorded = [m.run([trials], record=sites, n_recorded=5) for m in (whole, parts)]
    for site in sites:
        one, other = (run.at(site).as_subclass(Tensor) for run in recorded)
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5, msg=lambda m, n=site.name: f"{n}: {m}")
    for site in {s.RESID_MID, s.MLP_OUT, s.ATTN_OUT} & whole.sites:
        logits = []
        for model in (whole, parts):
            handle = model.point(site, 1).register_forward_hook(lambda _m, _i, x: 0.5 * x)
            logits.append(model.logits(trials).as_subclass(Tensor))
            handle.remove()
        torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)
