"""Rename fields of committed reports: conditions, models, laws, steps that are shown; no number changes.

Run once, from the root of the repository:

    python docs/readings/rename_conditions.py

Reports of `length` name their models in `models`, which was `arms`, and store `discontinuity_bits`, which was
`jump_bits`. Reports of `em_experiment` name their conditions in `conditions`, which was `arms`. Recipes that differ in
positions alone are named `hmm-variant-rotary`, which was `hmm-arm-rotary`. Reports of `gradients` name their laws in
`laws`, which was `identitys`, and `attention_maps` their steps in `shown_steps`, which was `chosens`: both are the
axis with an s. Reports of `gradient_movement` name steps from which on a distance is stable, which was "settled": in
`dynamics` that is another rule. Verdicts of `settling` say that a curve "is first". Arrays are written as they were
read. A report without these names is left as it is, so running the script again does nothing.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_folders, replace_parts

from bayesgeom.results import storage

FIELDS = {
    "length": {"arms": "models", "jump_bits": "discontinuity_bits"},
    "em_experiment": {"arms": "conditions"},
    "gradients": {"identitys": "laws"},
    "attention_maps": {"chosens": "shown_steps"},
    "gradient_movement": {
        "routing_settled_step": "routing_stable_step",
        "values_settled_step": "values_stable_step",
        "settled_ratio": "stable_ratio",
    },
}
TEXTS = {
    "gradient_movement": {"both settle together": "both stable at the same step"},
    "settling": {"both settle together": "both at the same step", "settles first": "is first"},
}
IN_PROVENANCE = {"arms": "conditions"}
RECIPE, NEW_RECIPE = "-arm-", "-variant-"


def renamed(value: Any, keys: dict[str, str], texts: dict[str, str]) -> Any:
    """Return nested values with renamed keys, with other words in texts, and renamed recipes in all texts and keys."""
    if isinstance(value, dict):
        own = {key: renamed(item, keys, texts) for key, item in value.items()}
        return {keys.get(key, key).replace(RECIPE, NEW_RECIPE): item for key, item in own.items()}
    if isinstance(value, tuple):
        return tuple(renamed(item, keys, texts) for item in value)
    if not isinstance(value, str):
        return value
    for old, new in texts.items():
        value = value.replace(old, new)
    return value.replace(RECIPE, NEW_RECIPE)


def renamed_arrays(arrays: dict[str, np.ndarray], keys: dict[str, str]) -> dict[str, np.ndarray]:
    """Return arrays by their renamed fields; an estimate has several arrays, named `field.value`, `field.0.value`, …"""
    parts = {name: name.split(".", maxsplit=1) for name in arrays}
    return {".".join([keys.get(own[0], own[0]), *own[1:]]): arrays[name] for name, own in parts.items()}


def convert(folder: Path) -> bool:
    """Convert the reports of one folder; returns whether anything changed."""
    parts, extra = storage.read(folder)
    new = {
        kind: (
            renamed(scalars, FIELDS.get(kind, {}), TEXTS.get(kind, {})),
            renamed_arrays(arrays, FIELDS.get(kind, {})),
        )
        for kind, (scalars, arrays) in parts.items()
    }
    new_extra = renamed(extra, IN_PROVENANCE, {})
    if new_extra == extra and all(new[kind][0] == parts[kind][0] for kind in parts):
        return False
    replace_parts(folder, new, new_extra)
    return True


if __name__ == "__main__":
    convert_folders(convert)
