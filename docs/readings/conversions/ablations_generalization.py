"""Reports of ablations, of generalization (length, relabeling, sweep) and of the sticky-chain experiment."""

from collections.abc import Callable

import numpy as np

from bayesgeom.ablations.report import NO_EFFECT, UNIFORM, AblationReport
from bayesgeom.experiments.em.conditions import BASELINE, EM_LIKE
from bayesgeom.experiments.em.report import EMReport, em_speed_ratio
from bayesgeom.generalization.curves import LARGEST_WITHIN
from bayesgeom.generalization.depth import EARLIER
from bayesgeom.generalization.length import N_RECORDED
from bayesgeom.generalization.length_report import LengthReport
from bayesgeom.generalization.relabeling_report import STUCK, RelabelingReport
from bayesgeom.generalization.sweep_report import SHORTCUT, SweepReport
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.report import Report
from conversions import merged
from conversions.old import Old


def ablation(old: Old) -> AblationReport:
    """Return an ablation report: effects of no ablation are 0, and their ratio is 1."""
    n = int(old["n"])
    nothing, unity = (Baseline.of("baseline", NO_EFFECT, level) for level in (0.0, 1.0))
    uniform = old.level("chance", UNIFORM, "uniform_kl_bits")
    n_layers, n_heads = old["damage_by_head"].shape
    return merged.ablation(
        {
            "mode": old["mode"],
            "ablations": tuple(old["ablations"]),
            "kinds": tuple(old["kinds"]),
            "layer": old["layer"],
            "head": old["head"],
            "n_layers": n_layers,
            "n_heads": n_heads,
            "kl_increase_bits": old.estimate("damage_bits", nothing),
            "entropy_mae_increase_bits": old.estimate("entropy_mae_increase_bits", nothing),
            "kl_ratio": old.estimate("kl_ratio", unity),
            "accuracy_change": old.estimate("accuracy_change", nothing),
            "attribution_bits": old["attribution_bits"],
            "inert": old["inert"],
            "kl_increase_bits_by_position": old["damage_bits_by_position"],
            "unablated_kl_bits": old.estimate("baseline_kl_bits", uniform),
            "unablated_entropy_mae_bits": old.estimate("baseline_entropy_mae_bits"),
            "top_to_second_ratio": Estimate.of(old["top_to_second_ratio"]),
            "share_above_half_of_top": Estimate.of(old["share_above_half_of_top"]),
            "attribution_rank_correlation": Estimate.of(old["attribution_rank_correlation"]),
            "key_overlap_pick": old["key_overlap_pick"],
            "n": n,
        }
    )


def length(old: Old) -> LengthReport:
    """Return a length report: predictors are the baselines of the errors, the strongest first."""
    models = len(old["arms"])

    def curve(name: str, levels: str) -> Estimate:
        return old.estimate(
            name, *(Baseline.of("baseline", *own) for own in zip(old["predictors"], old[levels], strict=True))
        )

    def with_null(name: str, called: str, n: int) -> Estimate:
        # Also where the level is unknown everywhere, as within so few places that no line can be drawn.
        level = Baseline.of("baseline", called, old.null(name))
        return Estimate.of(old[name], old.ends(name), n=n, baselines=(level,))

    n = int(old["n"])
    n_read = min(n, N_RECORDED) if np.isfinite(old["layer_shift"]).any() else 0

    symbols = old.get("effective_memory_symbols", np.zeros(0))
    has_memory = len(symbols) == models
    memory = np.full(models, np.nan)
    return merged.length(
        {
            "task": old["task"],
            "field": old["field"],
            "unit": old["unit"],
            "trained": old["trained"],
            "threshold_bits": old["threshold_bits"],
            "models": tuple(old["arms"]),
            "position_kinds": tuple(old["position_kinds"]),
            "untrained_positions": tuple(old["untrained"]),
            "weights_hashes": tuple(old["weights_hashes"]),
            "lengths": tuple(old["lengths"]),
            "at": old["at"],
            "kl_bits": curve("kl_bits", "null_kl_bits"),
            "entropy_mae_bits": curve("entropy_mae_bits", "null_entropy_mae_bits"),
            "whole_kl_bits": old.estimate("whole_kl_bits"),
            "whole_entropy_mae_bits": old.estimate("whole_entropy_mae_bits"),
            "jump_kl_bits": with_null("jump_kl_bits", LARGEST_WITHIN, n),
            "jump_entropy_mae_bits": with_null("jump_entropy_mae_bits", LARGEST_WITHIN, n),
            "critical_length": old.estimate("critical_length"),
            "extrapolation_ratio": with_null("extrapolation_ratio", old["predictors"][0], n),
            "layer_within_kl_bits": old["layer_within_kl_bits"],
            "layer_excess_bits": with_null("layer_excess_bits", EARLIER, n_read),
            "layer_shift": with_null("layer_shift", EARLIER, n_read),
            "effective_memory_symbols": (
                Estimate.of(symbols, old.ends("effective_memory_symbols")) if has_memory else Estimate.of(memory)
            ),
            "transport": old.get("transport", ""),
            "n": n,
        }
    )


def relabeling(old: Old) -> RelabelingReport:
    """Return a relabeling report: the baseline is a model whose answers do not change."""

    def estimate(name: str) -> Estimate:
        return old.estimate(name, Baseline.of("baseline", STUCK, old.null(name)))

    return RelabelingReport(
        verdict=old["verdict"],
        verdict_reason=old.get("verdict_reason", ""),
        bound_bits=float(old["bound_bits"]),
        kl_before_bits=estimate("kl_before_bits"),
        kl_after_bits=estimate("kl_after_bits"),
        kl_difference_bits=estimate("kl_difference_bits"),
        kl_difference_size_bits=estimate("kl_difference_size_bits"),
        prediction_change=estimate("prediction_change"),
        entropy_mae_difference_bits=estimate("entropy_mae_difference_bits"),
        sequence_correlation=estimate("sequence_correlation"),
        kl_before_bits_by_sequence=old["kl_before_bits_by_sequence"],
        kl_after_bits_by_sequence=old["kl_after_bits_by_sequence"],
        kl_difference_bits_by_position=estimate("kl_difference_bits_by_position"),
        n=int(old["n"]),
    )


def sweep(old: Old) -> SweepReport:
    """Return a sweep: the baseline is the strongest shortcut at each value."""

    def against(name: str) -> Estimate:
        return old.estimate(name, Baseline.of("baseline", SHORTCUT, old.null(name)))

    return SweepReport(
        task=old["task"],
        vary=old["vary"],
        values=tuple(old["values"]),
        trained_value=old["trained_value"],
        notes=tuple(old["notes"]),
        shortcuts=tuple(old["null_names"]),
        threshold_bits=old["threshold_bits"],
        exact_entropy_bits=old["exact_entropy_bits"],
        model_entropy_bits=old["model_entropy_bits"],
        exact_floor_bits=old["exact_floor_bits"],
        model_floor_bits=old["model_floor_bits"],
        exact_tokens=old.estimate("exact_tokens"),
        model_tokens=old.estimate("model_tokens"),
        kl_bits=against("kl_bits"),
        entropy_mae_bits=against("entropy_mae_bits"),
        n=int(old["n"]),
    )


def em_experiment(old: Old) -> EMReport:
    """Return the experiment: what was stored for either sequence stands along one axis."""

    def both(trained: str, held_out: str, *baselines: Baseline) -> Estimate:
        ends = [np.stack(pair) for pair in zip(_ends(old, trained), _ends(old, held_out), strict=True)]
        value = np.stack([old[trained], old[held_out]])
        return Estimate.of(value, (ends[0], ends[1]), resampled="seeds", n=int(old["n"]), baselines=baselines)

    no_difference = Baseline.of("baseline", EM_LIKE, 0.0)
    own_speed = Baseline.of("baseline", BASELINE, 1.0)
    by_step = np.stack([old["loss_bits_by_step"], old["held_out_bits_by_step"]])
    return EMReport(
        chains=tuple(old["chains"]),
        conditions=tuple(old["arms"]),
        seeds=tuple(old["seeds"]),
        sequences=("trained on", "held out"),
        self_probability=old["self_probability"],
        floor_bits=old["floor_bits"],
        filter_bits=np.stack([old["filter_bits"], old["held_out_filter_bits"]]),
        final_loss_bits=both("final_loss_bits", "held_out_bits"),
        best_held_out_bits=old.estimate("best_held_out_bits", resampled="seeds"),
        final_entropy_bits=old["entropy_bits"],
        accuracy=np.stack([old["accuracy"], old["held_out_accuracy"]]),
        em_margin_bits=both("em_margin_bits", "em_held_out_margin_bits", no_difference),
        speedup=both("speedup", "held_out_speedup", own_speed),
        em_speed_ratio=em_speed_ratio(by_step, old["recorded_steps"]),
        reached=np.stack([old["reached"], old["held_out_reached"]]),
        speedup_authors=old.estimate("speedup_authors", own_speed, resampled="seeds"),
        recorded_steps=old["recorded_steps"],
        loss_bits_by_step=by_step,
        n=int(old["n"]),
    )


def _ends(old: Old, name: str) -> tuple[np.ndarray, np.ndarray]:
    ends = old.ends(name)
    assert ends is not None, f"{name} was stored with an interval"
    return ends


CONVERTERS: dict[str, Callable[[Old], Report]] = {
    "ablation": ablation,
    "length": length,
    "relabelling": relabeling,
    "sweep": sweep,
    "em_experiment": em_experiment,
}
DROPPED: dict[str, tuple[str, ...]] = {
    # of kl_increase_bits, layer and head: entries by head, their sum by layer, and the largest one with its interval
    "ablation": ("damage_by_head", "damage_by_layer_sum", "top_damage_bits"),
    "length": (
        "tokens_trained",  # n_pos of `task`, which is the task at the training length
        "layer_beyond_kl_bits",  # layer_within_kl_bits + layer_excess_bits
        "found_kl_bits",  # kl_bits at the first place beyond: the property of this name
        "predicted_kl_bits",  # that minus jump_kl_bits: the property of this name
        "entry_layer",  # of layer_excess_bits and its baseline: the property of this name
    ),
    "em_experiment": ("floor_nats", "final_loss_nats"),  # bits times ln 2: properties of these names
}
