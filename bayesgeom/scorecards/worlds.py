"""The worlds of a scorecard: tasks with what a network needs for them, as data.

A world with stages is a curriculum: the next stage begins once held-out answers are named. Sizes are such that a cell
of the core worlds takes about two minutes of one core.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

from bayesgeom.core import InvalidArgument, unknown_name
from bayesgeom.tasks import AssociativeRecall, Bijection, ChangePoint, Dice, DirichletMarkov, Process
from bayesgeom.tasks.base import WindTunnel, task_from_config
from bayesgeom.tasks.hmm import SLOW

Primitive = Literal["accumulate", "transport", "bind", "revise", "eliminate", "memorize or infer"]
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

    Example:
        >>> from bayesgeom import tasks
        >>> World(name="coins", primitive="accumulate", stages=(tasks.Dice(length=8),)).task.n_pos
        8
    """

    name: str
    primitive: Primitive
    stages: tuple[WindTunnel, ...]
    harder: tuple[WindTunnel, ...] = ()

    def __post_init__(self) -> None:
        tasks = (*self.stages, *self.harder)
        if not self.stages or len({task.d_vocab for task in tasks}) > 1:
            raise InvalidArgument(f"the world {self.name!r} needs stages, all with the same ids.")

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
        return {"name": self.name, "primitive": self.primitive, "stages": stages, "harder": harder}


def world_from_config(values: Mapping[str, Any]) -> World:
    """Return the world that `World.config` wrote."""
    stages, harder = (tuple(map(task_from_config, values[name])) for name in ("stages", "harder"))
    return World(name=values["name"], primitive=values["primitive"], stages=stages, harder=harder)


def _recall(n_keys: int, most: int, beyond: Sequence[int] = ()) -> World:
    """Return recall of 2, 4, … pairs."""
    stored = partial(AssociativeRecall, n_keys=n_keys, n_values=n_keys, n_queries=8)
    pairs = [2**power for power in range(1, most.bit_length())]
    stages, harder = (tuple(stored(n_pairs=size) for size in sizes) for sizes in (pairs, beyond))
    return World(name=f"recall-{most}", primitive="bind", stages=stages, harder=harder)


def _chains(pool: int) -> World:
    return World(name=f"chains-{pool}", primitive="memorize or infer", stages=(DirichletMarkov(pool=pool),))


_CORE = (
    World(name="dice", primitive="accumulate", stages=(Dice(length=32),)),
    World(name="rrxor", primitive="transport", stages=(Process("rrxor", length=48),)),
    _recall(32, 16, beyond=(24, 28)),
    World(name="change-point", primitive="revise", stages=(ChangePoint(),)),
    World(name="bijection", primitive="eliminate", stages=(Bijection(n_values=8, n_pairs=16, repeats=True),)),
)
_MORE = (
    World(name="dirichlet-markov", primitive="accumulate", stages=(DirichletMarkov(),)),
    World(name="slow-hmm", primitive="transport", stages=(SLOW,)),
)
SETS: Mapping[str, tuple[World, ...]] = {
    "core": _CORE,
    "recall": (_recall(96, 64),),
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
        ['dice', 'rrxor', 'recall-16', 'change-point', 'bijection']
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
