"""What a wind tunnel is: a task that draws its own sequences and knows its posterior exactly."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bayesgeom.errors import InvalidArgument
from bayesgeom.plugins import find
from bayesgeom.trials import Trials

BLOCK = 128  # sequences drawn and run at a time


class WindTunnel(ABC):
    """A task whose exact posterior is known at every scored position.

    Concrete tasks are frozen dataclasses: their fields are their parameters, and equal fields mean equal tasks.
    Ids 0 … `d_vocab` − 1 hold the input tokens and the answers, so that any causal language model serves any task.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def d_vocab(self) -> int:
        """Number of ids, answers included."""

    @property
    @abstractmethod
    def n_pos(self) -> int:
        """Tokens in a sequence."""

    @abstractmethod
    def draw(self, n: int, generator: torch.Generator) -> Trials:
        """`n` sequences on the generator's device. Callers use `sample`."""

    @abstractmethod
    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """`n` pairs that share what is given (keys, matrices) and differ in the latent. Callers use `sample_pair`."""

    @abstractmethod
    def null_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """What predictors without the claimed computation say at the scored positions, by name."""

    @abstractmethod
    def token_labels(self) -> Sequence[str]:
        """A short label for every id, for tables and plots."""

    @final
    def sample(self, n: int, *, seed: int, device: str | torch.device = "cpu") -> Trials:
        """`n` fresh sequences. The same seed on the same kind of device gives the same sequences.

        **Raises** `InvalidArgument` for n < 1.
        """
        _check_count(n)
        return self.draw(n, torch.Generator(device).manual_seed(seed))

    @final
    def sample_pair(self, n: int, *, seed: int, device: str | torch.device = "cpu") -> tuple[Trials, Trials]:
        """`n` originals and their donors: the same question asked of two worlds. **Raises** as `sample` does."""
        _check_count(n)
        return self.draw_pair(n, torch.Generator(device).manual_seed(seed))

    @final
    def stream(self, n: int, *, seed: int, device: str | torch.device = "cpu") -> Iterator[Trials]:
        """`n` fresh sequences in blocks, each drawn when it is asked for, so that memory does not grow with n.

        Blocks have a fixed size and seeds of their own: a longer stream begins with the sequences of a shorter one.
        **Raises** `InvalidArgument` for n < 1, before anything is drawn.
        """
        _check_count(n)
        return (
            self.draw(BLOCK, torch.Generator(device).manual_seed(derived_seed(seed, block))).rows(slice(0, n - start))
            for block, start in enumerate(range(0, n, BLOCK))
        )

    @final
    def config(self) -> dict[str, Any]:
        """Name and parameters, as JSON can hold them; `task_from_config` is the inverse."""
        assert is_dataclass(self) and not isinstance(self, type), "a task is a dataclass"
        return {"name": self.name, **asdict(self)}


def task_from_config(config: Mapping[str, Any]) -> WindTunnel:
    """The task that `WindTunnel.config` described.

    **Raises** `UnknownName` for a task that does not exist, `InvalidArgument` for parameters that it does not take.
    """
    parameters = dict(config)
    name = parameters.pop("name", None)
    # mypy: an abstract class as a value is what discovery is about.
    kind = find("bayesgeom.tasks", WindTunnel, str(name))  # type: ignore[type-abstract]
    try:
        _check_types(kind, parameters)
        return kind(**parameters)
    except TypeError as error:
        raise InvalidArgument(f"task {name!r} cannot be built from {parameters}: {error}.") from error


def _check_types(kind: type[WindTunnel], parameters: Mapping[str, Any]) -> None:
    """**Raises** `TypeError` for a number or switch of another type than its field's: 2.5 pairs, repeats="maybe"."""
    assert is_dataclass(kind), "a task is a dataclass"
    for field in fields(kind):
        if field.name in parameters and field.type in (bool, int, float):
            value, allowed = parameters[field.name], (float, int) if field.type is float else (field.type,)
            if type(value) not in allowed:  # not isinstance: True is an int
                raise TypeError(f"{field.name} takes {allowed[0].__name__}, got {value!r}")


def _check_count(n: int) -> None:
    if n < 1:
        raise InvalidArgument(f"n is the number of sequences to draw: at least 1, got {n}.")


def task_from_text(text: str) -> WindTunnel:
    """The task that NAME or NAME:key=value,key=value asks for, as the command line takes it.

    **Raises** `UnknownName` and `InvalidArgument` as `task_from_config` does.
    """
    name, _, listed = text.partition(":")
    parameters: dict[str, Any] = {}
    for pair in filter(None, listed.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidArgument(f"{pair!r} in {text!r} is no key=value; write a task as NAME:key=value,key=value.")
        parameters[key.strip()] = _literal(value.strip())
    return task_from_config({"name": name.strip(), **parameters})


def _literal(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def derived_seed(seed: int, *path: int) -> int:
    """A seed for one part of a computation, independent of its other parts'. **Raises** `InvalidArgument` below 0."""
    if seed < 0:
        raise InvalidArgument(f"a seed is a whole number, at least 0, got {seed}.")
    return int(np.random.SeedSequence(seed, spawn_key=path).generate_state(1, np.uint64)[0] >> 1)
