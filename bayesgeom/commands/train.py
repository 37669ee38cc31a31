"""`bayesgeom train`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, final

import tyro

from bayesgeom.commands.base import Command, RecipeName, note, tell
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS, check_directory

if TYPE_CHECKING:
    from bayesgeom.training.recipe import Recipe

BATCHES = frozenset({"batch_size", "late_batch_size"})


@final
@dataclass(frozen=True)
class Train(Command):
    """Train a recipe, or show the training queue.

    An interrupted run continues with --resume. It ends with the same weights on the same kind of CPU, with the same
    number of threads and the same libraries; a warning names what differs. Recipes take between five minutes and
    several hours on two CPU cores. The estimate for this machine is printed before the training starts; --status lists
    those of the training queue.
    """

    name: ClassVar[str] = "train"
    order: ClassVar[int] = 130

    recipe: RecipeName = ""
    """Name of the recipe. An unknown name lists the available recipes. Required without --status."""
    status: bool = False
    """Train nothing: list the finished, running and waiting runs of the training queue, with estimated times."""
    out: Path | None = None
    """Directory of the run: state, log, snapshots and, at the end, the checkpoint. Default: runs/train/NAME[-seedK]."""
    resume: bool = False
    """Continue the run in that directory."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Change a size of the network, a parameter of the task or the batch size, as KEY=VALUE. May be given several
    times: --set n_layers=2 --set n_values=8. It applies to every stage and is added to the recipe's name."""
    steps: int | None = None
    """Number of steps of the last stage. Default: the recipe's."""
    seed: int = 0
    """Index of the recipe's seed, as in `replicate`: 0 is the recipe itself."""
    keep: int | None = None
    """Number of log-spaced snapshots to keep in addition to step 0. 0 keeps only the last step. The weights do not
    depend on it. Default: the recipe's."""
    device: str = "cpu"
    """Where to train: cpu, cuda, …"""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    """Precision of matrix products. auto: bfloat16 if the processor supports it natively and the architecture has a
    kernel, otherwise float32. With --resume: the precision of the run."""

    def __call__(self) -> int:
        if self.status:
            from bayesgeom.training.queue import progress, status_table

            tell(status_table(progress(RUNS if self.out is None else self.out)))
            return 0
        if not self.recipe:
            raise InvalidArgument("Missing from bayesgeom train: RECIPE; `bayesgeom train --status` lists the queue.")
        from bayesgeom.core.progress import progress_in
        from bayesgeom.models.checkpoint_files import FINISHED
        from bayesgeom.models.resolve import check_device
        from bayesgeom.training.duration import as_duration, estimated_seconds
        from bayesgeom.training.loop import check_startable, remaining_stages, run_precision, train
        from bayesgeom.training.publish import publish
        from bayesgeom.training.recipes import recipe

        check_device(self.device)
        committed = resized(recipe(self.recipe), assignments(self.set)).reseeded(self.seed)
        steps = committed.steps if self.steps is None else self.steps
        kept = committed.snapshots if self.keep is None else self.keep
        chosen = replace(committed, steps=steps, snapshots=kept)
        out = self.out or RUNS / committed.name
        check_startable(chosen, out, resume=self.resume, device=self.device)
        check_directory(out)
        precision = run_precision(chosen, out, self.precision, self.device)
        stages = remaining_stages(chosen, out)
        seconds = estimated_seconds(stages, device=self.device, precision=precision)
        n_steps = sum(stage.steps - start for stage, start in stages)
        note(f"{n_steps:,} steps in {precision}, about {as_duration(seconds)}")
        with progress_in(out, "repeat the command with --resume"):
            module = train(chosen, out, resume=self.resume, device=self.device, precision=precision)
        scores = publish(chosen, module, out / FINISHED, precision=precision)
        tell(*map(str, scores.headlines()), f"\ncheckpoint: {out / FINISHED}")
        return 0

    @classmethod
    def choices(cls) -> Mapping[str, Mapping[str, str]]:
        from bayesgeom.models.config import architectures
        from bayesgeom.training.recipes import RECIPES, plugin_recipes

        recipes = sorted({**RECIPES, **plugin_recipes()})
        return {f"Recipes: {', '.join(recipes)}": {}, f"Architectures: {', '.join(architectures())}": {}}


def assignments(listed: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE texts.

    Args:
        listed: The values of `--set`.

    Returns:
        The values by key.

    Raises:
        InvalidArgument: A text is not KEY=VALUE, or a key is given twice.

    Example:
        >>> assignments(["n_layers=2", "n_values=8"])
        {'n_layers': 2, 'n_values': 8}
    """
    from bayesgeom.tasks.base import literal

    found: dict[str, Any] = {}
    for text in listed:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and key and value) or key in found:
            raise InvalidArgument(f"--set takes KEY=VALUE, each key once, such as n_layers=2; got {text!r}.")
        found[key] = literal(value)
    return found


def resized(recipe: "Recipe", changes: Mapping[str, Any]) -> "Recipe":
    """Return a recipe with other sizes in every stage; its name states them.

    Args:
        recipe: The recipe.
        changes: Sizes of the network (`n_layers`), parameters of the task (`n_values`) or batch sizes, by name.

    Returns:
        The new recipe, or the recipe itself if there are no changes.

    Raises:
        InvalidArgument: A name is unknown, a value is not allowed, or the recipe starts from trained weights.

    Example:
        >>> from bayesgeom.training.recipes import recipe
        >>> resized(recipe("mess3-small"), {"n_layers": 2}).name
        'mess3-small-n_layers2'
    """
    from bayesgeom.core.errors import check_known
    from bayesgeom.core.plugins import field_names
    from bayesgeom.tasks.base import task_from_config

    if not changes:
        return recipe
    sizes, parameters = field_names(type(recipe.model_config())) - {"d_vocab"}, field_names(type(recipe.task))
    known = sizes | parameters | BATCHES
    for name in changes.keys() & field_names(Train) - known:
        raise InvalidArgument(f"{name} is an option of its own: use --{name} {changes[name]} instead of --set.")
    check_known(f"recipe {recipe.name!r}", changes, known)
    if recipe.warm_start is not None:
        raise InvalidArgument(
            f"{recipe.name} starts from the trained weights {recipe.warm_start}, so its sizes cannot be changed. Leave "
            f"out --set {', '.join(changes)}."
        )
    task, *also = (
        task_from_config({**own.config(), **{key: value for key, value in changes.items() if key in parameters}})
        for own in (recipe.task, *recipe.also)
    )
    found = replace(
        recipe,
        name="-".join([recipe.name, *(f"{key}{value}" for key, value in changes.items())]),
        sizes={**recipe.sizes, **{key: value for key, value in changes.items() if key in sizes}},
        task=task,
        also=tuple(also),
        after=None if recipe.after is None else resized(recipe.after, changes),
        **{key: value for key, value in changes.items() if key in BATCHES},
    )
    found.model_config().build(seed=0)  # raises now if the sizes do not fit together
    return found
