"""`bayesgeom train`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, final

import tyro

from bayesgeom.commands.base import Command, RecipeName, note, tell
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS


@final
@dataclass(frozen=True)
class Train(Command):
    """Train a recipe.

    An interrupted run continues with --resume. It ends with the same weights on the same kind of CPU, with the same
    number of threads and the same libraries; a warning names what differs. Recipes take between five minutes and
    several hours on two CPU cores. The estimate for this machine is printed before the training starts.
    """

    name: ClassVar[str] = "train"
    order: ClassVar[int] = 130

    recipe: RecipeName
    """Name of the recipe. An unknown name lists the available recipes."""
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
    """Index of the recipe's seed: 0 is the recipe itself."""
    keep: int | None = None
    """Number of log-spaced snapshots to keep in addition to step 0. 0 keeps only the last step. The weights do not
    depend on it. Default: the recipe's."""
    device: str = "cpu"
    """Where to train: cpu, cuda, …"""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    """Precision of matrix products. auto: bfloat16 if the processor supports it natively and the architecture has a
    kernel, otherwise float32. With --resume: the precision of the run."""

    def __call__(self) -> int:
        from bayesgeom.models.description import FINISHED
        from bayesgeom.training.publish import make_checkpoint
        from bayesgeom.training.recipes import recipe

        committed = recipe(self.recipe).resized(assignments(self.set)).reseeded(self.seed)
        steps = committed.steps if self.steps is None else self.steps
        kept = committed.snapshots if self.keep is None else self.keep
        chosen, out = replace(committed, steps=steps, snapshots=kept), self.out or RUNS / committed.name
        scores = make_checkpoint(
            chosen, out, resume=self.resume, device=self.device, precision=self.precision, announce=note
        )
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
