"""`bayesgeom diagnose`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from bayesgeom.commands.base import HERE, Command, Of, On, TaskOption, check_target, conclude, left_out_at
from bayesgeom.core.errors import InvalidArgument

# CPU time of one core on `bijection-v20`: 2.7 million parameters, sequences of 37 tokens.
TIMES = (
    "Time: bijection-v20 takes about 5 s with n = 512, plus 2.5 s for each untrained network at any n. Time is "
    "proportional to n and to the size of the network."
)


@final
@dataclass(frozen=True)
class Diagnose(Command):
    """Compare a model with the exact posterior of its task, and measure its geometry."""

    name: ClassVar[str] = "diagnose"
    order: ClassVar[int] = 10

    source: Of
    task: TaskOption = None
    domain: str | None = None
    """Domain of the task prompts: mixed, mathematics, code, philosophy, or two joined by +: mathematics+code.
    Default: the prompts of every domain."""
    chat: bool = False
    """Write the task in the tokenizer's chat template: prompts as a user's messages, other tasks as the assistant's
    answer."""
    n: int = 512
    """Sequences to draw; for prompts, at most the number of prompts."""
    seed: int = 0
    """Seed of sequences, untrained networks and intervals."""
    n_untrained: int = 3
    """Number of untrained networks of the same architecture to compare with."""
    probes: tuple[str, ...] | None = None
    """Run only these probes, as NAME or NAME:option (value_manifold:standardized). Default: all that the model and task
    support."""
    out: Path | None = None
    """Directory for report.html, report.json, arrays.safetensors and metrics.parquet. Default: nothing is saved."""
    ablations: bool = False
    """Also run the default ablation battery."""
    machines: On = HERE

    def __call__(self) -> int:
        from bayesgeom.diagnosis.run import diagnose

        check_target(self.out)
        model = self.source.load() if self.machines.on is None else self.source.name_alone()
        with self.machines.executor() as executor:
            diagnosis = diagnose(
                model,
                self._task(),
                probes=self.probes,
                n=self.n,
                seed=self.seed,
                n_untrained=self.n_untrained,
                ablations=self.ablations,
                executor=executor,
            )
        return conclude(diagnosis, self.out, diagnosis.summary(left_out_at(self.out)))

    @classmethod
    def choices(cls) -> Mapping[str, Mapping[str, str]]:
        from bayesgeom.diagnosis.offered import probe_titles, task_names

        return {
            "Probes (--probes); all together take about as long as the forward passes:": probe_titles(),
            f"Tasks (--task): {', '.join(task_names())}": {},
            TIMES: {},
        }

    def _task(self) -> str | None:
        """Combine `--task`, `--domain` and `--chat`."""
        task = self._task_of_domain()
        if not self.chat:
            return task
        if task is None:
            raise InvalidArgument("--chat needs a task in text: name one with --task, such as prompts or evidence.")
        name, _, given = task.partition(":")
        chosen = "style=chat" if name == "evidence" else "chat=True"
        return f"{name}:{given + ',' if given else ''}{chosen}"

    def _task_of_domain(self) -> str | None:
        if self.domain is None:
            return self.task
        name, _, given = (self.task or "prompts").partition(":")
        if name != "prompts":
            raise InvalidArgument(f"--domain chooses prompts; {self.task!r} has no domains. Use --task prompts.")
        return f"prompts:{given + ',' if given else ''}domain={self.domain}"
