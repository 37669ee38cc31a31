"""Withhold intervals of key overlaps that the jackknife gave where many cosines may be 0 within their noise.

Run once, from the root of the repository:

    python docs/readings/withhold_kinks.py

|cos| has a kink at 0, and noise in cosines near 0 raises it. Until 23 November 2026 the interval of a key overlap did
not allow for that (`bayesgeom.stats.overlap` does now). The reports in `REPORTS` cannot be measured again here:
the snapshots of those trainings and the weights of SmolLM2 are not in the repository. Their intervals stay where the
kink is negligible, judged from what the reports hold, and are withheld elsewhere:

    s² = H P SE²            variance of a cosine, if the cosines of P pairs in H heads were independent
    b = s² f(0)             bias of the kink, f the density of a normal distribution of the cosines
    kept if b ≤ MOST · 1.96 SE

SE is the width of the interval over 3.92. Mean and spread of the cosines follow from `signed_mean` and
`orthogonality`, or from a mean of 0 and the overlap, where these are not stored. Where b was less than 0.15 of half the
width, the jackknife covered 95 to 98 % of planted data sets. In these reports every
raw overlap of activations had an interval before `withhold_biased.py`, so that bias is the only reason for one that is
missing now. Values stay as they are. Running the script again does nothing.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from conversions.rewriting import replace_parts

from bayesgeom.probes.key_report import WHY_NOT
from bayesgeom.results.storage import read
from bayesgeom.stats.intervals import WHY_BIASED
from bayesgeom.tasks.base import task_from_config

DYNAMICS = ("dynamics-bijection", "dynamics-recall", "dynamics-repeats", "dynamics-sticky", "formation")
KEYS = ("smollm2-evidence", "smollm2-prompts")
REPORTS = (*DYNAMICS, *KEYS)
MOST = 0.15  # of half the width
HALF = 1.959964
MEAN_OF_SIZE = (2 / np.pi) ** 0.5  # of a standard normal variable
Parts = tuple[dict[str, Any], dict[str, np.ndarray]]


def kink_ratio(
    width: np.ndarray, pairs: np.ndarray | float, heads: int, mean: np.ndarray | float, spread: np.ndarray
) -> np.ndarray:
    """Return the bias of the kink over half the width of the interval."""
    error = width / (2 * HALF)
    with np.errstate(divide="ignore", invalid="ignore"):
        density = np.where(spread > 0, norm.pdf(mean / spread) / spread, 0.0)
    return np.asarray(heads * pairs * error * density / HALF)


def without_ends(own: Parts, name: str, is_withheld: np.ndarray, why: str) -> int:
    """Replace the ends of these entries by NaN; return their number."""
    scalars, arrays = own
    for part in ("low", "high"):
        arrays[f"{name}.{part}"] = np.where(is_withheld, np.nan, arrays[f"{name}.{part}"])
    if is_withheld.any():
        scalars[name] = {**scalars[name], "why_not": why}
    return int(is_withheld.sum())


def of_keys(own: Parts) -> int:
    """Withhold intervals of a report of the probe `key_overlap`; return their number."""
    _, arrays = own
    n = arrays["n_vectors"][:, None, None].astype(float)
    pairs, mean = n * (n - 1) / 2, arrays["signed_mean.value"]
    spread = np.sqrt(np.maximum((1 - arrays["orthogonality.value"]) ** 2 - mean**2, 0))
    changed = 0
    for centered in ("", "centered_"):
        at, spreads = (mean, spread) if not centered else (0.0, arrays["centered_overlap.value"] / MEAN_OF_SIZE)
        for over, is_mean in (("", False), ("mean_", True)):
            name, heads = f"{over}{centered}overlap", mean.shape[-1] if is_mean else 1
            low, high = (arrays[f"{name}.{part}"] for part in ("low", "high"))
            if is_mean:
                each = kink_ratio((high - low)[..., None], pairs, heads, at, spreads).mean(axis=-1)
            else:
                each = kink_ratio(high - low, pairs, heads, at, spreads)
            changed += without_ends(own, name, np.isfinite(low) & (each > MOST), WHY_NOT if centered else WHY_BIASED)
            if not centered and own[0][name]["why_not"] != WHY_BIASED:
                own[0][name] = {**own[0][name], "why_not": WHY_BIASED}
                changed += 1
    return changed


def of_dynamics(own: Parts, origin: Mapping[str, Any]) -> int:
    """Withhold intervals of the key overlap over training; return their number."""
    _, arrays = own
    sets = task_from_config(origin["task"]).sample(1, seed=0).token_sets
    n = len(next(sets[name] for name in ("hypotheses", "inputs") if name in sets))
    low, high = (arrays[f"key_overlap.{part}"] for part in ("low", "high"))
    spread = arrays["key_overlap.value"] / MEAN_OF_SIZE
    each = kink_ratio(high - low, n * (n - 1) / 2, origin["model"]["n_kv_heads"], 0.0, spread)
    return without_ends(own, "key_overlap", np.isfinite(low) & (each > MOST), WHY_BIASED)


def main() -> None:
    """Convert the reports, and print those that changed with the number of intervals withheld."""
    for name in REPORTS:
        folder = ROOT / "docs" / "readings" / name
        parts, extra = read(folder)
        kind = "dynamics" if name in DYNAMICS else "key_overlap"
        own = parts[kind] = (dict(parts[kind][0]), dict(parts[kind][1]))
        if changed := of_dynamics(own, extra["provenance"]) if kind == "dynamics" else of_keys(own):
            replace_parts(folder, parts, extra)
            print(name, changed)


if __name__ == "__main__":
    main()
