"""What a wind tunnel is: a task that draws its own sequences and knows its posterior exactly.

A text task becomes one once it is bound to a tokenizer.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from enum import IntEnum, unique
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, final, get_args, get_origin

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesgeom.checks.arguments import check_argument, fits
from bayesgeom.checks.text import shown
from bayesgeom.core.errors import InvalidArgument, check_known, unknown_name
from bayesgeom.core.plugins import discover, field_names, find
from bayesgeom.core.trials import Trials, checked
from bayesgeom.tasks import limits
from bayesgeom.tasks.text import Tokenizer

BLOCK = limits.BLOCK  # sequences drawn and run at a time
_PEAK = 4  # times what trials hold is what drawing them takes
_WRAPPED = "task"  # the field in which a text task that renders another one holds it
T = TypeVar("T")


class WindTunnel(ABC):
    """A task whose exact posterior is known at every scored position, or that has none and says so.

    Concrete tasks are frozen dataclasses: their fields are their parameters, and equal fields mean equal tasks.
    Ids 0 … `d_vocab` − 1 hold the input tokens and the answers, so that any causal language model serves any task.
    `has_posterior` says whether the posterior is known; a task without one, such as plain text, sets it to False.
    """

    name: ClassVar[str]
    has_posterior: ClassVar[bool] = True

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
    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """What predictors without the claimed computation say at the scored positions, by name."""

    @abstractmethod
    def token_labels(self) -> Sequence[str]:
        """A short label for every id, for tables and plots."""

    @final
    def sample(self, n: int, *, seed: int, device: str | torch.device = "cpu") -> Trials:
        """`n` fresh sequences. The same seed on the same kind of device gives the same sequences.

        **Raises** `InvalidArgument` for n < 1, for more than the memory holds, or a seed that is no whole number from
        0 on.
        """
        self._check_count(n)
        drawn = checked(self.draw(n, _generator(device, seed)), task=self.name)
        if drawn.has_posterior != self.has_posterior:
            raise InvalidArgument(
                f"task {self.name!r} states has_posterior = {self.has_posterior}, and its sequences have "
                f"{len(drawn.answers)} answers: a posterior is over at least one."
            )
        return drawn

    @final
    def sample_pair(self, n: int, *, seed: int, device: str | torch.device = "cpu") -> tuple[Trials, Trials]:
        """`n` originals and their donors: the same question asked of two worlds. **Raises** as `sample` does."""
        self._check_count(n)
        original, donor = self.draw_pair(n, _generator(device, seed))
        return checked(original, task=self.name), checked(donor, task=self.name)

    @final
    def stream(self, n: int, *, seed: int, device: str | torch.device = "cpu") -> Iterator[Trials]:
        """`n` fresh sequences in blocks, each drawn when it is asked for, so that memory does not grow with n.

        Blocks have a fixed size and seeds of their own: a longer stream begins with the sequences of a shorter one.
        **Raises** `InvalidArgument` for n < 1, before anything is drawn.
        """
        check_count(n)
        if isinstance(self, FiniteTask):  # a sequence comes once, in whichever block
            whole = self.sample(n, seed=derived_seed(seed, 0), device=device)
            return (whole.rows(slice(start, start + BLOCK)) for start in range(0, n, BLOCK))
        size = limits.block_size(self.n_pos)
        return (
            self.sample(size, seed=derived_seed(seed, block), device=device).rows(slice(0, n - start))
            for block, start in enumerate(range(0, n, size))
        )

    @final
    def config(self) -> dict[str, Any]:
        """Name and parameters, as JSON can hold them; `task_from_config` is the inverse."""
        assert is_dataclass(self) and not isinstance(self, type), "a task is a dataclass"
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        inner = {name: value.config() for name, value in held.items() if isinstance(value, WindTunnel)}
        return {"name": self.name, **asdict(self), **inner}

    @final
    def _check_count(self, n: object) -> None:
        """**Raises** `InvalidArgument` for what is no number of sequences, or more of them than the memory holds."""
        check_count(n)
        assert isinstance(n, (int, np.integer)), "checked"
        if n > BLOCK and n * self.n_pos > limits.BLOCK_TOKENS and not isinstance(self, FiniteTask):
            one = self.draw(1, torch.Generator().manual_seed(0))
            held = (one.tokens, one.scored, one.predictive, one.belief, one.labels)
            limits.check_room(int(n), _PEAK * float(n) * sum(part.numel() * part.element_size() for part in held))


class FiniteTask(WindTunnel):
    """A task with a fixed stock of sequences, drawn without replacement: the first n of a seeded order."""

    @property
    @abstractmethod
    def n_sequences(self) -> int:
        """How many there are to draw."""

    @property
    @abstractmethod
    def is_selective(self) -> bool:
        """Whether the model at hand decides which sequences are drawn, by the entropy of what it says at their end."""

    @abstractmethod
    def in_order(self, *, device: str | torch.device = "cpu") -> Trials:
        """All sequences, as they are listed."""

    @abstractmethod
    def selected(self, entropies_bits: Float[np.ndarray, " sequence"], *, seed: int = 0) -> "FiniteTask":
        """The chosen sequences alone, given an entropy for each in order; no longer selective."""


class SymmetricTask(WindTunnel):
    """A task whose answers have names that mean nothing: renamed consistently, the question is the same."""

    @property
    @abstractmethod
    def n_names(self) -> int:
        """How many answers there are to rename."""

    @abstractmethod
    def relabeled(self, trials: Trials, names: Int64[Tensor, "batch name"]) -> Trials:
        """The same latent problems with answer a of sequence b called `names[b, a]`, in all that speaks of it."""


class TextTask(ABC):
    """A task in words. Which ids it uses depends on the tokenizer, so it becomes a wind tunnel when bound to one.

    Concrete text tasks are frozen dataclasses. What `bind` returns holds ids and no tokenizer, and its config rebuilds
    it: a report can be reproduced from its provenance alone.
    """

    name: ClassVar[str]

    @abstractmethod
    def bind(self, tokenizer: Tokenizer, *, d_vocab: int) -> WindTunnel:
        """The task in this tokenizer's ids, for a model of `d_vocab` ids, which may be more than the tokenizer's.

        **Raises** `InvalidArgument` where the tokenizer has too few words of one token, `TaskMismatch` where it gives
        ids that the model has not.
        """


def task_from_config(config: Mapping[str, Any]) -> WindTunnel:
    """The task that `WindTunnel.config` described.

    **Raises** `UnknownName` for a task that does not exist, `InvalidArgument` for parameters that it does not take.
    """
    parameters = {key: _revived(value) for key, value in config.items()}
    name = str(parameters.pop("name", None))
    # mypy: an abstract class as a value is what discovery is about.
    return _built(find("bayesgeom.tasks", WindTunnel, name), name, parameters)  # type: ignore[type-abstract]


def _revived(value: Any) -> Any:
    """What JSON made of a parameter, as it was: lists are tuples, and a mapping is the config of an inner task."""
    if isinstance(value, list):
        return tuple(map(_revived, value))
    return task_from_config(value) if isinstance(value, Mapping) else value


def _built(kind: type[T], name: str, parameters: Mapping[str, Any]) -> T:
    """**Raises** `InvalidArgument` for parameters that this kind of task does not take."""
    check_known(f"task {name!r}", parameters, field_names(kind))
    try:
        _check_types(kind, parameters)
        return kind(**parameters)
    except TypeError as error:
        raise InvalidArgument(f"task {name!r} cannot be built from {dict(parameters)}: {error}.") from error


def check_parameters(task: WindTunnel | TextTask) -> None:
    """What a task's constructor asks first. **Raises** `InvalidArgument` for a value of another type than its field."""
    try:
        _check_types(type(task), vars(task))
    except TypeError as error:
        raise InvalidArgument(f"task {task.name!r}: {error}.") from error


def _check_types(kind: type, parameters: Mapping[str, Any]) -> None:
    """**Raises** `TypeError` for a value of another type than its field's: 2.5 pairs, repeats="maybe", ks=3."""
    assert is_dataclass(kind), "a task is a dataclass"
    for field in (own for own in fields(kind) if own.name in parameters):
        value, choices = parameters[field.name], get_args(field.type)
        if get_origin(field.type) is Literal:
            if not fits(value, field.type):
                raise TypeError(f"{field.name} takes {' or '.join(map(repr, choices))}, got {shown(value)}")
            continue
        if get_origin(field.type) is UnionType and NoneType in choices:  # `float | None` and the like
            allowed: tuple[Any, ...] = (*choices, int) if float in choices else choices
        elif field.type in (bool, int, float, str):
            allowed = (float, int) if field.type is float else (field.type,)
        else:
            allowed = (tuple, list) if get_origin(field.type) is tuple else (type(value),)
        limits.check_whole(field.name, value)
        if type(value) not in allowed:  # not isinstance: True is an int
            raise TypeError(f"{field.name} takes {allowed[0].__name__}, got {shown(value)}")


def check_count(n: Any) -> None:
    """**Raises** `InvalidArgument` for what is no number of sequences."""
    if not fits(n, int) or int(n) < 1:
        raise InvalidArgument(f"n is the number of sequences to draw: a whole number, at least 1, got {shown(n)}.")


def task_from_text(text: str, *, trained: WindTunnel | None = None) -> WindTunnel | TextTask:
    """The task that NAME or NAME:key=value,key=value asks for, as the command line takes it.

    Text tasks go by their names, and one that renders another task (`in-context`) by both: `bijection-in-context`. Its
    parameters and the other task's are written together. Whole numbers joined by + are a tuple: `ks=1+2+4`, `ks=8+`.
    Where NAME is that of `trained`, the checkpoint's own task, what is not written is as there; else as by default.

    **Raises** `UnknownName` and `InvalidArgument` as `task_from_config` does.
    """
    name, _, listed = text.partition(":")
    parameters: dict[str, Any] = {}
    for pair in filter(None, listed.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidArgument(f"{pair!r} in {text!r} is no key=value; write a task as NAME:key=value,key=value.")
        parameters[key.strip()] = literal(value.strip())
    return _named(name.strip(), parameters, trained)


_Kinds = dict[str, tuple[type[WindTunnel | TextTask], type[TextTask] | None]]


def task_kinds() -> _Kinds:
    """By every name that there is the class of the task, and the class that renders it in words, if one does."""
    # mypy: an abstract class as a value is what discovery is about.
    texts = discover("bayesgeom.tasks", TextTask)  # type: ignore[type-abstract]
    tunnels = discover("bayesgeom.tasks", WindTunnel)  # type: ignore[type-abstract]
    wrappers = {name: kind for name, kind in texts.items() if _WRAPPED in field_names(kind)}
    both: dict[str, type[WindTunnel | TextTask]] = {**tunnels, **texts}
    plain: _Kinds = {name: (kind, None) for name, kind in both.items() if name not in wrappers}
    inner = [(tunnel, wrapper) for wrapper in wrappers for tunnel in tunnels if tunnel not in texts]
    return {**plain, **{f"{name}-{wrapper}": (tunnels[name], wrappers[wrapper]) for name, wrapper in inner}}


def _named(name: str, parameters: Mapping[str, Any], trained: WindTunnel | None) -> WindTunnel | TextTask:
    if name not in (known := task_kinds()):
        raise unknown_name("task", name, known)
    kind, wrapper = known[name]
    if wrapper is None:
        kept = {key: vars(trained)[key] for key in field_names(kind)} if type(trained) is kind else {}
        return _built(kind, name, {**kept, **parameters})
    outer = field_names(wrapper) - {_WRAPPED}
    check_known(f"task {name!r}", parameters, outer | field_names(kind))
    inner = {key: value for key, value in parameters.items() if key not in outer}
    own = {key: value for key, value in parameters.items() if key in outer}
    return _built(wrapper, name, own | {_WRAPPED: _built(kind, kind.name, inner)})


def literal(text: str) -> bool | int | float | str | tuple[int, ...]:
    """What a value on the command line stands for."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "+" in text and all(part.isdecimal() for part in text.removesuffix("+").split("+")):
        return tuple(map(int, text.removesuffix("+").split("+")))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def random_order(n: int, size: int, generator: torch.Generator) -> Int64[Tensor, "batch place"]:
    """`n` random orders of 0 … size − 1. Drawn in float32 whatever torch's default dtype is."""
    return torch.rand(n, size, generator=generator, dtype=torch.float32, device=generator.device).argsort(dim=1)


def checked_seed(seed: Any) -> int:
    """A seed as a plain int. **Raises** `InvalidArgument` for what is no whole number, below 0, or 2^63 or more."""
    if not fits(seed, int) or int(seed) < 0:
        raise InvalidArgument(
            f"a seed is a whole number, at least 0 and below 2^{limits.MOST_BITS}, got {shown(seed)}."
        )
    return int(seed)


def _generator(device: str | torch.device, seed: int) -> torch.Generator:
    """torch's generator on a device. **Raises** `InvalidArgument` where there is none, or for a bad seed."""
    start = checked_seed(seed)
    check_argument("device", device, str | torch.device)
    try:
        return torch.Generator(device).manual_seed(start)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(
            f"device {shown(str(device))} draws no random numbers here ({reason}); use cpu."
        ) from error


@unique
class Branch(IntEnum):
    """Which part of a measurement a derived seed is for. Every report of one seed sees the same trials.

    What one report alone draws has a branch of its own, from 3 on, in its file.
    """

    TRIALS = 0
    FRESH = 1
    RESAMPLING = 2


def derived_seed(seed: int, *path: int) -> int:
    """A seed for one part of a computation, independent of its other parts'. **Raises** as `checked_seed` does."""
    return int(np.random.SeedSequence(checked_seed(seed), spawn_key=path).generate_state(1, np.uint64)[0] >> 1)
