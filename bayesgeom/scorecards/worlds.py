"""The worlds of a scorecard: tasks with what a network needs for them, as data.

A world with stages is a curriculum: the next stage begins once held-out answers are named. Sizes are such that a cell
of the core worlds takes about two minutes of one core.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

from bayesgeom.core import InvalidArgument, unknown_name
from bayesgeom.tasks import AssociativeRecall, Bijection, ChangePoint, Dice, DirichletMarkov, Process
from bayesgeom.tasks.base import WindTunnel, task_from_config
from bayesgeom.tasks.hmm import SLOW

Primitive = Literal["accumulate", "transport", "bind", "revise", "eliminate", "memorize or infer"]
MEMORIZE: Primitive = "memorize or infer"  # of worlds whose second observer does not know the pool
NAMED = 0.97  # share of held-out answers that ends a stage, and that counts as named
TRANSPORT_AGE = 10  # evidence older than this many symbols has to be followed


@final
@dataclass(frozen=True, kw_only=True)
class World:
    """A task with what a network needs for it.

    Args:
        name: Its name.
        primitive: What it needs.
        stages: The task, after easier ones with the same ids, which come first.
        harder: Tasks with the same ids and no more tokens on which the trained network is measured, too.
        budget: How many times the steps of a scorecard its cells are trained.

    Example:
        >>> from bayesgeom import tasks
        >>> World(name="coins", primitive="accumulate", stages=(tasks.Dice(length=8),)).task.n_pos
        8
    """

    name: str
    primitive: Primitive
    stages: tuple[WindTunnel, ...]
    harder: tuple[WindTunnel, ...] = ()
    budget: float = 1.0

    def __post_init__(self) -> None:
        tasks = (*self.stages, *self.harder)
        if not self.stages or len({task.d_vocab for task in tasks}) > 1:
            raise InvalidArgument(f"the world {self.name!r} needs stages, all with the same ids.")
        if not 0 < self.budget < math.inf:
            raise InvalidArgument(f"the budget of the world {self.name!r} must be above 0, got {self.budget}.")

    @property
    def task(self) -> WindTunnel:
        """The task of the last stage, on which cells are scored."""
        return self.stages[-1]

    @property
    def n_ctx(self) -> int:
        """Tokens of its longest sequences."""
        return max(task.n_pos for task in (*self.stages, *self.harder))

    def config(self) -> dict[str, Any]:
        """Return the world as JSON types; `world_from_config` is the inverse."""
        stages, harder = ([task.config() for task in tasks] for tasks in (self.stages, self.harder))
        budget = {} if self.budget == 1 else {"budget": self.budget}
        return {"name": self.name, "primitive": self.primitive, "stages": stages, "harder": harder, **budget}


def world_from_config(values: Mapping[str, Any]) -> World:
    """Return the world that `World.config` wrote."""
    stages, harder = (tuple(map(task_from_config, values[name])) for name in ("stages", "harder"))
    return World(**{**values, "stages": stages, "harder": harder})


def _recall(n_keys: int, most: int, n_queries: int, *, budget: float = 1.0) -> World:
    """Return recall of 2, 4, … pairs; a quarter of the queries ask for a key that was not stored.

    Few keys are each seen often. With 10 keys and 16 queries a transformer begins to bind after 1,000 steps at a rate
    of 0.001; with 32 keys and 8 queries it names half of two pairs after 1,800.
    """
    stored = partial(AssociativeRecall, n_keys=n_keys, n_values=n_keys, n_queries=n_queries, n_filler=0)
    stages = tuple(stored(n_pairs=2**power) for power in range(1, most.bit_length()))
    return World(name=f"recall-{most}", primitive="bind", stages=stages, budget=budget)


def _chains(pool: int) -> World:
    seen, fresh = DirichletMarkov(pool=pool), DirichletMarkov(pool=pool, fresh=True)
    return World(name=f"chains-{pool}", primitive=MEMORIZE, stages=(seen,), harder=(fresh,))


_CORE = (
    World(name="dice", primitive="accumulate", stages=(Dice(length=32),)),
    World(name="rrxor", primitive="transport", stages=(Process("rrxor", length=48),)),
    _recall(10, 8, 16),
    World(name="change-point", primitive="revise", stages=(ChangePoint(),)),
    World(name="bijection", primitive="eliminate", stages=(Bijection(n_values=8, n_pairs=16, repeats=True),)),
)
_MORE = (
    World(name="dirichlet-markov", primitive="accumulate", stages=(DirichletMarkov(),)),
    World(name="slow-hmm", primitive="transport", stages=(SLOW,)),
)
SETS: Mapping[str, tuple[World, ...]] = {
    "core": _CORE,
    "recall": (_recall(96, 64, 32, budget=4.0),),
    "chains": tuple(map(_chains, (4, 16, 24, 32, 48, 64, 256, 1024))),
    "all": (*_CORE, *_MORE),
}


def worlds_of(given: object) -> tuple[World, ...]:
    """Return the worlds of a name of a set or of one world, of a task, a world, or a list of these.

    Raises:
        UnknownName: There is no such world.
        InvalidArgument: It is something else, or two worlds have one name.

    Example:
        >>> [world.name for world in worlds_of("core")]
        ['dice', 'rrxor', 'recall-8', 'change-point', 'bijection']
    """
    known = {world.name: world for worlds in SETS.values() for world in worlds}
    match given:
        case str() if given in SETS:
            return SETS[given]
        case str() if given in known:
            return (known[given],)
        case str():
            raise unknown_name("world", given, [*SETS, *known])
        case World():
            return (given,)
        case WindTunnel():
            return (World(name=given.name, primitive="accumulate", stages=(given,)),)
        case Iterable():
            found = tuple(world for item in given for world in worlds_of(item))
            if found and len({world.name for world in found}) == len(found):
                return found
    raise InvalidArgument(
        f"worlds must be one of {', '.join(SETS)}, or a list of worlds and tasks with different names; got {given!r}."
    )
