"""The length report from the measurements of all models."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from bayesgeom.generalization.curves import mean_along, strongest, whole_means
from bayesgeom.generalization.depth import EARLIER
from bayesgeom.generalization.length_report import ERRORS, LengthReport
from bayesgeom.generalization.model_errors import ModelErrors, Setting
from bayesgeom.report.estimate import Baseline, Estimate, stacked
from bayesgeom.stats.memory import EffectiveMemory


def length_report(models: Sequence[ModelErrors], setting: Setting) -> LengthReport:
    """Return the report on models that were measured on the same sequences."""
    first = models[0].errors
    best = strongest(first.predictor_kl_bits)
    predictors = (best, *(name for name in first.predictor_kl_bits if name != best))
    kl, entropy = ([model.errors.kl_bits for model in models], [model.errors.entropy_error_bits for model in models])
    memories = [model.errors.memory for model in models]
    n_layers = max(model.n_layers for model in models)
    return LengthReport(
        unit=setting.stretch.unit,
        trained=setting.trained,
        threshold_bits=setting.threshold_bits,
        models=_distinct([model.name for model in models]),
        position_kinds=tuple(model.position_kind for model in models),
        untrained_rows=np.array([model.untrained_rows for model in models]),
        weights_hashes=tuple(model.weights_hash for model in models),
        lengths=tuple(map(str, setting.lengths)),
        at=first.at,
        errors=ERRORS,
        error_bits=stacked(
            [
                _curves(kl, first.predictor_kl_bits, predictors, setting.seed),
                _curves(entropy, first.predictor_entropy_error_bits, predictors, setting.seed),
            ]
        ),
        whole_error_bits=stacked([_whole(own, models, setting) for own in (kl, entropy)]),
        discontinuity_bits=stacked(
            [
                stacked([model.discontinuity_kl for model in models]),
                stacked([model.discontinuity_entropy for model in models]),
            ]
        ),
        critical_length=stacked([model.critical for model in models]),
        extrapolation_ratio=stacked([model.ratio for model in models]),
        layer_within_kl_bits=np.stack(
            [_padded(None if model.depth is None else model.depth.within_kl_bits, n_layers) for model in models]
        ),
        layer_excess_bits=_by_layer(
            [None if model.depth is None else model.depth.excess_bits for model in models], n_layers
        ),
        layer_shift=_by_layer(
            [None if model.depth is None else model.depth.shift for model in models], n_layers, has_interval=False
        ),
        effective_memory_symbols=_memories(memories),
        transports=tuple("" if own is None else str(own.verdict) for own in memories),
        n=len(first.kl_bits),
    )


def _by_layer(found: Sequence[Estimate | None], n_layers: int, *, has_interval: bool = True) -> Estimate:
    """Return estimates by layer, padded with NaN to the layers of the deepest model."""

    def level(parts: Sequence[Float[np.ndarray, " layer"] | None]) -> Float[np.ndarray, "model padded"]:
        return np.stack([_padded(part, n_layers) for part in parts])

    low, high = (level([None if own is None else own.ends[end] for own in found]) for end in (0, 1))
    earlier = level([None if own is None else own.baseline(EARLIER).value for own in found])
    return Estimate.of(
        level([None if own is None else own.value for own in found]),
        (low, high) if has_interval else None,
        n=max(0 if own is None else own.n for own in found),
        baselines=(Baseline.of("baseline", EARLIER, earlier),),
    )


def _padded(values: Float[np.ndarray, " layer"] | None, n_layers: int) -> Float[np.ndarray, " padded"]:
    padded = np.full(n_layers, np.nan)
    if values is not None:
        padded[: len(values)] = values
    return padded


def _memories(found: Sequence[EffectiveMemory | None]) -> Estimate:
    """Return effective memories of all models; NaN if the hidden state does not move."""
    known = [memory for memory in found if memory is not None]
    if len(known) < len(found):
        return Estimate.of(np.full(len(found), np.nan))
    symbols = np.array([memory.symbols for memory in known])
    return Estimate.of(symbols, (symbols, [memory.symbols_ends[1] for memory in known]))


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Number repeated names: the directories of all runs are called checkpoint."""
    return tuple(
        f"{name} ({names[: index + 1].count(name)})" if name in names[:index] else name
        for index, name in enumerate(names)
    )


def _curves(
    errors: Sequence[Float[np.ndarray, "sequence position"]],
    levels: Mapping[str, Float[np.ndarray, " position"]],
    predictors: Sequence[str],
    seed: int,
) -> Estimate:
    """Return means along the sequence; the baselines are the predictors, the strongest first."""
    baselines = [Baseline.of("baseline", name, levels[name]) for name in predictors]
    return stacked([mean_along(own, seed=seed) for own in errors], baselines)


def _whole(
    errors: Sequence[Float[np.ndarray, "sequence position"]], models: Sequence[ModelErrors], setting: Setting
) -> Estimate:
    """Return means over whole sequences of each length."""
    at, is_prefix = models[0].errors.at, setting.stretch.is_prefix
    return stacked([whole_means(own, at, setting.lengths, is_prefix=is_prefix, seed=setting.seed) for own in errors])
