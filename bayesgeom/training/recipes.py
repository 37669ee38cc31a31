"""Recipes: frozen values that determine the training of a checkpoint, and those of the shipped checkpoints, by name.

Most rows have one recipe for each of several architectures, named `<task>-<architecture>`: the seeds of the batches
depend on the task only, so every architecture sees the same sequences in the same order, and parameter counts are
within 1 % of the row's transformer.

`repeats` and `recall` are learned in two stages. With all keys equally likely there is no gradient toward attending to
values before keys can be matched (see `tasks.bijection` and `tasks.associative_recall`). On sequences with returning
keys, or with few stored pairs, there is.
"""

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, final

from bayesgeom.core import InvalidArgument, check_types, unknown_name
from bayesgeom.core.errors import check_known, with_plain_integers
from bayesgeom.core.plugins import field_names, plugin_values
from bayesgeom.models.config import ModelConfig, config_from_dict
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.base import WindTunnel, task_from_config
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.causal_graph import CausalGraph
from bayesgeom.tasks.change_point import ChangePoint
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.dirichlet_markov import DirichletMarkov
from bayesgeom.tasks.hmm import HMM, SLOW
from bayesgeom.tasks.linear_gaussian import LinearGaussian
from bayesgeom.tasks.linear_regression import LinearRegression
from bayesgeom.tasks.process import Mess3, Process
from bayesgeom.tasks.product import Product
from bayesgeom.tasks.sticky_markov import StickyMarkov

_ALLOWED = (  # numbers of a recipe with their least and greatest value
    (("steps", "batch_size", "late_batch_size"), 1, math.inf),
    (("lr", "matrix_lr", "weight_decay", "decay_steps", "warmup", "snapshots", "seed"), 0, math.inf),
    (("late_from", "float32_share", "label_share", "until"), 0, 1),
)


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Task, model and optimization of a training. Recipe, precision and environment of a run determine the weights.

    The environment is the kind of device and processor, the number of threads and the versions. Other ones change the
    last digits of sums, and another kind of device changes the data. Matrix products run in the precision of the run,
    which is not part of the recipe, and in float32 at the end (see `training.environment` for both). Weight decay
    bounds the logits and so limits calibration: with 0.1 throughout, the bijection stayed 0.03 bits too uncertain.

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
        until: Share of held-out positions with a single most probable answer at which the model names it, and at which
            the stage ends before its last step (see `training.loop.named_share`): a curriculum has one such stage for
            each size.
            None: all steps.
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
    until: float | None = None

    def __post_init__(self) -> None:
        check_types(self, of=f"recipe {self.name!r}: ")
        object.__setattr__(self, "sizes", with_plain_integers(self.sizes))  # as check_types does with the other fields
        for names, least, most in _ALLOWED:
            for name in names:
                value = vars(self)[name]
                if value is not None and not (least <= value <= most and value < math.inf):
                    allowed = f"finite and at least {least}" if most == math.inf else f"between {least} and {most}"
                    raise InvalidArgument(f"recipe {self.name!r}: {name} must be {allowed}, got {value}.")

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
            InvalidArgument: A seed would be negative, or not below 2^63.
        """
        number = int(by)
        if number < 0:
            raise InvalidArgument(f"seed must be a non-negative integer (0 is the recipe's own), got {number}.")
        name, more = f"-seed{number}" if number else "", 1_000 * number
        return chained([replace(stage, name=f"{stage.name}{name}", seed=stage.seed + more) for stage in self.stages()])

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
        return chained([_resized(stage, changes) for stage in self.stages()]) if changes else self

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON types; `recipe_from_dict` is the inverse.

        `also`, `warm_start`, `loss_positions`, `label_share` and `until` are omitted at their defaults, so that recipes
        agree with checkpoints from before these fields.
        """
        optional = ("also", "warm_start", "loss_positions", "label_share", "until")
        written = vars(self) | {
            "task": self.task.config(),
            "sizes": dict(self.sizes),
            "after": None if self.after is None else self.after.to_dict(),
            "also": [other.config() for other in self.also],
        }
        given = (
            field for field in fields(self) if field.name not in optional or vars(self)[field.name] != field.default
        )
        return {field.name: written[field.name] for field in given}


def _resized(stage: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """A single stage with other sizes."""
    sizes, parameters = field_names(type(stage.model_config())) - {"d_vocab"}, field_names(type(stage.task))
    batches = {"batch_size", "late_batch_size"}
    check_known(f"recipe {stage.name!r}", changes, sizes | parameters | batches)
    if stage.warm_start is not None:
        raise InvalidArgument(
            f"{stage.name} starts from the trained weights {stage.warm_start}, so its sizes cannot be changed. Leave "
            f"out {', '.join(changes)}."
        )

    def among(names: Collection[str]) -> dict[str, Any]:
        return {key: value for key, value in changes.items() if key in names}

    task, *also = (task_from_config({**other.config(), **among(parameters)}) for other in (stage.task, *stage.also))
    changed = replace(
        stage,
        name="-".join([stage.name, *(f"{key}{value}" for key, value in changes.items())]),
        sizes={**stage.sizes, **among(sizes)},
        task=task,
        also=tuple(also),
        **among(batches),
    )
    changed.model_config().build(seed=0)  # raises now if the sizes do not fit together
    return changed


def chained(stages: Iterable[Recipe]) -> Recipe:
    """Return the last stage, to be trained after the earlier ones."""
    trained = None
    for stage in stages:
        trained = replace(stage, after=trained)
    assert trained is not None, "there is at least one stage"
    return trained


def staged(stages: Sequence[Recipe], suffix: str, sizes: Mapping[str, Any]) -> Recipe:
    """Return the last stage, to be trained after the earlier ones. All have these sizes and the suffix in the name."""
    return chained([replace(stage, name=f"{stage.name}-{suffix}", sizes=sizes) for stage in stages])


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


Sizes = Mapping[str, Any]

_TRANSFORMER = {"architecture": "transformer"}
_BIJECTION_SIZES = {**_TRANSFORMER, "n_layers": 6, "n_heads": 6, "d_model": 192, "d_mlp": 768}

# Four stages: weight decay kept the logits too small, so used values kept 0.5 % of the probability and entropies were
# 0.03 bits too high. Without decay, matrices annealed, but the scale of the final norm changed too slowly. The last two
# stages use a larger learning rate for norms and embeddings and a smaller one for matrices.
_V20 = Recipe(name="bijection-v20", task=Bijection(), sizes=_BIJECTION_SIZES)
_LATER = replace(_V20, warmup=20, batch_size=128, float32_share=0.1)
_BIJECTION_STAGES = (
    replace(_V20, name="bijection-v20-decayed", weight_decay=0.1, steps=9_000, late_batch_size=160, late_from=0.6),
    replace(_LATER, name="bijection-v20-annealed", lr=3e-4, matrix_lr=0.005, warmup=50, steps=2_000, seed=1),
    replace(_LATER, name="bijection-v20-sharpened", lr=3e-3, matrix_lr=0.002, steps=1_500, seed=2),
    replace(_LATER, lr=4e-3, matrix_lr=0.001, steps=800, seed=3),
)

# Keys uniform over all V give no gradient until keys are matched (see the task): after 3,300 steps the model was still
# uniform. Sequences with many returning keys end that plateau within some hundred steps; the posterior is the same.
_POOLED = Recipe(
    name="repeats-pooled",
    task=Bijection(repeats=True, pooled_keys=True),
    sizes={},
    lr=2e-3,
    matrix_lr=0.01,
    steps=2_000,
    float32_share=0.0,
    snapshots=0,
)
_REPEATS = replace(
    _POOLED,
    name="repeats",
    task=Bijection(repeats=True),
    warmup=50,
    steps=5_000,
    float32_share=0.1,
    seed=1,
    snapshots=20,
)
_REPEATS_STAGES = (
    replace(_POOLED, name="bijection-v20-repeats-pooled", sizes=_BIJECTION_SIZES, snapshots=20),
    replace(
        _REPEATS,
        name="bijection-v20-repeats",
        sizes=_BIJECTION_SIZES,
        steps=7_000,
        late_batch_size=128,
        late_from=0.75,
        float32_share=0.15,
    ),
)

# From the shipped weights of `bijection-v20`, without weight decay, float32 at the end. Exact targets distill the
# posterior: 500 steps of 64 sequences took KL from 2.1e-3 to 2.6e-4 bits.
_REFINED = replace(
    _V20,
    name="bijection-v20-refined",
    targets="exact",
    matrix_lr=0.005,
    warmup=100,
    steps=4_000,
    batch_size=128,
    late_batch_size=256,
    late_from=0.7,
    float32_share=0.3,
    seed=4,
    warm_start="bijection-v20@8339b24b32f58847",
)

_MESS3 = Recipe(
    name="mess3-small",
    task=Mess3(x=0.05, a=0.6, length=64),
    sizes={**_TRANSFORMER, "n_layers": 3, "n_heads": 4, "d_model": 64, "d_mlp": 256},
    targets="exact",
    lr=2e-3,
    warmup=50,
    steps=600,
    batch_size=32,
    late_batch_size=64,
    late_from=0.5,
)

_SMALL: Mapping[str, Sizes] = {  # about 0.60 M parameters
    "transformer": {**_TRANSFORMER, "n_layers": 3, "n_heads": 4, "d_model": 128, "d_mlp": 512},
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 170},
    "lstm": {"architecture": "lstm", "n_layers": 2, "d_model": 192},
    "mlp": {"architecture": "mlp", "n_layers": 4, "d_model": 136, "d_mlp": 544},
}
_UNTIED: Sizes = {"norm": "layernorm", "tied": False}
_DEEP: Mapping[str, Sizes] = {  # about 1.82 M parameters: filtering takes the transformer nine layers
    "transformer": {**_TRANSFORMER, "n_layers": 9, "n_heads": 8, "d_model": 128, "d_mlp": 512, **_UNTIED},
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 298, "tied": False},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 270, "tied": False},
}
_SLOW: Mapping[str, Sizes] = {  # about 1.23 M parameters: a belief carried over 64 steps
    "transformer": {**_TRANSFORMER, "n_layers": 6, "n_heads": 4, "d_model": 128, "d_mlp": 512, **_UNTIED},
    "mamba": {"architecture": "mamba", "n_layers": 3, "d_model": 242, "tied": False},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 222, "tied": False},
}
_BIJECTION_ROW = Recipe(name="bijection", task=Bijection(), sizes={}, lr=2e-3, steps=6_000, float32_share=0.1)
_HMM = Recipe(
    name="hmm",
    task=HMM(),
    sizes={},
    targets="exact",
    weight_decay=0.1,
    decay_steps=1798,
    steps=5_000,
    float32_share=0.0,
)
# Sampled targets: exact ones would distill the filter into the network.
_SLOW_HMM = Recipe(name="slow-hmm", task=SLOW, sizes={}, steps=4_000, float32_share=0.1)

# Small networks of the tasks whose latent is continuous, changes or is a graph: minutes on one core. Rotary positions
# end the plateau before earlier symbols are matched several times sooner than learned ones. Rolls of a die need no
# matching, but their number, which attention under rotary positions does not show (0.013 bits after 1,300 steps).
_SHALLOW: Mapping[str, Sizes] = {  # about 0.10 M parameters
    "transformer": {**_TRANSFORMER, "n_layers": 2, "n_heads": 4, "d_model": 64, "d_mlp": 256, "positions": "rotary"},
    "lstm": {"architecture": "lstm", "n_layers": 2, "d_model": 78},
}
_THREE: Mapping[str, Sizes] = {  # about 0.15 M parameters
    "transformer": {**_SHALLOW["transformer"], "n_layers": 3},
    "lstm": {"architecture": "lstm", "n_layers": 3, "d_model": 78},
}
# Recall of many pairs is learned if few pairs come first: with 16 from the start every network stayed at the bag of
# stored values. Rotary positions, because a learned table would have to learn "the previous token" at every position.
# Sampled labels teach slowly that a key that was not stored has one of the 16 values that were not stored either (0.13
# bits after 3,000 steps); exact targets teach it (0.0002).
_SIXTEEN = AssociativeRecall(n_pairs=16, n_keys=32, n_values=32, n_queries=16)
_BINDING = Recipe(
    name="binding",
    task=_SIXTEEN,
    sizes={},
    targets="exact",
    lr=2e-3,
    matrix_lr=0.01,
    steps=3_000,
    float32_share=0.1,
)
_BINDING_STAGES = (
    *(
        replace(
            _BINDING,
            name=f"binding-{n}",
            task=replace(_SIXTEEN, n_pairs=n, n_queries=n_queries),
            targets="sampled",
            steps=4_000,
            until=0.97,
            float32_share=0.0,
            snapshots=0,
        )
        for n, n_queries in ((2, 8), (4, 16), (8, 16), (16, 16))
    ),
    _BINDING,
)
_BINDING_SIZES: Mapping[str, Sizes] = {  # 0.41 M parameters
    "transformer": {
        **_TRANSFORMER,
        "n_layers": 2,
        "n_heads": 4,
        "d_model": 128,
        "d_mlp": 512,
        "positions": "rotary",
        "tied": False,
    },
}
_WORLD = Recipe(name="dice", task=Dice(), sizes={}, optimizer="adamw", lr=3e-3, warmup=100, steps=2_500)
# The sign of a weight shows in products of input and output only. Without the pools, every network knew the size of the
# weight and not its sign after 4,000 steps (0.40 bits); which of four lines it is, is learned within 400.
_REGRESSION = replace(
    _WORLD,
    name="linear-regression",
    task=LinearRegression(),
    optimizer="muon",
    lr=2e-3,
    matrix_lr=0.02,
    warmup=50,
    steps=3_000,
)
_REGRESSION_STAGES = (
    *(
        replace(
            _REGRESSION,
            name=f"linear-regression-{pool}",
            task=LinearRegression(pool=pool),
            steps=600,
            float32_share=0.0,
            snapshots=0,
        )
        for pool in (4, 32)
    ),
    _REGRESSION,
)

# Stages and sizes of each row.
_ROWS: Mapping[str, tuple[tuple[Recipe, ...], Mapping[str, Sizes]]] = {
    "bijection": ((_BIJECTION_ROW,), _SMALL),
    "repeats": ((_POOLED, _REPEATS), _SMALL),
    "recall": (
        (
            replace(_POOLED, name="recall-pooled", task=AssociativeRecall(pooled_pairs=True)),
            replace(_REPEATS, name="recall", task=AssociativeRecall(), steps=3_000),
        ),
        _SMALL,
    ),
    "hmm": ((_HMM,), _DEEP),
    "slow-hmm": ((_SLOW_HMM,), _SLOW),
    "dice": ((_WORLD,), {**_SHALLOW, "transformer": {**_SHALLOW["transformer"], "positions": "learned"}}),
    "dirichlet-markov": ((replace(_WORLD, name="dirichlet-markov", task=DirichletMarkov(), steps=3_000),), _SHALLOW),
    "change-point": ((replace(_WORLD, name="change-point", task=ChangePoint(), steps=3_000),), _SHALLOW),
    "causal-graph": ((replace(_WORLD, name="causal-graph", task=CausalGraph(), steps=3_000),), _THREE),
    "linear-regression": (_REGRESSION_STAGES, _THREE),
    "linear-gaussian": ((replace(_WORLD, name="linear-gaussian", task=LinearGaussian(), steps=3_000),), _THREE),
    "binding": (_BINDING_STAGES, _BINDING_SIZES),
    "rrxor": ((replace(_WORLD, name="rrxor", task=Process("rrxor", length=24), steps=3_000),), _THREE),
    "product": ((replace(_WORLD, name="product", task=Product(), steps=3_000),), _THREE),
}
_SHIPPED_AS = {"hmm-transformer": "hmm-s5"}


def _of_rows() -> Iterator[Recipe]:
    """Every row's recipes, and the bijection's transformer with its own unembedding."""
    for stages, of_architecture in _ROWS.values():
        length = {stage.task.n_pos for stage in stages}
        room = {"n_ctx": max(length)} if len(length) > 1 else {}  # that of the longest stage
        for architecture, sizes in of_architecture.items():
            trained = staged(stages, architecture, {**sizes, **room})
            yield replace(trained, name=_SHIPPED_AS.get(trained.name, trained.name))
    sizes = {**_SMALL["transformer"], "tied": False}
    yield staged((_BIJECTION_ROW,), "transformer-untied", sizes)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        chained(_BIJECTION_STAGES),
        chained(_REPEATS_STAGES),
        replace(
            _V20,
            name="bijection-v20-llama",
            sizes={**_BIJECTION_SIZES, "architecture": "llama", "n_kv_heads": 2, "d_mlp": 512},
            steps=6_000,
            late_batch_size=128,
            late_from=0.7,
            float32_share=0.1,
        ),
        _REFINED,
        _MESS3,
        replace(_MESS3, name="sticky-small", task=StickyMarkov(length=40)),
        *_of_rows(),
    )
}


def recipe(name: str) -> Recipe:
    """Return the recipe of this name: of a shipped checkpoint, or of another package.

    Raises:
        UnknownName: There is no such recipe. The message lists the known names.

    Example:
        >>> recipe("recall-lstm").n_sequences
        320000
    """
    known = {**RECIPES, **plugin_recipes()}
    if name not in known:
        raise unknown_name("recipe", name, known)
    return known[name]


def plugin_recipes() -> dict[str, Recipe]:
    """Return the recipes of other packages, by name: entry points in the group `bayesgeom.recipes`."""
    return plugin_values("bayesgeom.recipes", Recipe, taken=RECIPES)
