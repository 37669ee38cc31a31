"""The measurements of one model in the length report: its errors, and the layer where they first appear.

Each layer's prediction is read through the final norm and output matrix. Two windows of positions are compared, the
last within the training length and the first beyond it. The baseline is the same comparison one window earlier,
entirely within the training length.

Reference: nostalgebraist 2020 (the logit lens).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import RESID_POST, Run
from bayesgeom.generalization.curves import (
    Errors,
    critical_length,
    discontinuity,
    extrapolation_ratio,
    strongest,
)
from bayesgeom.generalization.longer_tasks import LengthField, position_kind, untrained_rows
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.report.estimate import Baseline, Estimate, mean_estimate
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import WindTunnel

EARLIER = "the same, one window earlier"
N_WINDOW = 5  # positions on either side of the training length
_TABLE = "pos_embed.weight"


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


@final
@dataclass(frozen=True, kw_only=True)
class LengthSetting:
    """Settings that all models share."""

    task: WindTunnel
    length_field: LengthField
    trained: int
    lengths: tuple[int, ...]
    threshold_bits: float
    seed: int


@final
@dataclass(frozen=True, kw_only=True)
class ModelErrors:
    """The measurements of one model; `depth` is None if its layers cannot be read."""

    name: str
    position_kind: str
    untrained_rows: tuple[int, int]
    weights_hash: str
    n_layers: int
    errors: Errors
    discontinuity_kl: Estimate
    discontinuity_entropy: Estimate
    critical: Estimate
    ratio: Estimate
    depth: Depth | None


def measured(
    model: Model, setting: LengthSetting, errors: Errors, windows: tuple[Window, Window, Window] | None
) -> ModelErrors:
    """Return all measurements of one model from its errors and residuals."""
    trained, kl = setting.trained, errors.kl_bits
    best = strongest(errors.narrow_kl_bits)  # a wide window is exact within most of a short training length
    shortcut = Baseline.of("baseline", best, errors.predictor_kl_bits[best])
    return ModelErrors(
        name=model.spec.name,
        position_kind=position_kind(model),
        untrained_rows=untrained_rows(model, setting.length_field.to(setting.task, trained)),
        weights_hash=model.spec.weights_hash,
        n_layers=model.spec.n_layers,
        errors=errors,
        discontinuity_kl=discontinuity(kl, errors.at, trained, seed=setting.seed),
        discontinuity_entropy=discontinuity(errors.entropy_error_bits, errors.at, trained, seed=setting.seed),
        critical=critical_length(kl, errors.at, setting.threshold_bits, seed=setting.seed),
        ratio=extrapolation_ratio(kl, errors.at, trained, shortcut, seed=setting.seed),
        depth=None if windows is None else depth(model, windows),
    )


def with_untrained_positions(model: Model, n_ctx: int, *, seed: int = 0) -> Model:
    """Return the transformer with its position table extended to `n_ctx` rows by randomly initialized rows.

    A longer table would hold the same after training on these sequences: no gradient reaches its last rows, and weight
    decay, if any, shrinks them slightly.

    Raises:
        InvalidArgument: The model is not a bayesgeom transformer with a learned position table.
    """
    module = model.module
    if not isinstance(module, Transformer) or module.config.positions != "learned":
        raise InvalidArgument(
            f"{model.spec.name} has no table of learned positions to extend ({position_kind(model)}): this requires a "
            f"bayesgeom transformer with learned positions."
        )
    longer = Transformer(replace(module.config, n_ctx=n_ctx), seed=seed).to(model.spec.device)
    weights, rows = dict(module.state_dict()), longer.state_dict()[_TABLE]
    weights[_TABLE] = torch.cat([weights[_TABLE], rows[len(weights[_TABLE]) :]])
    longer.load_state_dict(weights, strict=True)
    return HookedModel(longer.eval(), name=f"{model.spec.name} + untrained rows", task=model.task)


def without_top_attention(model: Model, n_layers: int) -> Model:
    """Return a copy of the transformer without attention in the top `n_layers` layers.

    Raises:
        InvalidArgument: The model is not a bayesgeom transformer, or has fewer layers.
    """
    module = model.module
    if not isinstance(module, Transformer):
        raise InvalidArgument(
            f"attention can be switched off in the top layers of bayesgeom's own transformers; {model.spec.name} is a "
            f"{model.spec.architecture}: ablate its attention with bayesgeom.ablate."
        )
    config = replace(module.config, top_attention_off=n_layers)
    silenced = Transformer(config, seed=0).to(model.spec.device)
    off = {f"blocks.{layer}.attn.W_O.weight" for layer in range(config.n_layers - n_layers, config.n_layers)}
    weights = {name: tensor * 0 if name in off else tensor for name, tensor in module.state_dict().items()}
    silenced.load_state_dict(weights, strict=True)
    name = f"{model.spec.name} without attention in {n_layers} top layer{'s' if n_layers > 1 else ''}"
    return HookedModel(silenced.eval(), name=name, task=model.task)
