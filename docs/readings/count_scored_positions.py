"""Count scored positions instead of tokens in the places of the drawn points of committed value manifolds.

Run once, from the root of the repository:

    python docs/readings/count_scored_positions.py

Until 25 November 2026 `shown_position` was the index of a token, of which only some are scored; all other figures count
scored positions. The task of a report says which tokens are scored: the same ones in every sequence, or a single one.
A report counts tokens if one of its places is no scored position. The script fails where a stored place is no scored
token, where other tokens are scored in each sequence, or where the points leave a scored position out.

For an hour of that day, reports stated in a field `counts_scored` that their places are converted. The field is
dropped. Running the script again does nothing.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_folders, replace_parts

from bayesgeom.probes.value_manifold import ValueManifoldReport
from bayesgeom.results.storage import read
from bayesgeom.tasks.base import task_from_config

DROPPED, PLACES = "counts_scored", "shown_position"


def counted(shown: np.ndarray, scored: np.ndarray) -> np.ndarray:
    """Return places among the scored positions, from 0; `scored` has the scored tokens of each sequence."""
    n_scored = scored.shape[1]
    places = shown
    if (shown >= n_scored).any():  # tokens
        if n_scored == 1:
            assert np.isin(shown, scored).all(), "a stored place is no scored token"
            places = np.zeros_like(shown)
        else:
            assert (scored == scored[0]).all(), "sequences differ in the tokens that are scored"
            places = np.searchsorted(scored[0], shown)
            assert np.isin(shown, scored[0]).all(), "a stored place is no scored token"
    assert set(places) == set(range(n_scored)), "the points leave a scored position out"
    return places.astype(shown.dtype)


def convert(folder: Path) -> bool:
    """Count scored positions in the value manifold of one folder; return whether anything changed."""
    parts, extra = read(folder)
    if (name := ValueManifoldReport.name) not in parts:
        return False
    scalars, arrays = parts[name]
    asked = extra["provenance"]["arguments"]
    drawn = task_from_config(extra["provenance"]["task"]).sample(asked["n"], seed=asked["seed"])
    places = counted(arrays[PLACES], drawn.scored_positions().numpy())
    if DROPPED not in scalars and np.array_equal(places, arrays[PLACES]):
        return False
    kept = {key: value for key, value in scalars.items() if key != DROPPED}
    replace_parts(folder, {**parts, name: (kept, {**arrays, PLACES: places})}, extra)
    return True


if __name__ == "__main__":
    convert_folders(convert)
