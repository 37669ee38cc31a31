"""Longer versions of a task, and models with positions for them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from bayesgeom.core import InvalidArgument, ModelSpec, TaskMismatch
from bayesgeom.generalization.curves import N_TREND
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.tasks.base import WindTunnel, torch_seed

TIMES = (1, 1.5, 2.5, 5)  # default lengths, in training lengths: 20, 30, 50 and 100 for the papers' HMM
DISTANCES = (0, 0.5, 1, 2, 4, 8, 16, 32)
_TABLE = "pos_embed.weight"


@final
@dataclass(frozen=True, kw_only=True)
class LengthField:
    """The field of a task that makes it longer. `is_prefix`: a longer task only adds scored positions at the end.

    If `is_prefix` is true, one run at the longest length contains all shorter ones, because the answers of a causal
    model do not depend on later tokens.
    """

    field: str
    unit: str
    is_prefix: bool

    def of(self, task: WindTunnel) -> int:
        """Return the length of a task."""
        return int(vars(task)[self.field])

    def to(self, task: WindTunnel, length: int) -> WindTunnel:
        """Return the task at another length.

        Raises:
            InvalidArgument: The task does not allow this length.
        """
        given: Any = task  # a dataclass, as every task
        longer: WindTunnel = replace(given, **{self.field: length})
        return longer


_BY_DISTANCE = LengthField(field="n_filler", unit="filler tokens between pairs and query", is_prefix=False)
_BY_STEPS = tuple(
    LengthField(field=field, unit="scored position (1 is the first)", is_prefix=True) for field in ("length", "n_pairs")
)


def length_field_of(task: WindTunnel) -> LengthField:
    """Return how a task is made longer: by more filler before the query if it has filler, else by more steps.

    Raises:
        InvalidArgument: The task has no length.
    """
    for length_field in (_BY_DISTANCE, *_BY_STEPS):
        if length_field.field in vars(task):
            return length_field
    raise InvalidArgument(
        f"{task} has no length to vary: use a task with a field length, n_pairs or n_filler (hmm, bijection, recall, "
        f"…)."
    )


def checked_lengths(length_field: LengthField, trained: int, lengths: Sequence[int] | None) -> tuple[int, ...]:
    """Return the lengths to report, ascending and including the training length.

    Raises:
        InvalidArgument: A length is not a whole number or too small, or none is beyond the training length.
    """
    if lengths is None:
        times = TIMES if length_field.is_prefix else DISTANCES
        lengths = [*(round(share * trained) for share in times), *(() if trained else (1, 2, 4, 8, 16, 32))]
    least = 1 if length_field.is_prefix else 0
    if not lengths or min(lengths) < least or max(lengths) <= trained:
        raise InvalidArgument(
            f"lengths must be whole numbers, at least {least}, with one beyond the training length "
            f"({length_field.field}={trained}); got {', '.join(map(str, lengths)) or 'none'}."
        )
    return tuple(sorted({*lengths, trained}))


def with_room_for(
    specs: Sequence[ModelSpec], task: WindTunnel, length_field: LengthField, trained: int, lengths: Sequence[int]
) -> tuple[int, ...]:
    """Return the default lengths that the task allows and for which every model has positions.

    Raises:
        TaskMismatch: A model has no positions for the shortest length beyond the training length.
        InvalidArgument: The task does not allow that length.
    """
    kept: list[int] = []
    for length in lengths:
        try:
            for spec in specs:
                check_room(spec, task, length_field, length)
        except (TaskMismatch, InvalidArgument):
            if not kept or kept[-1] <= trained:
                raise
            break
        kept.append(length)
    return tuple(kept)


def distances_to_run(trained: int, lengths: Sequence[int]) -> tuple[int, ...]:
    """Return these lengths and those that the discontinuity needs; each distance is a separate run.

    The latter are the first distance beyond the training length and the last ten within it: the trend uses five, and
    its baseline repeats the trend at each of five.
    """
    return tuple(sorted({*lengths, *range(max(0, trained - 2 * N_TREND + 1), trained + 2)}))


def check_room(spec: ModelSpec, task: WindTunnel, length_field: LengthField, longest: int) -> None:
    """Check that a model has positions for this length.

    Raises:
        TaskMismatch: It has too few; the error lists the alternatives.
        InvalidArgument: The task does not allow this length.
    """
    n_ctx, n_pos = spec.n_ctx, lengthened(spec.name, task, length_field, longest).n_pos
    if n_ctx is not None and n_pos > n_ctx:
        raise TaskMismatch(
            f"{length_field.field}={longest} takes {n_pos} tokens; {spec.name} has positions for {n_ctx}. "
            f"Transformers with sinusoidal, rotary, alibi, prior or no positions have no such limit. Extend a learned "
            f"table with untrained rows by --untrained-rows (Python: from bayesgeom.generalization.length import "
            f"with_room), or train with a longer table (n_ctx among a recipe's sizes)."
        )


def lengthened(model: str, task: WindTunnel, length_field: LengthField, length: int) -> WindTunnel:
    """Return the task at this length.

    Args:
        model: Name of the model that is to be measured there, for the message.
        task: The task.
        length_field: How it is made longer.
        length: The requested length.

    Raises:
        InvalidArgument: The task does not allow this length; the message states the model and the task's reason.
    """
    try:
        return length_field.to(task, length)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{model} cannot be measured at {length_field.field}={length}, because its task {task} does not allow that "
            f"length: {error} Pass a shorter length (lengths=, --to), or a task that allows it (task=, --task)."
        ) from error


def position_kind(model: Model) -> str:
    """Return how a model encodes positions: the kind of a bayesgeom transformer, else the architecture."""
    module = model.module
    return module.config.positions if isinstance(module, Transformer) else model.spec.architecture


def untrained_rows(model: Model, trained: WindTunnel) -> tuple[int, int]:
    """Return the first and the last position of a learned table that no gradient reached; −1 if there are none.

    These are the rows after the last scored position, such as the last placeholder of recall: no scored position
    attends to them.
    """
    n_ctx, n_reached = model.spec.n_ctx, int(trained.sample(1, seed=0).scored_positions().max()) + 1
    has_more = position_kind(model) == "learned" and n_ctx is not None and n_ctx > n_reached
    return (n_reached + 1, int(n_ctx or 0)) if has_more else (-1, -1)


def with_untrained_positions(model: Model, n_ctx: int, *, seed: int = 0) -> Model:
    """Return the transformer with its position table extended to `n_ctx` rows by randomly initialized rows.

    A longer table would hold the same after training on these sequences: no gradient reaches its last rows, and weight
    decay, if any, shrinks them slightly.

    Raises:
        InvalidArgument: The model is not a bayesgeom transformer with a learned position table.
    """
    module = model.module
    if not isinstance(module, Transformer) or module.config.positions != "learned":
        raise InvalidArgument(
            f"{model.spec.name} has no table of learned positions to extend ({position_kind(model)}): this requires a "
            f"bayesgeom transformer with learned positions."
        )
    longer = Transformer(replace(module.config, n_ctx=n_ctx), seed=torch_seed(seed)).to(model.spec.device)
    weights, rows = dict(module.state_dict()), longer.state_dict()[_TABLE]
    weights[_TABLE] = torch.cat([weights[_TABLE], rows[len(weights[_TABLE]) :]])
    longer.load_state_dict(weights, strict=True)
    return HookedModel(longer.eval(), name=f"{model.spec.name} + untrained rows", task=model.task)
