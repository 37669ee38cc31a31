"""Recipes: frozen values that determine the training of a checkpoint."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final

from bayesgeom.core.errors import InvalidArgument, check_fields, check_known
from bayesgeom.core.plugins import field_names
from bayesgeom.models.config import ModelConfig, config_from_dict
from bayesgeom.tasks.base import WindTunnel, task_from_config


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Task, model and optimization of a training. Recipe, precision and environment of a run determine the weights.

    The environment is the kind of device and processor, the number of threads and the versions (see
    `training.environment`). Other ones change the last digits of sums, and another kind of device changes the data.
    Matrix products run in the precision of the run (see `training.precision`), which is not part of the recipe, and in
    float32 at the end. Weight decay bounds the logits and so limits calibration: with 0.1 throughout, the bijection
    stayed 0.03 bits too uncertain.

    Attributes:
        name: Name of the recipe and of its checkpoint.
        task: The training task.
        sizes: Architecture and sizes of the model, without `d_vocab` and `n_ctx`, which follow from the task.
        targets: "sampled": labels drawn by the task, for which the posterior predictive uniquely minimizes
            cross-entropy. "exact": the posterior as soft labels.
        optimizer: "muon": Muon for the blocks' matrices (`matrix_lr`) and AdamW for the rest (`lr`). "adamw": AdamW
            for all parameters.
        decay_steps: Number of first steps with weight decay. None: all.
        warmup: Steps of linear warm-up.
        late_batch_size: Sequences per batch from step `late_from` · `steps` on.
        float32_share: Share of the steps, at the end, whose matrix products run in float32.
        snapshots: Number of log-spaced snapshots.
        after: A recipe that is trained first; this one starts from its weights.
        also: Tasks that alternate with `task` by batch, for example the same task at other distances.
        warm_start: Shipped checkpoint whose weights it starts from, with their hash: "name@hash".
        loss_positions: Number of first scored positions with a loss. None: all scored positions.
        label_share: Probability of a loss at each scored position beyond `loss_positions`, drawn anew in every step.
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
    loss_positions: int | None = None
    label_share: float = 0.0

    def __post_init__(self) -> None:
        check_fields(type(self), vars(self), of=f"recipe {self.name!r}: ")
        self._check_rates()
        if min(self.steps, self.batch_size, self.late_batch_size) < 1 or self.warmup < 0 or self.snapshots < 0:
            raise InvalidArgument(
                f"steps and batch sizes must be at least 1, warmup and snapshots at least 0: {self.name} has "
                f"steps={self.steps}, batch_size={self.batch_size}, late_batch_size={self.late_batch_size}, "
                f"warmup={self.warmup} and snapshots={self.snapshots}."
            )
        if not (0 <= self.late_from <= 1 and 0 <= self.float32_share <= 1):
            raise InvalidArgument(
                f"late_from and float32_share must be between 0 and 1: {self.name} has late_from={self.late_from} and "
                f"float32_share={self.float32_share}."
            )
        if self.warm_start is not None and (self.after is not None or self.warm_start.count("@") != 1):
            raise InvalidArgument(
                f"warm_start must be 'checkpoint@hash' in a recipe without after, got "
                f"{self.warm_start!r} in {self.name}."
            )
        own = self.task
        if any((it.name, it.d_vocab) != (own.name, own.d_vocab) or it.n_pos > own.n_pos for it in self.also):
            raise InvalidArgument(
                f"tasks in `also` must be of the same kind as {own}, with the same ids, and not longer. {self.name} "
                f"also has {', '.join(map(str, self.also))}."
            )
        self._check_loss()

    def _check_rates(self) -> None:
        for name in ("lr", "matrix_lr", "weight_decay", "decay_steps", "seed"):
            value = vars(self)[name]
            if value is not None and not 0 <= value < math.inf:
                raise InvalidArgument(f"recipe {self.name!r}: {name} must be finite and at least 0, got {value}.")

    def _check_loss(self) -> None:
        if not 0 <= self.label_share <= 1 or (self.label_share and self.loss_positions is None):
            raise InvalidArgument(
                f"label_share is the share of labels beyond loss_positions, between 0 and 1: {self.name} has "
                f"{self.label_share} with loss_positions={self.loss_positions}."
            )
        if self.loss_positions is not None:
            n_scored = min(task.sample(1, seed=0).n_scored for task in (self.task, *self.also))
            if not 1 <= self.loss_positions <= n_scored:
                raise InvalidArgument(
                    f"loss_positions must be an integer between 1 and {n_scored}, the number of scored positions of "
                    f"the task; {self.name} has {self.loss_positions!r}."
                )

    def model_config(self) -> ModelConfig:
        """Return the config of the model, with the task's vocabulary and length."""
        return config_from_dict({"d_vocab": self.task.d_vocab, "n_ctx": self.task.n_pos, **self.sizes})

    def task_at(self, step: int) -> WindTunnel:
        """Return the task of this step's batch."""
        return (self.task, *self.also)[step % (1 + len(self.also))]

    def batch_size_at(self, step: int) -> int:
        """Return the number of sequences in this step's batch."""
        return self.late_batch_size if step >= self.late_from * self.steps else self.batch_size

    def is_float32_at(self, step: int) -> bool:
        """Return whether this step's matrix products run in float32 for every precision of the run."""
        return step >= (1 - self.float32_share) * self.steps

    @property
    def n_sequences(self) -> int:
        """Number of training sequences, including earlier stages."""
        return sum(stage.batch_size_at(step) for stage in self.stages() for step in range(stage.steps))

    def stages(self) -> "Iterator[Recipe]":
        """Yield the stages of the training in their order; the last one is the recipe itself.

        Example:
            >>> from bayesgeom.training.recipes import recipe
            >>> [stage.name for stage in recipe("recall-lstm").stages()]
            ['recall-pooled-lstm', 'recall-lstm']
        """
        if self.after is not None:
            yield from self.after.stages()
        yield self

    def reseeded(self, by: int) -> "Recipe":
        """Return the recipe with other data and another initialization: 1,000 · `by` is added to all stages' seeds.

        A recipe with `warm_start`, in any stage, starts from the same trained weights with every seed, so that its
        trainings differ in data only.

        Args:
            by: Number of the seed; 0 is the recipe itself.

        Raises:
            InvalidArgument: `by` is negative.
        """
        if by < 0:
            raise InvalidArgument(f"seed must be a non-negative integer (0 is the recipe's own), got {by}.")
        if not by:
            return self
        after = None if self.after is None else self.after.reseeded(by)
        return replace(self, name=f"{self.name}-seed{by}", seed=self.seed + 1_000 * by, after=after)

    def resized(self, changes: Mapping[str, Any]) -> "Recipe":
        """Return the recipe with other sizes in every stage; its name states them.

        Args:
            changes: Sizes of the network (`n_layers`), parameters of the task (`n_values`) or batch sizes, by name.

        Raises:
            InvalidArgument: A name is unknown, a value is not allowed, or the recipe starts from trained weights.

        Example:
            >>> from bayesgeom.training.recipes import recipe
            >>> recipe("mess3-small").resized({"n_layers": 2}).name
            'mess3-small-n_layers2'
        """
        if not changes:
            return self
        sizes, parameters = field_names(type(self.model_config())) - {"d_vocab"}, field_names(type(self.task))
        batches = {"batch_size", "late_batch_size"}
        check_known(f"recipe {self.name!r}", changes, sizes | parameters | batches)
        if self.warm_start is not None:
            raise InvalidArgument(
                f"{self.name} starts from the trained weights {self.warm_start}, so its sizes cannot be changed. Leave "
                f"out {', '.join(changes)}."
            )

        def among(names: Collection[str]) -> dict[str, Any]:
            return {key: value for key, value in changes.items() if key in names}

        task, *also = (task_from_config({**other.config(), **among(parameters)}) for other in (self.task, *self.also))
        changed = replace(
            self,
            name="-".join([self.name, *(f"{key}{value}" for key, value in changes.items())]),
            sizes={**self.sizes, **among(sizes)},
            task=task,
            also=tuple(also),
            after=None if self.after is None else self.after.resized(changes),
            **among(batches),
        )
        changed.model_config().build(seed=0)  # raises now if the sizes do not fit together
        return changed

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON types; `recipe_from_dict` is the inverse.

        `also`, `warm_start`, `loss_positions` and `label_share` are omitted at their defaults, so that recipes agree
        with checkpoints from before these fields.
        """
        optional = ("also", "warm_start", "loss_positions", "label_share")
        plain = {field.name: vars(self)[field.name] for field in fields(self) if field.name not in optional}
        after = None if self.after is None else self.after.to_dict()
        also = {"also": [other.config() for other in self.also]} if self.also else {}
        start = {} if self.warm_start is None else {"warm_start": self.warm_start}
        loss = {} if self.loss_positions is None else {"loss_positions": self.loss_positions}
        share = {"label_share": self.label_share} if self.label_share else {}
        rest = {"task": self.task.config(), "sizes": dict(self.sizes), "after": after}
        return {**plain, **rest, **also, **start, **loss, **share}


def staged(stages: Sequence[Recipe], suffix: str, sizes: Mapping[str, Any]) -> Recipe:
    """Return the last stage, to be trained after the earlier ones. All have these sizes and the suffix in the name."""
    trained = None
    for stage in stages:
        trained = replace(stage, name=f"{stage.name}-{suffix}", sizes=sizes, after=trained)
    assert trained is not None, "there is at least one stage"
    return trained


def deciding(recipe: Mapping[str, Any]) -> Any:
    """Return the part of a recipe's dictionary that determines the weights, for comparison.

    Parameters that the dictionary lacks have their default values.
    """
    return json.loads(json.dumps({**recipe_from_dict(recipe).to_dict(), "snapshots": 0}))


def recipe_from_dict(values: Mapping[str, Any]) -> Recipe:
    """Return the recipe that `Recipe.to_dict` wrote."""
    after = None if values.get("after") is None else recipe_from_dict(values["after"])
    also = tuple(task_from_config(other) for other in values.get("also", ()))
    return Recipe(**{**values, "task": task_from_config(values["task"]), "after": after, "also": also})
