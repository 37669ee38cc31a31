"""A recipe: everything that decides a trained checkpoint's weights, in one frozen value."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.models.config import ModelConfig, config_from_dict
from bayesgeom.tasks.base import WindTunnel, task_from_config


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained on what, and how. The same recipe and precision give the same weights on one machine.

    - `targets`: "sampled" trains on labels drawn by the task (the setting in which the posterior predictive
      is the unique minimiser of cross-entropy); "exact" trains on the posterior itself.
    - `optimizer`: "muon" uses Muon for the blocks' matrices (`matrix_lr`) and AdamW for the rest (`lr`).
    - Weight decay acts in the first `decay_steps` steps, or in all. It bounds the logits, and so the calibration that
      can be reached: the bijection with 0.1 throughout stayed 0.03 bits too uncertain.
    - `after`: a recipe that is trained first, and whose weights this one starts from.
    - `warm_start`: the shipped checkpoint whose weights it starts from, with their hash: "name@hash". Seeds of data and
      budget count from there.
    - `also`: tasks that take turns with `task`, batch by batch: the same at other distances, say.
    - From step `late_from`·steps on, batches hold `late_batch_size` sequences.
    - From step (1 − `float32_share`)·steps on, matrix products run in float32: the last bits of calibration need it.
      Before that they run in the precision of the run, bfloat16 where the processor computes it natively. That is no
      part of the recipe (see `training.precision`): the same recipe can be trained on every machine.
    """

    name: str
    task: WindTunnel
    sizes: Mapping[str, Any]
    targets: Literal["sampled", "exact"] = "sampled"
    optimizer: Literal["adamw", "muon"] = "muon"
    lr: float = 1e-3
    matrix_lr: float = 0.02
    weight_decay: float = 0.0
    decay_steps: int | None = None
    warmup: int = 200
    steps: int = 10_000
    batch_size: int = 64
    late_batch_size: int = 64
    late_from: float = 1.0
    float32_share: float = 0.15
    seed: int = 0
    snapshots: int = 20
    after: "Recipe | None" = None
    also: tuple[WindTunnel, ...] = ()
    warm_start: str | None = None

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_size, self.late_batch_size) < 1 or self.warmup < 0 or self.snapshots < 0:
            raise InvalidArgument(
                f"steps and batch sizes are at least 1, warmup and snapshots at least 0: {self.name} has {self.steps}, "
                f"{self.batch_size}, {self.late_batch_size}, {self.warmup}, {self.snapshots}."
            )
        if not (0 <= self.late_from <= 1 and 0 <= self.float32_share <= 1):
            raise InvalidArgument("late_from and float32_share are shares of the steps, between 0 and 1.")
        if self.targets not in ("sampled", "exact") or self.optimizer not in ("adamw", "muon"):
            raise InvalidArgument(f"no such targets or optimizer: {self.targets!r}, {self.optimizer!r}.")
        if self.warm_start is not None and (self.after is not None or self.warm_start.count("@") != 1):
            raise InvalidArgument(
                f"warm_start must be 'checkpoint@hash' in a recipe without after, got "
                f"{self.warm_start!r} in {self.name}."
            )
        own = self.task
        if any((it.name, it.d_vocab) != (own.name, own.d_vocab) or it.n_pos > own.n_pos for it in self.also):
            raise InvalidArgument(
                f"what takes turns with {own} is of its kind, with its ids, and no longer: the model has room for that "
                f"task. {self.name} also has {', '.join(map(str, self.also))}."
            )

    def model_config(self) -> ModelConfig:
        """The architecture, fitted to the task's ids and length."""
        return config_from_dict({"d_vocab": self.task.d_vocab, "n_ctx": self.task.n_pos, **self.sizes})

    def task_at(self, step: int) -> WindTunnel:
        """What this step's batch is drawn from."""
        return (self.task, *self.also)[step % (1 + len(self.also))]

    def batch_size_at(self, step: int) -> int:
        """Sequences in this step's batch."""
        return self.late_batch_size if step >= self.late_from * self.steps else self.batch_size

    def is_float32_at(self, step: int) -> bool:
        """Whether this step's matrix products run in float32 whatever the precision of the run is."""
        return step >= (1 - self.float32_share) * self.steps

    @property
    def n_sequences(self) -> int:
        """Sequences seen in training, by earlier stages too."""
        own = sum(self.batch_size_at(step) for step in range(self.steps))
        return own + (0 if self.after is None else self.after.n_sequences)

    def reseeded(self, by: int) -> "Recipe":
        """The same with other data and another initialization, in every stage: seeds are counted up by 1,000 · `by`.

        By 0 it is the recipe itself. **Raises** `InvalidArgument` for less.
        """
        if by < 0:
            raise InvalidArgument(f"seeds are counted up from 0, the recipe's own; got seed {by}.")
        if not by:
            return self
        after = None if self.after is None else self.after.reseeded(by)
        return replace(self, name=f"{self.name}-seed{by}", seed=self.seed + 1_000 * by, after=after)

    def lengthened(self, times: int) -> "Recipe":
        """The same with so many times the steps, in every stage."""
        after = None if self.after is None else self.after.lengthened(times)
        decay = None if self.decay_steps is None else times * self.decay_steps
        return replace(self, name=f"{self.name}-x{times}", steps=times * self.steps, decay_steps=decay, after=after)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `recipe_from_dict` is the inverse.

        `also` and `warm_start` are left out where they are empty: recipes without read as they did before there were
        such fields, and so agree with those that finished checkpoints hold.
        """
        optional = ("also", "warm_start")
        plain = {field.name: vars(self)[field.name] for field in fields(self) if field.name not in optional}
        after = None if self.after is None else self.after.to_dict()
        also = {"also": [other.config() for other in self.also]} if self.also else {}
        start = {} if self.warm_start is None else {"warm_start": self.warm_start}
        return {**plain, "task": self.task.config(), "sizes": dict(self.sizes), "after": after, **also, **start}


def staged(stages: Sequence[Recipe], suffix: str, sizes: Mapping[str, Any]) -> Recipe:
    """The last of these stages after the earlier ones, each with these sizes and its name followed by the suffix."""
    trained = None
    for stage in stages:
        trained = replace(stage, name=f"{stage.name}-{suffix}", sizes=sizes, after=trained)
    assert trained is not None, "there is at least one stage"
    return trained


def deciding(recipe: Mapping[str, Any]) -> Any:
    """What of a recipe's dictionary decides the weights, as JSON gives it back: two that agree make the same model.

    A dictionary written before its task had some parameter is read with that parameter's default.
    """
    return json.loads(json.dumps({**recipe_from_dict(recipe).to_dict(), "snapshots": 0}))


def recipe_from_dict(values: Mapping[str, Any]) -> Recipe:
    """The recipe that `Recipe.to_dict` wrote."""
    after = None if values.get("after") is None else recipe_from_dict(values["after"])
    also = tuple(task_from_config(other) for other in values.get("also", ()))
    return Recipe(**{**values, "task": task_from_config(values["task"]), "after": after, "also": also})
