"""Interval of the mean |cosine| of vectors that are means over sequences.

|c| has a kink at 0. Noise of size s in a cosine c near 0 raises |c| on average, by up to 0.8 s. The jackknife does not
see this bias: few cosines change sign when one sequence is left out, and each that does counts n times. Therefore

    weight   w = sign(c) Φ(|c| / s): the sign, times the probability that it is right
    replicates   mean over pairs of |c| + w (c without the group − c), which are smooth in the vectors
    kink   b = mean over pairs of E|c + s Z| − |c|, Z standard normal: the bias if the true cosine were c

The interval is that of the replicates less b, so it still corrects the bias that is smooth in the vectors. If cosines
are spread evenly around 0, b is the bias on average. If they are exactly 0, it is too small by √2 b, so the lower end
is moved by that. There is no interval where b is more than `MOST_KINK` − `FEWER` / n of the distance from center to
upper end: many cosines are then 0 within their noise.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.verdict import Reason
from bayesgeom.geometry.cosine import centered, mean_of_pairs, pairwise_cosine
from bayesgeom.stats.bootstrap import statistic_interval
from bayesgeom.stats.intervals import Interval

MOST_KINK, FEWER = 0.7, 6.4  # set on planted keys with other seeds than those of benchmarks/interval_coverage.py
MOST_HELD = 2**24  # numbers
RESIDUAL = 2**0.5  # (0.798 − 0.330) / 0.330: what is left of the bias of |N(0, s²)|, in units of b

Frames = Callable[[], Iterable[Float[Tensor, "draw *batch item d"]]]


@final
@dataclass(frozen=True, kw_only=True)
class OverlapRows:
    """The overlap of all sequences and of those without each group, with signs held; and the bias b of the kink.

    The second axis of the rows and the first of the bias are raw (0) and with the mean removed (1).
    """

    rows: Float64[np.ndarray, "row 2 *rest"]
    kink: Float64[np.ndarray, "2 *rest"]


def overlap_rows(frames: Frames) -> OverlapRows:
    """Return the replicates of the mean |cosine|, raw and with the mean removed.

    Args:
        frames: Gives the vectors under each row of `jackknife_weights`, in one or several parts. It is called again
            where the cosines of all parts have more than `MOST_HELD` numbers.

    Example:
        >>> vectors = torch.tensor([[[3.0, 4.0], [4.0, -3.0]], [[3.0, 4.0], [4.0, -2.0]], [[3.0, 4.0], [4.0, -4.0]]])
        >>> found = overlap_rows(lambda: [vectors])
        >>> bool(found.rows[0, 0] < 1e-6) and bool(found.kink[0] > 0.05)
        True
    """
    total = squares = all_of_them = torch.empty(0)
    count, held, is_held = 0, list[Tensor](), True
    for part in frames():
        cosines = _cosines(part)
        is_held = is_held and (count + len(part)) * cosines[0].numel() <= MOST_HELD
        held = [*held, cosines] if is_held else []
        if not count:
            all_of_them, cosines = cosines[0], cosines[1:]
            total = squares = torch.zeros_like(all_of_them)
        change = cosines - all_of_them
        total, squares = total + change.nansum(dim=0), squares + change.square().nansum(dim=0)
        count += len(part)
    n = max(1, count - 1)
    noise = ((n - 1) / n * (squares - total.square() / n).clamp_min(0)).sqrt()
    size = all_of_them.abs()
    is_right = torch.special.ndtr(size / noise)
    weight = all_of_them.sign() * torch.where(noise > 0, is_right, 1.0)
    again = held or (_cosines(part) for part in frames())
    rows = [mean_of_pairs(size + weight * (cosines - all_of_them)) for cosines in again]
    normal = torch.exp(-((size / noise) ** 2) / 2) / (2 * torch.pi) ** 0.5
    kink = mean_of_pairs(torch.where(noise > 0, 2 * (noise * normal - size * (1 - is_right)), 0.0 * size))
    return OverlapRows(rows=torch.cat(rows).double().cpu().numpy(), kink=kink.double().cpu().numpy())


def mean_overlap_interval(
    rows: Float[np.ndarray, "row *rest"], kink: Float[np.ndarray, "*rest"], *, seed: int
) -> Interval:
    """Return the 95 % interval of a mean |cosine|, from rows and bias of `overlap_rows`, or of means of both."""
    own, corrected, most = rows[0], rows[0] - kink, MOST_KINK - FEWER / max(1, len(rows) - 1)
    with np.errstate(invalid="ignore"):
        found = statistic_interval(rows - kink, seed=seed, scale="share")
        is_biased = (own > 0) & ((corrected <= 0) | (kink > most * (found.hi - corrected)))
        code = np.where(is_biased & (np.isfinite(found.hi) | (corrected <= 0)), int(Reason.BIASED), found.code)
    low, high = (
        np.where(code == Reason.NONE, end, np.nan) for end in (np.maximum(found.lo - RESIDUAL * kink, 0), found.hi)
    )
    return replace(found, lo=np.asarray(low), hi=np.asarray(high), code=np.asarray(code))


def _cosines(vectors: Float[Tensor, "draw *batch item d"]) -> Float[Tensor, "draw 2 *batch item item"]:
    """Return the cosines of the vectors, raw and with their mean removed."""
    return torch.stack([pairwise_cosine(x) for x in (vectors, centered(vectors))], dim=1)
