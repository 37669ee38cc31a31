"""Recipes for the limits of construction: inference of a modular recurrence (claims C1 to C7).

They are small: rules modulo 7, a transformer of 3 layers, width 96 and 0.34 million parameters, 2,500 steps of 64
sequences, which take minutes on one core. Positions are learned: with rotary ones alone the first number looks like a
constant sequence, and the KL there stayed above 0.6 bits. The published networks infer rules modulo 17 and 31; they
have 6 layers of width 192 and 2.77 million parameters, and were trained for 150,000 steps. Modulo 17 such a small
transformer, with rotary positions, still had a KL of 1.3 bits after 1,400 steps, and 150,000 steps of it take two hours
on one core. So a failure here holds at this size and budget only.

- `recurrence`, `recurrence-opaque`: integer tokens, and symbols whose order a header states anew in each sequence.
- `recurrence-first5`: a loss at the first five positions only. `recurrence-first5-labels1`, `-labels5` and `-labels25`
  also have labels at 1, 5 and 25 % of the later positions.
- `recurrence-held-out`: without the prefixes of bucket 0.
"""

from dataclasses import replace

from bayesgeom.tasks.modular_recurrence import ModularRecurrence
from bayesgeom.training.recipes import Recipe

HORIZON = 5  # positions with a loss
PERCENT = (1, 5, 25)  # of the later positions with a label

_TASK = ModularRecurrence(modulus=7)
_PLAIN = Recipe(
    name="recurrence",
    task=_TASK,
    sizes={
        "architecture": "transformer",
        "n_layers": 3,
        "n_heads": 4,
        "d_model": 96,
        "d_mlp": 384,
        "tied": False,
    },
    lr=3e-3,
    steps=2_500,
    float32_share=0.1,
    snapshots=0,
)


def constructed() -> dict[str, Recipe]:
    """Return the recipes by name.

    Example:
        >>> list(constructed())[:3]
        ['recurrence', 'recurrence-opaque', 'recurrence-first5']
    """
    first = replace(_PLAIN, name=f"recurrence-first{HORIZON}", loss_positions=HORIZON)
    made = [
        _PLAIN,
        replace(_PLAIN, name="recurrence-opaque", task=replace(_TASK, opaque=True)),
        first,
        *(replace(first, name=f"{first.name}-labels{own}", label_share=own / 100) for own in PERCENT),
        replace(_PLAIN, name="recurrence-held-out", task=replace(_TASK, prefixes="trained")),
    ]
    return {own.name: own for own in made}
