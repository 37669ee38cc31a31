"""Fields that were merged along an axis, so that no report has more than 20 of them (schema 3 to schema 3)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bayesgeom.ablations.report import AblationReport
from bayesgeom.comparison.report import SIZES, ComparisonReport
from bayesgeom.dynamics.settling_report import SettlingReport
from bayesgeom.generalization.length_report import ERRORS, LengthReport, positions_text
from bayesgeom.interventions.report import EFFECTS, PARTS, SOURCES, InterventionReport
from bayesgeom.interventions.summary import reason_text
from bayesgeom.probes.calibration import SCORES, CalibrationReport
from bayesgeom.probes.value_manifold import ValueManifoldReport, conditions, placed
from bayesgeom.results.estimate import Estimate
from bayesgeom.results.estimators import stacked
from bayesgeom.results.report import Report

Fields = Mapping[str, Any]  # as a report held them before


def without(fields: Fields, *names: str) -> dict[str, Any]:
    """Return the fields of other names."""
    return {name: value for name, value in fields.items() if name not in names}


def joined(*parts: Estimate) -> Estimate:
    """Return estimates that have their axis already as one along it."""
    return stacked([part[at] for part in parts for at in range(len(part.value))])


def intervention(old: Fields) -> InterventionReport:
    """Changes in bits along the axis `effect`, read-outs along `source`, shares along `part`."""
    shift, kl = old["unedited_answer_shift_bits"], np.full(len(old["bands"]), np.nan)
    unknown = np.full_like(kl, np.nan)
    kl[0] = old["baseline_kl_bits"]
    nowhere = np.full((2, *old["movement"].value.shape), np.nan)
    changes = (
        "answer_shift_bits",
        "kl_increase_bits",
        "entropy_error_increase_bits",
        "removal_kl_bits",
        "indirect_answer_shift_bits",
        "indirect_kl_increase_bits",
    )
    held = ("effects", "stages", "targets", "ceiling_bits", "coordinate_r2", "r2", "variance_share", "outside_share")
    texts = ("controls", "where", "matched_by", "reason_by_layer", "frame_overlap", "baseline_kl_bits")
    return InterventionReport(
        **without(old, *changes, *held, *texts, "unedited_answer_shift_bits"),
        where=f"{old['where']}; controls: {old['controls']}",
        effects=EFFECTS,
        change_bits=stacked([old[name] for name in changes]).with_ceiling(
            np.concatenate([old["ceiling_bits"].value, nowhere])
        ),
        unedited_bits=np.stack([shift, kl, unknown, kl, shift, kl]),
        sources=SOURCES,
        r2=joined(old["r2"], old["coordinate_r2"]),
        parts=PARTS,
        share=stacked([old["variance_share"], Estimate.of(old["outside_share"]), old["frame_overlap"]]),
        reason_by_layer=tuple(
            reason_text(reason, drawn) if reason else ""
            for reason, drawn in zip(old["reason_by_layer"], old["matched_by"], strict=True)
        ),
    )


def length(old: Fields) -> LengthReport:
    """KL and entropy error along the axis `error`; which positions were never trained beside their kind."""
    pairs = {
        "error_bits": ("kl_bits", "entropy_mae_bits"),
        "whole_error_bits": ("whole_kl_bits", "whole_entropy_mae_bits"),
        "discontinuity_bits": ("jump_kl_bits", "jump_entropy_mae_bits"),
    }
    rest = without(
        old, "task", "field", "untrained_positions", "position_kinds", *(own for two in pairs.values() for own in two)
    )
    positions = zip(old["position_kinds"], old["untrained_positions"], strict=True)
    return LengthReport(
        **rest,
        position_kinds=tuple(positions_text(*own) for own in positions),
        errors=ERRORS,
        **{name: stacked([old[own] for own in two]) for name, two in pairs.items()},
    )


def calibration(old: Fields) -> CalibrationReport:
    """Accuracies along the axis `source`; what is computed from other fields is left out."""
    computed = ("entropy_mae_of_means_bits", "transport_gap_bits", "transport")
    rest = without(old, "accuracy", "exact_accuracy", *computed)
    accuracy = stacked([old["exact_accuracy"], old["accuracy"]])
    none = np.zeros((0, len(SCORES)), dtype=np.float32)
    return CalibrationReport(**{"sequence_scores": none, **rest}, accuracy=accuracy)


def value_manifold(old: Fields) -> ValueManifoldReport:
    """Points that are shown along the axis of all sites; what holds of the measurement in one field."""
    notes = ("identified", "is_own_entropy", "standardized")
    at = [old["sites"].index(site) for site in old["shown_sites"]]
    shown = {
        name: placed(dict(zip(at, old[name], strict=True)), len(old["sites"]))
        for name in ("shown_points", "shown_curve")
    }
    rest = without(old, *notes, *shown, "shown_sites")
    return ValueManifoldReport(**rest, **shown, conditions=conditions(*(old[note] for note in notes)))


def ablation(old: Fields) -> AblationReport:
    """What is computed from other fields is left out."""
    return AblationReport(**without(old, "share_above_half_of_top"))


def comparison(old: Fields) -> ComparisonReport:
    """Sizes of model, state and training along one axis."""
    sizes = ("n_parameters", "n_state_floats", "trained_on")
    return ComparisonReport(**without(old, *sizes), sizes=SIZES, size_of=np.stack([old[name] for name in sizes]))


def settling(old: Fields) -> SettlingReport:
    """Both steps of a fall in one array."""
    ends = ("fall_start", "fall_end")
    return SettlingReport(**without(old, *ends), fall_steps=np.stack([old[name] for name in ends]))


MERGED: dict[str, Callable[[Fields], Report]] = {
    "intervention": intervention,
    "length": length,
    "calibration": calibration,
    "value_manifold": value_manifold,
    "ablation": ablation,
    "comparison": comparison,
    "settling": settling,
}
BEFORE: dict[str, str] = {  # a field that says that a report is an old one
    "intervention": "outside_share",
    "length": "jump_kl_bits",
    "calibration": "exact_accuracy",
    "value_manifold": "shown_sites",
    "ablation": "share_above_half_of_top",
    "comparison": "n_state_floats",
    "settling": "fall_start",
}
COMPUTED: dict[str, Sequence[Callable[[Any], float]]] = {  # by a new report, from its fields
    "calibration": (lambda own: own.entropy_mae_of_means_bits, lambda own: own.transport_gap_bits),
    "ablation": (lambda own: own.share_above_half_of_top,),
}
