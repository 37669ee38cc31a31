"""Count scored positions instead of tokens in the places of the drawn points of committed value manifolds.

Run once, from the root of the repository:

    python docs/readings/count_scored_positions.py

Until 25 November 2026 `shown_position` was the index of a token, of which only some are scored; all other figures count
scored positions. The task of a report says which tokens are scored: the same ones in every sequence, or a single one.
The script fails where neither is so, or where a stored place is none of them. Running it again does nothing.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import convert_folders, replace_parts

from bayesgeom.probes.value_manifold import ValueManifoldReport
from bayesgeom.results.diagnosis import load_report
from bayesgeom.results.storage import parts_of, read
from bayesgeom.tasks.base import task_from_config


def counted(shown: np.ndarray, scored: np.ndarray) -> np.ndarray:
    """Return places among the scored positions, from 0, of tokens; `scored` has the scored tokens of each sequence."""
    if scored.shape[1] == 1:
        assert np.isin(shown, scored).all(), "a stored place is no scored token"
        return np.zeros_like(shown)
    assert (scored == scored[0]).all(), "sequences differ in the tokens that are scored"
    places = np.searchsorted(scored[0], shown)
    np.testing.assert_array_equal(scored[0][places], shown, "a stored place is no scored token")
    return places.astype(shown.dtype)


def convert(folder: Path) -> bool:
    """Replace the value manifold of one folder if it counts tokens; return whether it did."""
    parts, extra = read(folder)
    if (name := ValueManifoldReport.name) not in parts:
        return False
    old = load_report(folder).reports[name]
    assert isinstance(old, ValueManifoldReport)
    if old.counts_scored:
        return False
    asked = extra["provenance"]["arguments"]
    drawn = task_from_config(extra["provenance"]["task"]).sample(asked["n"], seed=asked["seed"])
    places = counted(old.shown_position, drawn.scored_positions().numpy())
    replace_parts(folder, {**parts, name: parts_of(replace(old, shown_position=places, counts_scored=True))}, extra)
    return True


if __name__ == "__main__":
    convert_folders(convert)
