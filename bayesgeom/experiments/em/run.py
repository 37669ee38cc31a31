"""`em_experiment`: train every condition of the sticky-chain comparison on every seed, and report the speed-ups."""

from collections.abc import Sequence

from bayesgeom.core.arguments import checked
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.progress import bar
from bayesgeom.experiments.em.chain import StickyChain
from bayesgeom.experiments.em.conditions import describe_conditions, learned, recorded_steps
from bayesgeom.experiments.em.report import EMReport, em_report
from bayesgeom.models.provenance import provenance
from bayesgeom.results.report import with_provenance

SEEDS = (42, 2024, 1337, 7777, 9999)
CHAINS = (StickyChain(diagonal="counted twice"), StickyChain(diagonal="as stated"))


@checked()
def em_experiment(
    *, seeds: int | Sequence[int] = 5, steps: int = 1_000, length: int = 2_000, every: int = 10
) -> EMReport:
    """Repeat Paper II's comparison of an EM-like schedule with small steps, and add the missing controls.

    The chain's self-probability is tested in both readings of the paper.

    Args:
        seeds: Number of the paper's five seeds to use, or a list of seeds.
        steps: Number of training steps.
        length: Number of symbols in a sequence.
        every: Steps between records of the held-out loss.

    Returns:
        Learning curves of every schedule, and the speed-ups.

    Raises:
        InvalidArgument: There are fewer than two seeds or more than five, a seed is given twice, steps or `every` is
            below 1, or a sequence has fewer than three symbols.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.em_experiment(seeds=1)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        bayesgeom.core.errors.InvalidArgument: seeds is how many of the paper's five to train, 2 … 5; got 1.
    """
    chosen = _checked(seeds, steps=steps, length=length, every=every)
    with bar(total=len(CHAINS) * len(chosen) * steps, desc="sticky chain", unit="step", leave=False) as progress:
        curves = [
            [
                learned(chain, seed=seed, steps=steps, length=length, every=every, tick=progress.update)
                for seed in chosen
            ]
            for chain in CHAINS
        ]
    report = em_report(CHAINS, chosen, curves, recorded_steps(steps, every))
    named = {"name": "one attention head", "architecture": "single-head"}
    arguments = {"seeds": chosen, "steps": steps, "length": length, "every": every}
    chains = {"task": {"chains": [vars(chain) for chain in CHAINS]}, "conditions": describe_conditions()}
    return with_provenance(report, provenance(named, "sticky chain", arguments) | chains)


def _checked(seeds: int | Sequence[int], *, steps: int, length: int, every: int) -> tuple[int, ...]:
    """Return the seeds to train; raise as `em_experiment`."""
    if isinstance(seeds, int) and not 2 <= seeds <= len(SEEDS):
        raise InvalidArgument(
            f"seeds is how many of the paper's five to train, 2 … 5, or a list of your own; got {seeds}."
        )
    chosen = SEEDS[:seeds] if isinstance(seeds, int) else tuple(seeds)
    if len(set(chosen)) < max(2, len(chosen)):
        raise InvalidArgument(f"an interval needs at least two different seeds, each given once; got {chosen}.")
    if min(steps, every) < 1 or length < 3:
        raise InvalidArgument(
            f"steps and every must be at least 1 and length at least 3; got steps={steps}, every={every} and "
            f"length={length}."
        )
    return chosen
