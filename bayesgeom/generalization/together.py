"""Arms into one length report."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bayesgeom.core.memory import EffectiveMemory
from bayesgeom.generalization.arm import Arm, Setting
from bayesgeom.generalization.curves import Estimate, mean_along, strongest, whole_means
from bayesgeom.generalization.length_report import LengthReport

_BY_LAYER = {
    "layer_within_kl_bits": "within_kl_bits", "layer_beyond_kl_bits": "beyond_kl_bits",
    "layer_excess_bits": "excess_bits", "layer_excess_bits_lo": "excess_bits_lo",
    "layer_excess_bits_hi": "excess_bits_hi", "layer_excess_bits_null": "excess_bits_null",
    "layer_shift": "shift", "layer_shift_null": "shift_null",
}  # fmt: skip


def length_report(arms: Sequence[Arm], setting: Setting) -> LengthReport:
    """One report on arms that saw the same sequences."""
    first = arms[0].errors
    best = strongest(first.null_kl_bits)
    predictors = (best, *(name for name in first.null_kl_bits if name != best))
    return LengthReport(
        task=str(setting.stretch.to(setting.task, setting.trained)),
        field=setting.stretch.field,
        unit=setting.stretch.unit,
        trained=setting.trained,
        tokens_trained=setting.stretch.to(setting.task, setting.trained).n_pos,
        threshold_bits=setting.threshold_bits,
        arms=_distinct([arm.name for arm in arms]),
        position_kinds=tuple(arm.position_kind for arm in arms),
        untrained=tuple(arm.untrained for arm in arms),
        tasks_of=tuple(arm.trained_on for arm in arms),
        weights_hashes=tuple(arm.weights_hash for arm in arms),
        predictors=predictors,
        lengths=tuple(map(str, setting.lengths)),
        at=first.at,
        **_curves([arm.errors.kl_bits for arm in arms], first.at, "kl_bits", setting),
        **_curves([arm.errors.entropy_error_bits for arm in arms], first.at, "entropy_mae_bits", setting),
        kl_bits_null=first.null_kl_bits[best],
        entropy_mae_bits_null=first.null_entropy_error_bits[best],
        null_kl_bits=np.stack([first.null_kl_bits[name] for name in predictors]),
        null_entropy_mae_bits=np.stack([first.null_entropy_error_bits[name] for name in predictors]),
        **_bounds(arms, "jump_kl_bits", lambda arm: arm.jump_kl.jump),
        predicted_kl_bits=np.array([arm.jump_kl.predicted.value for arm in arms]),
        found_kl_bits=np.array([arm.jump_kl.found.value for arm in arms]),
        **_bounds(arms, "jump_entropy_mae_bits", lambda arm: arm.jump_entropy.jump),
        **_bounds(arms, "critical_length", lambda arm: arm.critical, has_null=False),
        **_bounds(arms, "extrapolation_ratio", lambda arm: arm.ratio),
        entry_layer=np.array([-1 if arm.depth is None else arm.depth.entry_layer for arm in arms]),
        **_by_layer(arms),
        **_memories([arm.errors.memory for arm in arms]),
        intervals={},
        nulls={},
        n=len(first.kl_bits),
    )


def _by_layer(arms: Sequence[Arm]) -> dict[str, Any]:
    """What depth found, padded to the layers of the deepest arm."""
    n_layers = max(arm.n_layers for arm in arms)
    return {name: np.stack([arm.by_layer(own, n_layers) for arm in arms]) for name, own in _BY_LAYER.items()}


def _memories(found: Sequence[EffectiveMemory | None]) -> dict[str, Any]:
    """Effective memories of all arms, and what the task can show; {} where the hidden state does not move."""
    known = [memory for memory in found if memory is not None]
    if len(known) < len(found):
        return {}
    return {
        "effective_memory_symbols": np.array([memory.symbols for memory in known]),
        "effective_memory_symbols_lo": np.array([memory.symbols for memory in known]),
        "effective_memory_symbols_hi": np.array([memory.symbols_hi for memory in known]),
        "transport": known[0].note,
    }


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Names that occur before get a number: directories of runs are all called checkpoint."""
    return tuple(
        f"{name} ({names[: index + 1].count(name)})" if name in names[:index] else name
        for index, name in enumerate(names)
    )


def _curves(
    errors: Sequence[Float[np.ndarray, "sequence position"]],
    at: Int[np.ndarray, " position"],
    metric: str,
    setting: Setting,
) -> dict[str, Any]:
    """Means along the sequence and over whole ones, with their intervals."""
    along = [mean_along(own, seed=setting.seed) for own in errors]
    whole = [
        whole_means(own, at, setting.lengths, is_prefix=setting.stretch.is_prefix, seed=setting.seed) for own in errors
    ]
    named: dict[str, Any] = {}
    for name, parts in ((metric, along), (f"whole_{metric}", whole)):
        for suffix, values in zip(("", "_lo", "_hi"), zip(*parts, strict=True), strict=True):
            named[name + suffix] = np.stack(values)
    return named


def _bounds(
    arms: Sequence[Arm], metric: str, of: Callable[[Arm], Estimate], *, has_null: bool = True
) -> dict[str, Any]:
    found = [of(arm) for arm in arms]
    named = {
        metric: np.array([own.value for own in found]),
        f"{metric}_lo": np.array([own.lo for own in found]),
        f"{metric}_hi": np.array([own.hi for own in found]),
    }
    return named | ({f"{metric}_null": np.array([own.null for own in found])} if has_null else {})
