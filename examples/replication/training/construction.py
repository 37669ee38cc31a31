"""Recipes for the limits of construction: inference of a modular recurrence (claims C1 to C7).

All use the transformer of the comparison, with about 0.6 million parameters. Each is trained on 3.84 million sequences,
in two stages of 15,000 steps. The published networks are larger (6 layers of width 192, 2.77 million parameters) and
were trained for 150,000 steps of 64 sequences. So a failure here holds at this size and budget only.

- `recurrence`, `recurrence-opaque`: integer tokens, and symbols whose order a header states anew in each sequence.
- `recurrence-first5`: a loss at the first five positions only. `recurrence-first5-labels1`, `-labels5` and `-labels25`
  also have labels at 1, 5 and 25 % of the later positions.
- `recurrence-p31`: p = 31, without the prefixes of bucket 0.
"""

from dataclasses import replace

from bayesgeom.tasks.modular_recurrence import ModularRecurrence
from bayesgeom.training.recipes import RECIPES, Recipe, staged

HORIZON = 5  # positions with a loss
PERCENT = (1, 5, 25)  # of the later positions with a label

_EARLY = Recipe(
    name="recurrence-early",
    task=ModularRecurrence(),
    sizes=RECIPES["bijection-transformer"].sizes,
    lr=2e-3,
    matrix_lr=0.01,
    steps=15_000,
    batch_size=128,
    late_batch_size=128,
    float32_share=0.0,
    snapshots=0,
)
_LATE = replace(_EARLY, name="recurrence", lr=1e-3, matrix_lr=0.005, warmup=50, float32_share=0.1, snapshots=20, seed=1)
_STAGES = (_EARLY, _LATE)


def constructed() -> dict[str, Recipe]:
    """Return the recipes by name.

    Example:
        >>> list(constructed())[:3]
        ['recurrence', 'recurrence-opaque', 'recurrence-first5']
    """
    horizon = tuple(replace(stage, loss_positions=HORIZON) for stage in _STAGES)
    first = f"first{HORIZON}"
    forms = {
        "opaque": _of(ModularRecurrence(opaque=True)),
        first: horizon,
        **{f"{first}-labels{percent}": _labeled(horizon, percent) for percent in PERCENT},
        "p31": _of(ModularRecurrence(modulus=31, prefixes="trained")),
    }
    made = [replace(_LATE, after=_EARLY), *(staged(stages, form, _LATE.sizes) for form, stages in forms.items())]
    return {own.name: own for own in made}


def _of(task: ModularRecurrence) -> tuple[Recipe, ...]:
    return tuple(replace(stage, task=task) for stage in _STAGES)


def _labeled(stages: tuple[Recipe, ...], percent: int) -> tuple[Recipe, ...]:
    return tuple(replace(stage, label_share=percent / 100) for stage in stages)
