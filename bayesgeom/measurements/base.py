"""The type of everything that measures: a name, what it needs of a run, what it asks of a model, and a report.

A measurement states its needs, and the further sequences that it wants run. `diagnose` runs them in one place and
passes a `Subject`: the finished runs, the task, the seed, and the model to a measurement that edits it. A `Probe` asks
for nothing: it is a pure function of a run. Planted runs, with known answers, are the controls of all.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from bayesgeom.core import (
    NO_LABEL,
    PATTERN,
    Ask,
    InvalidArgument,
    ModelSpec,
    Run,
    Site,
    TaskMismatch,
    Trials,
    unknown_name,
)
from bayesgeom.core.observers import Beliefs, Filter, WindowObservers
from bayesgeom.models.base import Model, Stream
from bayesgeom.report.estimate import Baseline, of_untrained
from bayesgeom.report.report import Report
from bayesgeom.stats.behavior import predicted_behavior
from bayesgeom.stats.reduction import Reduction
from bayesgeom.stats.windows import window_scores
from bayesgeom.tasks.base import WindTunnel

R = TypeVar("R", bound=Report)


@final
@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a measurement: `sites` that it requires, and `optional` ones that it uses if the model has them.

    `partial`: optional sites that it also uses if only some layers have them; the other layers become NaN.
    `posterior`: the exact posterior must be known. `groups`: sequences must be of several kinds. `factors`: the belief
    must be over pairs of independent factors. `statistics`: the task must declare statistics of the belief. `streamed`:
    statistics that replace the activations if these do not fit into memory; a measurement without any needs stored
    activations.
    """

    sites: tuple[Site, ...] = ()
    optional: tuple[Site, ...] = ()
    partial: tuple[Site, ...] = ()
    posterior: bool = False
    groups: bool = False
    factors: bool = False
    statistics: bool = False
    streamed: tuple[Reduction, ...] = ()

    def check_task(self, task: WindTunnel, trials: Trials, by: str) -> None:
        """Check that the task has what is needed: posterior, groups, factors, statistics.

        Raises:
            TaskMismatch: It has not.
        """
        lacks = {
            "an exact posterior": self.posterior and not task.has_posterior,
            "sequences of several kinds": self.groups and len(trials.group_names) < 2,
            "a belief over independent factors": self.factors and not trials.factor_sizes,
            "declared statistics of the belief": self.statistics and not trials.statistics,
        }
        if what := next((what for what, is_lacking in lacks.items() if is_lacking), ""):
            raise TaskMismatch(f"{by} requires {what}, which task {task.name!r} does not have.")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Further:
    """Sequences that a measurement wants run, besides those of the first run.

    Args:
        trials: The sequences.
        record: Sites and statistics to record of them, for a measurement that asks for `Ask.RERUN`.
        is_last_only: Whether only the answers at the last scored position are needed. Such sequences of one label run
            together, each different one once, and not at all where the first run has its answers.
        label: What they are, for the progress bar.
    """

    trials: Trials
    record: tuple[Site | Stream, ...] = ()
    is_last_only: bool = False
    label: str = ""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What a measurement measures.

    Args:
        run: The first run.
        task: Its task; None of a planted run that needs none.
        seed: Seed of the diagnosis: sequences, intervals and draws derive from it.
        further: The run of each `Further`, in their order.
        n_untrained: Number of untrained networks that were requested to compare with.
        reference: The run of the last snapshot of a series; None outside of one.
        model: The model, of a measurement that asks for more than predictions; None of a planted subject.
    """

    run: Run
    task: WindTunnel | None = None
    seed: int = 0
    further: tuple[Run, ...] = ()
    n_untrained: int = 0
    reference: Run | None = None
    model: Model | None = None

    def known_task(self) -> WindTunnel:
        """Return the task, of which a subject that runs further sequences has one."""
        assert self.task is not None, "a subject has a task, and so has a control of a measurement that needs it"
        return self.task

    def edited(self) -> Model:
        """Return the model, for a measurement that asks for `Ask.EDIT` or `Ask.RERUN`.

        Raises:
            InvalidArgument: The subject is planted.
        """
        if self.model is None:
            raise InvalidArgument("a planted subject has runs only, and no model to edit or to run again.")
        return self.model


@final
@dataclass(frozen=True, kw_only=True)
class Control(Generic[R]):
    """A planted run with a known answer.

    Args:
        label: What is planted.
        run: The run, with only the declared sites.
        holds: Whether a report is right.
        untrained: Planted runs that stand for the untrained architecture.
        further: For a measurement that runs further sequences: the planted runs of these.
        task: For such a measurement: the task of the runs.
        measurement: The measurement in the size of these runs. None: the one whose control this is.
    """

    label: str
    run: Run
    holds: Callable[[R], bool]
    untrained: tuple[Run, ...] = ()
    further: tuple[Run, ...] = ()
    task: WindTunnel | None = None
    measurement: "Measurement[R] | None" = None

    def report(self, measurement: "Measurement[R]") -> R:
        """Return the report of the measurement whose control this is."""
        chosen = self.measurement or measurement
        untrained = [chosen.of(Subject(run=run, task=self.task)) for run in self.untrained]
        return chosen.of(Subject(run=self.run, task=self.task, further=self.further), untrained)


class Measurement(ABC, Generic[R]):
    """What has a name, needs something of a model on a task, and yields a report."""

    name: ClassVar[str]
    needs: ClassVar[Needs] = Needs()
    asks: ClassVar[frozenset[Ask]] = frozenset()  # beyond the first run
    is_default: ClassVar[bool] = True  # False: it runs only if it is named
    is_written_by_user: ClassVar[bool] = False  # True: an error costs only its own report, and names it itself
    follows: ClassVar[str] = ""  # the measurement whose report is shown before its own
    option: ClassVar[str] = ""  # the field that the text after "NAME:" sets; "": it names a field to switch on
    relative_time: ClassVar[int] = 1  # about, and relative to others: `diagnose` begins with the longest

    def prepared(self, model: Model, task: WindTunnel, *, n: int, seed: int) -> Self:
        """Return this measurement in the size that it has on this model and task.

        Args:
            model: The model.
            task: The task.
            n: Number of sequences that was requested.
            seed: Seed of the sequences.

        Raises:
            InvalidArgument: It cannot be measured: the model cannot do what it asks for, or n is too small.
            TaskMismatch: It does not apply to the task.
            MissingSite: The model lacks a site that it needs.
        """
        return self

    def further(self, task: WindTunnel, run: Run, seed: int) -> Iterable[Further]:
        """Yield the further sequences that it wants run, after the first run."""
        return ()

    @abstractmethod
    def of(self, subject: Subject, untrained: Sequence[R] = ()) -> R:
        """Return the report; `untrained` holds a probe's reports on untrained networks, as a baseline.

        What runs the model again is not repeated on untrained networks.
        """

    @abstractmethod
    def controls(self) -> Iterator[Control[R]]:
        """Yield planted runs with known answers, each with a check of its report."""

    @final
    def settings(self) -> dict[str, Any]:
        """Return what a user can set, for the provenance: `prepared` sets the fields that have `repr=False`."""
        given = {each.name: vars(self)[each.name] for each in fields(self) if each.repr}  # type: ignore[arg-type]
        return {name: list(value) if isinstance(value, Mapping | tuple) else value for name, value in given.items()}

    @final
    def with_option(self, text: str) -> Self:
        """Return this measurement as "NAME:option" requests it.

        Raises:
            UnknownName: It has no such option.
        """
        if not text:
            return self
        if self.option:
            return replace(self, **{self.option: text})  # type: ignore[type-var]
        switches = [each.name for each in fields(self) if each.type is bool]  # type: ignore[arg-type]
        if text not in switches:
            raise unknown_name(f"option of probe {self.name!r}", text, switches)
        return replace(self, **{text: True})  # type: ignore[type-var]


class Probe(Measurement[R]):
    """A measurement of one run. It never accesses a model: its inputs are declared in `needs` and are in the run."""

    @abstractmethod
    def measure(self, run: Run, untrained: Sequence[R] = ()) -> R:
        """Return the report on this run.

        `untrained` holds this probe's reports on untrained networks of the same architecture, as a baseline. Only one
        run is in memory at a time.
        """

    @final
    def of(self, subject: Subject, untrained: Sequence[R] = ()) -> R:
        return self.measure(subject.run, untrained)


def planted_run(
    trials: Trials,
    recorded: Mapping[Site, Shaped[Tensor, "layer *axes"]],
    *,
    model: Float64[Tensor, "batch query_pos answer"] | None = None,
    masks: Sequence[Bool[Tensor, "from_pos key_pos"]] = (),
    seed: int = 0,
) -> Run:
    """Return a run with these activations, as if a model had produced them.

    Args:
        trials: The sequences.
        recorded: Activations of every layer, by site.
        model: Answer probabilities of the model. None: the exact predictive.
        masks: What the attention of each layer can see. Empty: causal.
        seed: Seed of the run.
    """
    exact = trials.at_scored(trials.predictive)
    predicted = exact if model is None else model
    widths = dict(pair for site, values in recorded.items() for pair in zip(site.axes, values.shape[1:], strict=True))
    spec = ModelSpec(
        name="planted",
        architecture="planted",
        n_layers=next((len(values) for values in recorded.values()), 1),
        n_heads=widths.get("head", 1),
        n_kv_heads=widths.get("kv_head", 1),
        d_model=widths.get("d_model", 1),
        d_head=widths.get("d_head", 1),
        d_mlp=1,
        d_vocab=int(trials.tokens.max()) + 1,
        n_ctx=None,
        n_parameters=0,
        dtype="float32",
        device="cpu",
        weights_hash="planted",
    )
    return Run(
        spec=spec,
        behavior=predicted_behavior(trials, predicted),
        exact_behavior=predicted_behavior(trials, exact),
        baseline_behaviors={},
        trials=trials,
        log_answers=predicted.log(),
        recorded=recorded,
        seed=seed,
        windows=window_scores(trials),
        masks=tuple(masks),
    )


def planted_trials(
    exact: Float[np.ndarray, "batch query_pos answer"],
    tokens: Shaped[np.ndarray, "batch pos"],
    *,
    relations: Mapping[str, Shaped[np.ndarray, "batch query_pos key_pos"]] | None = None,
    token_sets: Mapping[str, Sequence[int]] | None = None,
) -> Trials:
    """Return sequences with this exact posterior at their last positions. Answer ids follow the largest token id."""
    ids = torch.as_tensor(tokens, dtype=torch.int64)
    posterior = torch.as_tensor(exact, dtype=torch.float64)
    n_scored, first_answer = posterior.shape[1], int(ids.max()) + 1
    scored = torch.zeros_like(ids, dtype=torch.bool)
    scored[:, -n_scored:] = True
    predictive = torch.full((*ids.shape, posterior.shape[2]), torch.nan, dtype=torch.float64)
    predictive[:, -n_scored:] = posterior
    labels = torch.full_like(ids, NO_LABEL)
    labels[:, -n_scored:] = posterior.argmax(-1) + first_answer
    return Trials(
        tokens=ids,
        scored=scored,
        answers=torch.arange(posterior.shape[2]) + first_answer,
        predictive=predictive,
        belief=predictive,
        labels=labels,
        token_sets={name: torch.as_tensor(members, dtype=torch.int64) for name, members in (token_sets or {}).items()},
        relations={name: torch.as_tensor(related, dtype=torch.bool) for name, related in (relations or {}).items()},
    )


def planted_chain(*, stay: float, seed: int, n: int = 83, length: int = 43) -> Trials:
    """Return sequences of a two-state hidden Markov chain; the answer is the hidden state.

    The chain stays in the first state with probability `stay` and leaves the second state twice as often. It starts
    from its stationary distribution, (2/3, 1/3).
    """
    rng = np.random.default_rng(seed)
    moves = torch.tensor([[stay, 1 - stay], [2 - 2 * stay, 2 * stay - 1]], dtype=torch.float64)
    shows = torch.tensor([[0.6, 0.4], [0.4, 0.6]], dtype=torch.float64)
    settled = torch.tensor([[2 / 3, 1 / 3]], dtype=torch.float64)
    state, tokens = (rng.random(n) < 1 / 3).astype(int), np.empty((n, length), dtype=np.int64)
    for place in range(length):
        state = np.where(rng.random(n) < moves.numpy()[state, 1], 1, 0) if place else state
        tokens[:, place] = rng.random(n) < shows.numpy()[state, 1]
    likelihood = shows.T[torch.from_numpy(tokens)]
    belief, exact = settled.expand(n, -1), []
    for place in range(length):
        belief = (belief @ moves if place else belief) * likelihood[:, place]
        belief = belief / belief.sum(dim=1, keepdim=True)
        exact.append(belief)

    def filter_of(seen: Int64[Tensor, "batch pos"]) -> Filter:
        def weighed(beliefs: Beliefs, first: int) -> Beliefs:
            return beliefs * shows.T[seen[:, first : first + beliefs.shape[1]]]

        return Filter(
            priors={"uniform": torch.full_like(settled, 1 / 2), "stationary": settled},
            weighed=weighed,
            moved=lambda beliefs, first: weighed(beliefs @ moves, first),
            answers=lambda beliefs: beliefs,
        )

    trials = planted_trials(torch.stack(exact, dim=1).numpy(), tokens)
    return replace(trials, observers=WindowObservers(draw=filter_of, of=trials.tokens))


@final
@dataclass(frozen=True, kw_only=True)
class PlantedMask:
    """Uniform attention over what a mask shows, with its known entropy in bits and weight of a sink."""

    label: str
    run: Run
    entropy_bits: float
    sink_mass: float


def planted_masks() -> Iterator[PlantedMask]:
    """Yield uniform attention where a causal mask or rows that sum to 1 cannot be assumed.

    A query at position p (from 1) sees min(p, w) positions in a window of w. A sink of score 0 takes 1/(p + 1).
    """
    for label, length, window, has_sink, dtype in (
        ("causal, 32 positions", 32, 32, False, torch.float32),
        ("window of 4, 32 positions", 32, 4, False, torch.float32),
        ("sink of score 0, 16 positions", 16, 16, True, torch.float32),
        ("bfloat16, 32 positions", 32, 32, False, torch.bfloat16),
    ):
        position = torch.arange(length)
        mask = (position <= position[:, None]) & (position > position[:, None] - window)
        counts = mask.sum(dim=-1, keepdim=True)
        rows = (mask / (counts + has_sink)).to(dtype).float()
        trials = planted_trials(np.full((9, length, 2), 0.5), np.zeros((9, length), dtype=np.int64))
        yield PlantedMask(
            label=label,
            run=planted_run(trials, {PATTERN: rows.expand(1, 9, 1, -1, -1)}, masks=[mask]),
            entropy_bits=sum(math.log2(min(p, window)) for p in range(1, length + 1)) / length,
            sink_mass=sum(1 / (p + 1) for p in range(1, length + 1)) / length if has_sink else 0.0,
        )


def known(*levels: Baseline) -> tuple[Baseline, ...]:
    """Return the baselines with at least one known level."""
    return tuple(level for level in levels if np.isfinite(level.value).any())


def with_untrained(report: R, untrained: Sequence[R], *fields: str) -> R:
    """Return the report with untrained networks as the last baseline of these fields: see `of_untrained`.

    Args:
        report: The report.
        untrained: This probe's reports on untrained networks.
        fields: Names of estimates. One that no untrained network has gets no baseline.
    """
    changed = dict[str, Any]()
    for name in fields:
        estimate = report.estimate(name)
        levels = known(*of_untrained([copy.estimate(name).value for copy in untrained]))
        further = (level.broadcast(estimate.value.shape) for level in levels)
        changed[name] = replace(estimate, baselines=(*estimate.baselines, *further))
    return replace(report, **changed)
