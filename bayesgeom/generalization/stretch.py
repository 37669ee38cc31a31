"""How a task is made longer, and whether a model has room for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Integral
from typing import Any, final

from bayesgeom.core.errors import InvalidArgument, TaskMismatch
from bayesgeom.core.run import ModelSpec
from bayesgeom.generalization.curves import N_TREND
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.tasks.base import WindTunnel

# Of the training length, where none is asked for.
TIMES = (1, 1.5, 2.5, 5)  # 20, 30, 50, 100, as in the papers and beyond
DISTANCES = (0, 0.5, 1, 2, 4, 8, 16, 32)


@final
@dataclass(frozen=True, kw_only=True)
class Stretch:
    """The field of a task that makes it longer. `is_prefix`: a longer task only adds scored positions at the end.

    Where that is so, one run at the longest says all of the shorter ones, since no causal model's answer depends on
    what comes after it.
    """

    field: str
    unit: str
    is_prefix: bool

    def of(self, task: WindTunnel) -> int:
        """How long this task is."""
        length: int = getattr(task, self.field)
        return length

    def to(self, task: WindTunnel, length: int) -> WindTunnel:
        """The same task at another length. **Raises** `InvalidArgument` where the task has none such."""
        changes: dict[str, Any] = {self.field: length}
        assert is_dataclass(task), "a task is a dataclass"
        longer: WindTunnel = replace(task, **changes)
        return longer


_BY_DISTANCE = Stretch(field="n_filler", unit="filler tokens between pairs and query", is_prefix=False)
_BY_STEPS = tuple(
    Stretch(field=field, unit="scored position (1 is the first)", is_prefix=True) for field in ("length", "n_pairs")
)


def stretch_of(task: WindTunnel) -> Stretch:
    """How this task is made longer: by distance where filler stands before what is asked, else by more steps.

    **Raises** `InvalidArgument` where a task has no length.
    """
    assert is_dataclass(task), "a task is a dataclass"
    known = {field.name for field in fields(task)}
    for stretch in (_BY_DISTANCE, *_BY_STEPS):
        if stretch.field in known:
            return stretch
    raise InvalidArgument(
        f"{task} has no length to vary: length is studied of tasks with a field length, n_pairs or n_filler (hmm, "
        f"bijection, recall, …)."
    )


def checked_lengths(stretch: Stretch, trained: int, lengths: Sequence[int] | None) -> tuple[int, ...]:
    """The lengths to report on, ascending, the trained one among them. **Raises** where none is longer."""
    if lengths is None:
        times = TIMES if stretch.is_prefix else DISTANCES
        lengths = [*(round(share * trained) for share in times), *(() if trained else (1, 2, 4, 8, 16, 32))]
    least = 1 if stretch.is_prefix else 0
    given: Any = lengths
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    are_whole = all(isinstance(length, Integral) and not isinstance(length, bool) for length in listed)
    if not are_whole or not listed or min(listed) < least or max(listed) <= trained:
        raise InvalidArgument(
            f"lengths are a list of whole numbers, at least {least}, and one of them beyond the training length "
            f"({stretch.field}={trained}); got {', '.join(map(str, listed)) or repr(given)}."
        )
    return tuple(sorted({*map(int, listed), trained}))


def with_room_for(
    specs: Sequence[ModelSpec], task: WindTunnel, stretch: Stretch, trained: int, lengths: Sequence[int]
) -> tuple[int, ...]:
    """Return those of the default lengths for which the task and every model have room.

    Raises:
        TaskMismatch: A model has no positions for the shortest length beyond the training length.
        InvalidArgument: The task has no sequences of that length.
    """
    kept: list[int] = []
    for length in lengths:
        try:
            for spec in specs:
                check_room(spec, task, stretch, length)
        except (TaskMismatch, InvalidArgument):
            if not kept or kept[-1] <= trained:
                raise
            break
        kept.append(length)
    return tuple(kept)


def distances_to_run(trained: int, lengths: Sequence[int]) -> tuple[int, ...]:
    """These lengths, and those that say whether the training length is an edge, for each distance is a run of its own.

    They are the first one beyond it, and of those within the last ten: a trend's five places before each of the five
    at which its baseline is taken.
    """
    return tuple(sorted({*lengths, *range(max(0, trained - 2 * N_TREND + 1), trained + 2)}))


def check_room(spec: ModelSpec, task: WindTunnel, stretch: Stretch, longest: int) -> None:
    """**Raises** `TaskMismatch` where a model has no positions for so long a sequence, with the kinds that have."""
    n_ctx, n_pos = spec.n_ctx, stretch.to(task, longest).n_pos
    if n_ctx is not None and n_pos > n_ctx:
        raise TaskMismatch(
            f"{stretch.field}={longest} takes {n_pos} tokens; {spec.name} has positions for {n_ctx}. "
            f"Transformers with sinusoidal, rotary, alibi, prior or no positions have no such end; a learned table is "
            f"continued by rows that nothing trained with --untrained-rows (Python: "
            f"bayesgeom.generalization.length.with_room), or made longer before training (n_ctx among a recipe's "
            f"sizes)."
        )


def position_kind(model: Model) -> str:
    """How a model knows positions: a transformer's kind; elsewhere the architecture, whose order is its own."""
    module = model.module
    return module.config.positions if isinstance(module, Transformer) else model.spec.architecture


def untrained_positions(model: Model, trained: WindTunnel) -> str:
    """Which rows of a learned table no gradient reached; empty where there is none.

    Those are the rows behind the last scored position: nothing reads what stands there, such as the last placeholder
    of recall.
    """
    n_ctx, n_reached = model.spec.n_ctx, int(trained.sample(1, seed=0).scored_positions().max()) + 1
    if position_kind(model) != "learned" or n_ctx is None or n_ctx <= n_reached:
        return ""
    return f"tokens {n_reached + 1}–{n_ctx} of its position table were never trained"
