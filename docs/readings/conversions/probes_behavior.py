"""Calibration, attention entropy, pass thresholds and domain separation: their reports as estimates."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bayesgeom.probes.attention_entropy import OTHER, UNIFORM, AttentionEntropyReport
from bayesgeom.probes.calibration import SOURCES, CalibrationReport
from bayesgeom.probes.domain_separation import EXCHANGED, MIXED, DomainSeparationReport
from bayesgeom.probes.pass_thresholds import CHANCE, PassThresholdsReport, passed_estimate
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.estimators import UNTRAINED
from bayesgeom.results.report import Report
from conversions import merged
from conversions.old import Old


def calibration(old: Old) -> CalibrationReport:
    """Levels of predictors become baselines; entropies of the exact predictive and of the model share an array."""
    n = int(old["n"])
    profiles = dict(zip(old["predictors"], old["null_entropy_mae_bits_by_position"], strict=True))
    reasons = old.get("no_interval", {})

    def plain(name: str) -> Estimate:
        return Estimate.of(old[name], n=n)

    gain_ends = (old["window_gain_bits_lo"], old["window_gain_bits_hi"]) if old["windows"] else None
    equal = (Baseline.of("baseline", "equal to the window observer", 0.0),) if old["windows"] else ()
    return merged.calibration(
        {
            "entropy_mae_bits": old.estimate("entropy_mae_bits", *_predictors(old["null_entropy_mae_bits"])),
            "entropy_mae_of_means_bits": plain("entropy_mae_of_means_bits"),
            "kl_bits": _with(old.estimate("kl_bits"), *_predictors(old["null_kl_bits"])),  # some are infinite
            "total_variation": old.estimate("total_variation"),
            "off_answer_prob": Estimate.of(old["leak"], old.ends("leak"), n=n, why_not=reasons.get("leak", "")),
            "accuracy": old.estimate("accuracy"),
            "exact_accuracy": plain("exact_accuracy"),
            "log_loss_gap_bits": plain("log_loss_gap_bits"),
            "entropy_mae_bits_by_position": old.estimate("entropy_mae_bits_by_position", *_predictors(profiles)),
            "kl_bits_by_position": old.estimate("kl_bits_by_position"),
            "total_variation_by_position": old["total_variation_by_position"],
            "off_answer_prob_by_position": old["leak_by_position"],
            "entropy_bits_by_position": np.stack([old[f"{source}_entropy_bits_by_position"] for source in SOURCES]),
            "example_entropy_bits": np.stack([old[f"example_{source}_entropy_bits"] for source in SOURCES]),
            "sources": SOURCES,
            "window_kl_bits": Estimate.of(old["window_kl_bits"], n=n if old["windows"] else 0),
            "window_gain_bits": Estimate.of(
                old["window_gain_bits"], gain_ends, n=n if old["windows"] else 0, baselines=equal
            ),
            "window_starts": old["window_starts"],
            "windows": old["windows"],
            "effective_memory_symbols": old.estimate("effective_memory_symbols", n=n if old["windows"] else 0),
            "transport_gap_bits": Estimate.of(old["transport_gap_bits"], n=n if old["windows"] else 0),
            "transport": old["transport"],
            "n": n,
        }
    )


def _predictors(levels: Mapping[str, Any]) -> tuple[Baseline, ...]:
    """Return predictors as they are measured: first the uniform one, then by name, and untrained networks last."""
    order = sorted(levels, key=lambda name: (name == "initialisation", name != "uniform", name))
    shown = {name: UNTRAINED if name == "initialisation" else name.replace("_", " ") for name in order}
    return tuple(Baseline.of("baseline", shown[name], levels[name]) for name in order)


def attention_entropy(old: Old) -> AttentionEntropyReport:
    """Uniform attention, attention of another sequence and untrained networks become baselines."""
    uniform = old.level("chance", UNIFORM, "consistency_null")
    widest = old.level("chance", UNIFORM, "entropy_bits_null")
    shuffled, zero = old["consistency_shuffled"], Baseline.of("permutation", OTHER, 0.0)
    # The level of a reduction was that of untrained networks, and 0 without any.
    fresh = [] if np.isnan(old["entropy_bits_initialisation"]).all() else [_untrained(old.null("reduction"))]
    at_last = Baseline.of("chance", UNIFORM, old.null("consistency_last_layer"))
    return AttentionEntropyReport(
        entropy_bits=old.estimate("entropy_bits", widest, _untrained(old["entropy_bits_initialisation"])),
        entropy_share=old.estimate(
            "entropy_share",
            old.level("chance", UNIFORM, "entropy_share_null"),
            _untrained(old["entropy_share_initialisation"]),
        ),
        entropy_bits_by_layer=old.estimate(
            "entropy_bits_by_layer", Baseline.of("chance", UNIFORM, widest.value.mean(axis=1))
        ),
        reduction=old.estimate("reduction", Baseline.of("chance", "uniform in every layer", 0.0), *fresh),
        consistency=_with(
            old.estimate("consistency"),
            uniform,
            Baseline.of("permutation", OTHER, shuffled),
            *([_untrained(old["consistency_initialisation"])] if fresh else []),
        ),
        consistency_last_layer=_with(
            old.estimate("consistency_last_layer"), at_last, Baseline.of("permutation", OTHER, shuffled[-1].mean())
        ),
        consistency_over_other=_with(old.estimate("consistency_over_other"), zero),
        consistency_over_other_last_layer=_with(
            old.estimate("consistency_over_other_last_layer"),
            Baseline.of("permutation", OTHER, np.nan if old["note"] else 0.0),
        ),
        consistency_quantiles=old["consistency_quantiles"],
        quantiles=old["quantiles"],
        most_possible_consistency=old["consistency_ceiling"],
        identified=old["identified"],
        note=old["note"],
        n=int(old["n"]),
    )


def _untrained(level: Any) -> Baseline:
    """Return the mean over untrained networks, whose range was not stored."""
    return Baseline.of("baseline", UNTRAINED, level)


def _with(own: Estimate, *baselines: Baseline) -> Estimate:
    """Return an estimate with these baselines, also those that are unknown or infinite."""
    return replace(own, baselines=tuple(baseline.broadcast(own.value.shape) for baseline in baselines))


def pass_thresholds(old: Old) -> PassThresholdsReport:
    """Random data and untrained networks become baselines; marks are called measures with a threshold."""
    n, ends = int(old["n"]), (old["measured_lo"], old["measured_hi"])
    chance = Baseline.of("chance", CHANCE, old["measured_null"])
    fresh = [_untrained(old["initialisation"])] if np.isfinite(old["initialisation"]).any() else []
    return PassThresholdsReport(
        measures=old["marks"],
        measured=Estimate.of(old["measured"], ends, n=n, baselines=(chance, *fresh)),
        threshold=old["threshold"],
        passed=passed_estimate(old["measured"], old["chance_passes"], old["copies_pass"], n=n),
        verdicts=tuple(own.replace("untrained copies", UNTRAINED) for own in old["verdicts"]),
        sizes=old["sizes"],
        column_overlap=old["column_overlap"],
        key_overlap=old["key_overlap"],
        final_entropy_bits=old["final_entropy_bits"],
        n=n,
    )


def domain_separation(old: Old) -> DomainSeparationReport:
    """Exchanged domains and untrained networks become baselines."""
    n = int(old["n"])
    fresh = np.isfinite(old["silhouette_initialisation"]).any()

    def own(name: str, level: Baseline) -> Estimate:
        levels = (level, _untrained(old[f"{name}_initialisation"])) if fresh else (level,)
        return _with(old.estimate(name), *levels)

    angle = old.level("permutation", EXCHANGED, "angle_degrees_null", high="angle_most")
    gain = own("pc12_gain", Baseline.of("permutation", MIXED, 0.0))
    return DomainSeparationReport(
        silhouette=own("silhouette", old.level("permutation", EXCHANGED, "silhouette_null", high="silhouette_most")),
        angle_degrees=own("angle_degrees", angle),
        pc12_share=own("pc12_share", old.level("permutation", MIXED, "pc12_share_null")),
        pc12_gain=replace(gain, resampled="mixed samples", n=0),
        groups=old["groups"],
        site=old["site"],
        standardized=old["standardised"],
        n=n,
    )


CONVERTERS: dict[str, Callable[[Old], Report]] = {
    "calibration": calibration,
    "attention_entropy": attention_entropy,
    "pass_thresholds": pass_thresholds,
    "domain_separation": domain_separation,
}
DROPPED: dict[str, tuple[str, ...]] = {}
