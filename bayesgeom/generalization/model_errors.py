"""The measurements of one model in the length report."""

from dataclasses import dataclass, replace
from typing import final

import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.generalization.curves import (
    Errors,
    critical_length,
    discontinuity,
    extrapolation_ratio,
    strongest,
)
from bayesgeom.generalization.depth import Depth, Window, depth
from bayesgeom.generalization.stretch import Stretch, position_kind, untrained_rows
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.report.estimate import Baseline, Estimate
from bayesgeom.tasks.base import WindTunnel

_TABLE = "pos_embed.weight"


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings that all models share."""

    task: WindTunnel
    stretch: Stretch
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
    model: Model, setting: Setting, errors: Errors, windows: tuple[Window, Window, Window] | None
) -> ModelErrors:
    """Return all measurements of one model from its errors and residuals."""
    trained, kl = setting.trained, errors.kl_bits
    best = strongest(errors.narrow_kl_bits)  # a wide window is exact within most of a short training length
    shortcut = Baseline.of("baseline", best, errors.predictor_kl_bits[best])
    return ModelErrors(
        name=model.spec.name,
        position_kind=position_kind(model),
        untrained_rows=untrained_rows(model, setting.stretch.to(setting.task, trained)),
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
