"""`bayesgeom length`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import tyro

from bayesgeom.commands.base import HERE, Command, On, TaskOption, check_target, conclude_report, note
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS
from bayesgeom.core.text import is_whole, shown
from bayesgeom.results.tables import counted

if TYPE_CHECKING:
    from bayesgeom.generalization.length import Unmade
    from bayesgeom.models.base import Model
    from bayesgeom.models.resolve import ModelLike
    from bayesgeom.training.recipe import Recipe
    from bayesgeom.training.trained_models import TrainedModels

Names = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT …")]


@final
@dataclass(frozen=True)
class Length(Command):
    """Measure errors beyond the training length, and where they are discontinuous.

    It states by how much, and in which layer. A shipped checkpoint takes about 3 minutes on two CPU cores at 128
    sequences. With --variants, missing ones are trained first, which takes hours.
    """

    name: ClassVar[str] = "length"
    order: ClassVar[int] = 50

    checkpoints: Names = ()
    """Checkpoints, by name or directory. Several share one chart and the same sequences.
    Required without --variants."""
    to: str | None = None
    """Lengths to report, joined by commas: 50,100. There is an error if models and task allow none beyond the training
    length: a learned position table ends there (see --untrained-rows), and a bijection whose keys do not return has no
    further key. Default: 1, 1.5, 2.5 and 5 times the training length, up to what models and task allow."""
    variants: str | None = None
    """hmm, recall or recall-mixed: compare networks that differ only in their positional encoding. Missing ones are
    trained."""
    kinds: tuple[str, ...] | None = None
    """With --variants, only these: learned, sinusoidal, rotary, alibi, prior, gaussian, none, no-top-attention.
    Default: all of them."""
    task: TaskOption = None
    n: int = 512
    """Sequences to draw, at least 2."""
    seed: int = 0
    """Seed of sequences and intervals."""
    threshold: float = 0.01
    """KL in bits above which a position counts as failed."""
    top_attention_off: int = 0
    """Number of top layers whose attention is ablated."""
    untrained_rows: bool = False
    """Extend learned position tables that are too short with randomly initialized rows, which are not trained."""
    only_existing: bool = False
    """Train nothing: report the checkpoints that are shipped or in --runs, and list the missing ones. An error if none
    is available."""
    runs: Path = RUNS
    """Directory where missing variants are trained and saved."""
    out: Path | None = None
    """Directory for the report. Default: the report is not saved."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.generalization.length import length_generalization
        from bayesgeom.training.trained_models import TrainedModels

        check_target(self.out)
        if bool(self.checkpoints) == (self.variants is not None):
            got = "both" if self.checkpoints else "neither"
            raise InvalidArgument(
                f"pass either checkpoints or --variants, which takes hmm, recall or recall-mixed; got {got}."
            )
        available, requested = TrainedModels(runs=self.runs, train_missing=not self.only_existing), self._recipes()
        plan, lengths = available.plan(requested), self._lengths()
        recipes = [recipe for recipe in requested if recipe not in plan.missing]
        models: Sequence[ModelLike | Unmade] = self.checkpoints or [_unmade(available, recipe) for recipe in recipes]
        if self.untrained_rows:
            if self.machines.on is not None:
                raise InvalidArgument(
                    "--untrained-rows extends models in this process, which --on cannot send: leave out one of them."
                )
            models = [_with_room(model, self.task, lengths, self.seed) for model in models]
        if plan.to_train:
            note(str(plan))
        with self.machines.executor() as executor:
            report = length_generalization(
                models,
                self.task,
                lengths,
                n=self.n,
                seed=self.seed,
                threshold_bits=self.threshold,
                top_attention_off=self.top_attention_off,
                executor=executor,
            )
        trained = report.provenance["trained_task"]
        below = [f"\ntrained on {trained}; {counted(report.n, 'sequence')}"]
        if plan.missing:
            below.append(f"missing: {', '.join(recipe.name for recipe in plan.missing)}")
        return conclude_report(report, self.out, *below)

    def _lengths(self) -> tuple[int, ...] | None:
        if self.to is None:
            return None
        parts = [part.strip() for part in self.to.split(",")]
        if not all(map(is_whole, parts)):
            raise InvalidArgument(f"--to takes whole numbers joined by commas (50,100), got {shown(self.to)}.")
        return tuple(map(int, parts))

    def _recipes(self) -> "list[Recipe]":
        from bayesgeom.training.variants import variants_of_kinds

        return [] if self.variants is None else variants_of_kinds(self.variants, self.kinds)


def _unmade(available: "TrainedModels", recipe: "Recipe") -> "Unmade":
    """Return a variant from the folder, described by an untrained network until it is trained."""
    from bayesgeom.generalization.length import Unmade
    from bayesgeom.models.resolve import of_module

    return Unmade(
        like=lambda: of_module(recipe.model_config().build(seed=0), name=recipe.name, task=recipe.task),
        make=lambda: available.model(recipe),
    )


def _with_room(
    model: "ModelLike | Unmade", task: str | None, lengths: tuple[int, ...] | None, seed: int
) -> "Model | Unmade":
    """Extend the model's position table if it is too short. A checkpoint is loaded here, once."""
    from bayesgeom.generalization.length import Unmade, with_room

    if not isinstance(model, Unmade):
        return with_room(model, task, lengths, seed=seed)
    return Unmade(
        like=lambda: with_room(model.like(), task, lengths, seed=seed),
        make=lambda: with_room(model.make(), task, lengths, seed=seed),
    )
