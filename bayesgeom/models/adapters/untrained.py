"""Untrained copies of a module of a user: with its own constructor, or reset in the way in which its class does it."""

import inspect
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product

import torch
from torch import Tensor, nn

from bayesgeom.core import NoCopy
from bayesgeom.core.plugins import Contained
from bayesgeom.models.checkpoint import weights_hash

_LARGE = 8.0  # size at which the ε of a norm is negligible, and squares fit into half precision
_ROUNDING = 0.05  # of a mean square in half precision


def initialized(net: nn.Module, name: str) -> nn.Module:
    """Return a module of the same architecture as its owner initializes it; the caller sets the seed.

    It is `type(net)(net.config)`, or with other arguments that the module keeps under the names of its parameters.
    Else it is a copy after `reset_parameters` of its parts and `net._init_weights`; a norm gets the weights with which
    its outputs have size 1.

    Raises:
        NoCopy: Some of its weights are left as they are.
    """
    state = torch.get_rng_state()
    if (built := _constructed(net)) is not None:
        like = next(net.parameters())
        return built.to(device=like.device, dtype=like.dtype).eval()
    torch.set_rng_state(state)  # a constructor may have set a seed of its own
    copy = deepcopy(net)
    unknown = dict(_reset(copy))
    if (initialize := _initializer(copy)) is not None:
        for parameter in unknown.values():
            nn.init.constant_(parameter, torch.nan)
        with Contained() as drawing:
            initialize(copy)
        if drawing.error is not None:
            raise NoCopy(f"{name} has no untrained baselines: its _init_weights failed: {drawing.fault.rstrip('.')}.")
        unknown = {path: parameter for path, parameter in unknown.items() if bool(parameter.isnan().any())}
    if unknown:
        raise NoCopy(
            f"{name} has no untrained baselines: {next(iter(unknown))} is a weight of a part without reset_parameters. "
            f"Declare rebuild=lambda: …, which returns a new module of this architecture."
        )
    return copy.eval()


def is_owners(net: nn.Module) -> bool:
    """Return whether `initialized` draws the weights as the owner does: by the constructor or by `_init_weights`."""
    return _initializer(net) is not None or _constructed(net) is not None


def _initializer(net: nn.Module) -> Callable[[nn.Module], object] | None:
    """Return what draws the weights of a module by its own `_init_weights`, of each part or of all; None without it."""
    match net:
        case object(_init_weights=initialize) if callable(initialize):
            takes_parts = bool(inspect.signature(initialize).parameters)
            return lambda copy: copy.apply(initialize) if takes_parts else initialize()
    return None


def weights_differ(net: nn.Module, other: nn.Module) -> list[str]:
    """Return the names of weights that two modules do not share in name and shape."""
    shape, of_other = ({key: value.shape for key, value in part.state_dict().items()} for part in (net, other))
    return sorted(key for key in shape.keys() | of_other.keys() if shape.get(key) != of_other.get(key))


def _constructed(net: nn.Module) -> nn.Module | None:
    """Return a new instance of the module's class with arguments that it keeps, and another `seed` if it takes one.

    None if that has other weights, or the same ones each time, as where a constructor sets a seed or loads them.
    """
    kept, built = vars(net), list[nn.Module]()
    with Contained():
        named = inspect.signature(type(net)).parameters.values()
        needed = {entry.name for entry in named if entry.default is entry.empty and entry.kind is not entry.VAR_KEYWORD}
        given = {entry.name: kept[entry.name] for entry in named if entry.name in kept and entry.name != "seed"}
        for _ in range(2 * bool(needed and needed <= given.keys())):
            seed = {"seed": int(torch.randint(2**31, ()))} if "seed" in {entry.name for entry in named} else {}
            built.append(type(net)(**given, **seed))
    if len(built) < 2 or weights_differ(net, built[1]):
        return None
    return None if len({weights_hash(each.state_dict()) for each in built}) == 1 else built[1]


def _reset(net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Reset every part that can be reset, and yield the other parts' weights by name."""
    for path, part in net.named_modules():
        match part:
            case object(reset_parameters=reset) | object(_reset_parameters=reset):
                reset()
            case _ if not _is_reset_norm(part):
                for name, parameter in part.named_parameters(recurse=False):
                    yield f"{path}.{name}" if path else name, parameter


@torch.no_grad()
def _is_reset_norm(part: nn.Module) -> bool:
    """Whether weights of 0 or 1 give a part outputs of mean square 1, which it then has."""
    weights = [*part.parameters(recurse=False)]
    if not weights or {weight.ndim for weight in weights} != {1} or len({len(weight) for weight in weights}) > 1:
        return False
    before = [weight.clone() for weight in weights]
    x = torch.randn(1, 5, len(weights[0]), generator=torch.Generator().manual_seed(0)).to(weights[0])
    x = x * _LARGE * torch.tensor([[[0.5], [1.0], [2.0], [3.0], [4.0]]]).to(x)
    for values in product((1.0, 0.0), repeat=len(weights)):
        for weight, value in zip(weights, values, strict=True):
            weight.fill_(value)
        with Contained() as running:
            out, mirrored = (part.forward(sign * x).double() for sign in (1, -1))
            sizes, rest = out.square().mean(dim=-1), out + mirrored  # the latter is not 0 where there is a bias
        if not running.fault and bool(((sizes - 1).abs() < _ROUNDING).all() and (rest.abs() < _ROUNDING).all()):
            return True
    for weight, former in zip(weights, before, strict=True):
        weight.copy_(former)
    return False
