"""`bayesgeom train`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, final

import tyro

from bayesgeom.commands.base import Command, RecipeName, note, tell
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.files import RUNS, check_directory


@final
@dataclass(frozen=True)
class Train(Command):
    """Train a committed recipe; interrupted at any moment, it goes on with --resume to the same weights."""

    name: ClassVar[str] = "train"

    recipe: RecipeName = ""
    """Name of the recipe; an unknown one lists those that exist."""
    status: bool = False
    """Train nothing: list what of the training queue is finished, running and next, with estimated times."""
    out: Path | None = None
    """Directory of the run: state, log, snapshots and, at the end, the checkpoint. Default: runs/train/NAME[-seedK]."""
    resume: bool = False
    """Go on with the run in that directory."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Another size of the network, parameter of the task or batch size, as KEY=VALUE; may be given several times:
    --set n_layers=2 --set n_values=8. Every stage of the recipe takes it, and its name says so."""
    steps: int | None = None
    """Another number of steps than the recipe's, in its last stage."""
    seed: int = 0
    """Which of the recipe's seeds, counted as `replicate` counts them: 0 is the recipe itself."""
    keep: int | None = None
    """How many log-spaced snapshots to keep beside that of step 0, instead of the recipe's number; 0 keeps the last
    step's alone. No weight depends on it."""
    device: str = "cpu"
    """Where to train: cpu, cuda, …"""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of matrix products. auto: bfloat16 where the processor computes it natively and the architecture has a kernel,
    else float32. With --resume: that of the run."""

    def __call__(self) -> int:
        from bayesgeom.core.progress import kept_in
        from bayesgeom.models.checkpoint import FINISHED
        from bayesgeom.models.resolve import check_device
        from bayesgeom.training.duration import as_duration, estimated_seconds
        from bayesgeom.training.loop import check_startable, remaining_stages, run_precision, train
        from bayesgeom.training.publish import publish
        from bayesgeom.training.recipe import assignments
        from bayesgeom.training.recipes import recipe

        if self.status:
            from bayesgeom.training.queue import progress, status_table

            tell(status_table(progress(RUNS if self.out is None else self.out)))
            return 0
        if not self.recipe:
            raise InvalidArgument("Missing from bayesgeom train: RECIPE; `bayesgeom train --status` lists the queue.")
        check_device(self.device)
        committed = recipe(self.recipe).resized(assignments(self.set)).reseeded(self.seed)
        steps = committed.steps if self.steps is None else self.steps
        kept = committed.snapshots if self.keep is None else self.keep
        chosen = replace(committed, steps=steps, snapshots=kept)
        out = self.out or RUNS / committed.name
        check_startable(chosen, out, resume=self.resume)
        check_directory(out)
        precision = run_precision(chosen, out, self.precision, self.device)
        stages = remaining_stages(chosen, out)
        seconds = estimated_seconds(stages, device=self.device, precision=precision)
        n_steps = sum(stage.steps - start for stage, start in stages)
        note(f"{n_steps:,} steps in {precision}, about {as_duration(seconds)}")
        with kept_in(out, "repeat the command with --resume"):
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
