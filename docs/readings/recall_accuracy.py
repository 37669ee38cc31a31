"""Print how many stored values trained networks name correctly, for the tables of docs/comparison.md.

    python docs/readings/recall_accuracy.py runs/train/recall-64-mamba2-quarter-lr3/checkpoint

Each line has the KL, the share of the gap to the best context-free predictor that the network closes, and the accuracy
at queries of stored keys with its best baseline, on 2,000 new sequences, seed 0, as `bayesgeom compare` scores them.
"""

import sys

import numpy as np

from bayesgeom.core.text import number_text
from bayesgeom.models.resolve import load, task_of
from bayesgeom.stats.bootstrap import mean_interval, ratio_interval
from bayesgeom.stats.intervals import Interval
from bayesgeom.tasks.base import Branch, derived_seed
from bayesgeom.training.scores import N_SCORED, score

SEED = 0


def row(path: str) -> str:
    """Return the line of one checkpoint."""
    model = load(path)
    task = task_of(model, None)
    found, seed = score(model, task, n=N_SCORED, seed=SEED), derived_seed(SEED, Branch.RESAMPLING)
    known = float(found.known.mean())
    level, name = max((own / known, name) for name, own in found.baseline_known_correct.items())
    kl = _text(float(found.kl_bits.mean()), mean_interval(found.kl_bits, seed=seed))
    share = 1 - found.kl_bits.mean() / found.context_free_kl_bits.mean()
    correct, of = found.known_correct[:, None].astype(np.float64), found.known[:, None].astype(np.float64)
    accuracy = _text(float(correct.sum() / of.sum()), ratio_interval(correct, of, seed=seed))
    return f"| {path} | {kl} | {share:.3f} | {accuracy} | {name} {number_text(level)} |"


def _text(value: float, interval: Interval) -> str:
    low, high = (float(np.ravel(end)[0]) for end in interval)
    return f"{number_text(value)} [{number_text(low)}, {number_text(high)}]"


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(row(path))
