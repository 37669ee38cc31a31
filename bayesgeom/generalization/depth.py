"""The layer where an error first appears: each layer's prediction, read through the final norm and output matrix.

Two windows of positions are compared, the last within the training length and the first beyond it. The baseline is the
same comparison one window earlier, entirely within the training length.

Reference: nostalgebraist 2020 (the logit lens).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.run import Run
from bayesgeom.core.sites import RESID_POST
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.report.estimate import Baseline, Estimate, mean_estimate
from bayesgeom.stats.information import kl_bits

EARLIER = "the same, one window earlier"
N_WINDOW = 5  # positions on either side of the training length


@final
@dataclass(frozen=True, kw_only=True)
class Depth:
    """KL of the read-out within the training length, its excess beyond, and the shift of means, by layer.

    `shift` is |mean residual beyond − mean residual within| over the spread within. The baseline of excess and shift
    compares the window within with the one before it.
    """

    within_kl_bits: Float[np.ndarray, " layer"]
    excess_bits: Estimate
    shift: Estimate


@final
@dataclass(frozen=True, kw_only=True)
class Window:
    """Residuals after each layer and the exact predictive distribution at some positions."""

    resid: Float[Tensor, "layer batch query_pos d_model"]
    exact: Float64[Tensor, "batch query_pos answer"]
    run: Run

    @classmethod
    def of(cls, run: Run, positions: Sequence[int] | slice) -> "Window":
        """Return the window of these scored positions."""
        exact = run.trials.at_scored(run.trials.predictive)
        return cls(resid=run.at(RESID_POST)[:, :, positions], exact=exact[:, positions], run=run)


def can_read_layers(model: Model) -> bool:
    """Return whether residuals can be read through the model's output: bayesgeom's transformers only."""
    return isinstance(model.module, Transformer) and RESID_POST in model.sites


def windows_around(run: Run, trained: int) -> tuple[Window, Window, Window]:
    """Return the windows before, within and beyond of one run, as wide as the run allows."""
    n_scored = run.trials.n_scored
    width = max(1, min(N_WINDOW, trained // 2, n_scored - trained))
    starts = (max(0, trained - 2 * width), trained - width, trained)
    before, within, beyond = (Window.of(run, slice(start, start + width)) for start in starts)
    return before, within, beyond


@torch.no_grad()
def depth(model: Model, windows: tuple[Window, Window, Window]) -> Depth:
    """Compare windows before, within and beyond, layer by layer."""
    module = model.module
    assert isinstance(module, Transformer), "`can_read_layers` is checked before"
    before, within, beyond = (_read(module, window) for window in windows)
    earlier = Baseline.of("baseline", EARLIER, np.abs((within - before).mean(axis=0)))
    usual = Baseline.of("baseline", EARLIER, _shift(windows[1].resid, windows[0].resid))
    return Depth(
        within_kl_bits=within.mean(axis=0),
        excess_bits=mean_estimate(beyond - within, seed=windows[0].run.seed, baselines=(earlier,)),
        shift=Estimate.of(_shift(windows[2].resid, windows[1].resid), n=len(within), baselines=(usual,)),
    )


def _read(module: Transformer, window: Window) -> Float[np.ndarray, "sequence layer"]:
    """Return the KL of every layer's read-out to the exact answer, averaged over the window."""
    answers = window.run.trials.answers
    found = []
    for resid in window.resid:
        log_answers = module.logits(resid)[..., answers].double().log_softmax(-1)
        found.append(kl_bits(window.exact, log_answers).mean(dim=1))
    read: np.ndarray = torch.stack(found, dim=1).cpu().numpy()
    return read


def _shift(
    there: Float[Tensor, "layer batch query_pos d_model"], here: Float[Tensor, "layer batch query_pos d_model"]
) -> Float[np.ndarray, " layer"]:
    away = (there.double().mean(dim=(1, 2)) - here.double().mean(dim=(1, 2))).norm(dim=-1)
    centered = here.double() - here.double().mean(dim=(1, 2), keepdim=True)
    spread = centered.square().sum(-1).mean(dim=(1, 2)).sqrt()
    shift: np.ndarray = (away / spread).cpu().numpy()
    return shift
