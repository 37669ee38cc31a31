"""Slow, obvious twins of statistics."""

import numpy as np
from scipy.stats import pearsonr, rankdata


def partial_spearman(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float:
    """Correlation of ranks less their mean at each level of `given`, one level at a time."""
    residuals = [rankdata(x), rankdata(y)]
    for level in set(given.tolist()):
        for own in residuals:
            own[given == level] -= own[given == level].mean()
    return float(pearsonr(*residuals).statistic)
