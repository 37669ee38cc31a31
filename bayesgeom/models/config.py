"""Model configs: frozen dataclasses that hold the sizes of bayesgeom's own architectures and build them."""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from torch import nn

from bayesgeom.core import InvalidArgument, check_types, checked
from bayesgeom.core.errors import check_fields, check_known
from bayesgeom.core.plugins import discover, field_names, find_plugin
from bayesgeom.core.torch_state import PROCESS_STATE, default_dtype
from bayesgeom.tasks.base import WindTunnel, torch_seed

if TYPE_CHECKING:
    from bayesgeom.models.base import Model

INIT_STD = 0.02  # of the weights of models that this package builds
# They warn where transformers imports torchao. A kernel that is missing when it is called still ends in an error.
_NOISY = ("torchao", "torch.utils._pytree")


@torch.no_grad()
def draw_weights(module: nn.Module, seed: int, stds: Mapping[str, float]) -> None:
    """Draw every matrix of a module from N(0, 0.02²), and set biases to zero; norms start at one.

    Args:
        module: The module; its parameters are drawn in their order.
        seed: Seed of the weights.
        stds: Other standard deviations, by the end of a parameter's name.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            std = next((std for end, std in stds.items() if name.endswith(end)), INIT_STD)
            nn.init.normal_(parameter, std=std, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


class ModelConfig(ABC):
    """Base class of configs: a frozen dataclass with an architecture's sizes, including vocabulary and context."""

    name: ClassVar[str]
    d_vocab: int
    n_ctx: int

    @final
    @checked()
    def build(self, *, seed: int) -> nn.Module:
        """Build a float32 module that maps tokens to logits, with weights drawn from this seed.

        The result does not depend on the global random state or the default dtype, and neither is changed.

        Args:
            seed: Seed of the weights.
        """
        with PROCESS_STATE, default_dtype(torch.float32), torch.random.fork_rng(devices=()):
            return self._build(seed=torch_seed(seed))

    @abstractmethod
    def _build(self, *, seed: int) -> nn.Module:
        """Build the module. Called by `build`, with float32 as the default dtype."""

    @classmethod
    def adapter(
        cls,
        module: nn.Module,
        *,
        name: str | None,
        task: WindTunnel | None,
        digest: str | None,
    ) -> "Model | None":
        """Return the `Model` of a module that such a config built, or None for any other module.

        Architectures of other packages implement this method; `bayesgeom.models.resolve` handles bayesgeom's own.

        Args:
            module: Any module.
            name: Name of the checkpoint, if any.
            task: Task on which it was trained, if known.
            digest: Hash of the weights, if known.
        """
        return None

    @final
    def check_sizes(self, kind: str, *, or_zero: str = "") -> None:
        """Check the type of every field, and that every integer is at least 1.

        Args:
            kind: What the config is of, for the message.
            or_zero: The field that may be 0.

        Raises:
            InvalidArgument: The check failed.
        """
        check_types(self)
        assert is_dataclass(self) and not isinstance(self, type), "a model config is a dataclass"
        sizes = {name: size for name, size in asdict(self).items() if type(size) is int}
        if any(size < (name != or_zero) for name, size in sizes.items()):
            exception = f" ({or_zero}: at least 0)" if or_zero else ""
            raise InvalidArgument(f"every size of {kind} must be at least 1{exception}, got {self}.")

    def hf_config(self) -> Mapping[str, Any]:
        """Return further entries of `config.json` if Hugging Face can read the weights unchanged; else nothing."""
        return {}

    @final
    def to_dict(self) -> dict[str, Any]:
        """Return architecture and sizes as JSON types; `config_from_dict` is the inverse."""
        assert is_dataclass(self) and not isinstance(self, type), "a model config is a dataclass"
        return {"architecture": self.name, **asdict(self)}


def architectures() -> dict[str, type[ModelConfig]]:
    """Return every architecture by name, including those of other packages."""
    # mypy: an abstract class as a value is what discovery is about.
    return discover("bayesgeom.models.native", ModelConfig, group="bayesgeom.models")  # type: ignore[type-abstract]


def config_from_dict(values: Mapping[str, Any]) -> ModelConfig:
    """Return the config that `ModelConfig.to_dict` wrote.

    Raises:
        UnknownName: The architecture does not exist.
        InvalidArgument: A size is unknown or invalid.
    """
    sizes = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    architecture = sizes.pop("architecture", None)
    # mypy: an abstract class as a value is what discovery is about.
    kind = find_plugin("bayesgeom.models.native", ModelConfig, str(architecture), group="bayesgeom.models")  # type: ignore[type-abstract]
    check_known(f"architecture {architecture!r}", sizes, field_names(kind))
    check_fields(kind, sizes, of=f"architecture {architecture!r}: ")
    try:
        return kind(**sizes)
    except TypeError as error:
        raise InvalidArgument(f"architecture {architecture!r} cannot be built from {sizes}: {error}.") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress bars and messages below errors of transformers and of what it imports; bayesgeom reports problems."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in _NOISY}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    from transformers.utils import logging as theirs

    former, was_on = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
        theirs.set_verbosity(former)
        if was_on:
            theirs.enable_progress_bar()
