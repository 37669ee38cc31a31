"""Reports on interventions: one layer at a time, several at once, erasure from a layer on, and what heads write."""

from collections.abc import Callable

import numpy as np

from bayesgeom.interventions.design import MATCHED, MATCHED_MOST, RANDOM, RANDOM_MOST
from bayesgeom.interventions.joint_report import ORTHOGONAL, UNEDITED, JointInterventionReport
from bayesgeom.interventions.onwards_report import OnwardsReport
from bayesgeom.interventions.report import SHUFFLED, STAGES, InterventionReport
from bayesgeom.interventions.summary import where_text
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.estimators import UNTRAINED
from bayesgeom.results.report import Report
from bayesgeom.subspaces.writes import RANDOM as RANDOM_WRITES
from bayesgeom.subspaces.writes import SHEER, WriteReport
from conversions import merged
from conversions.old import Old

TARGETS = ("entropy", "belief")  # of the read-outs from the coordinates alone, as their fields were called


def controls_text(kind: str, n_random: int, n_matched: int, n: int) -> str:
    """How many control subspaces there were, and what they were scored on."""
    scored_on = "pairs" if kind == "swap" else "sequences"
    return f"{n_random} random and {n_matched} variance-matched subspaces, on {n} {scored_on}"


def matched_text(by: str, rank: int) -> str:
    """Where controls with the same share of variance were drawn from, and their rank."""
    return by if "rank" in by else f"{by}, rank {rank}"


def intervention(old: Old) -> InterventionReport:
    """Return the report on one subspace, acted on in each layer alone."""
    n = int(old["n"])
    shuffled = np.asarray(old["r2_permuted"])
    level = Baseline.of("permutation", SHUFFLED, np.stack([np.full_like(shuffled, np.nan), shuffled]))
    ceilings = [
        old["redirect_bits_ceiling"] - old["redirect_bits_unedited"],
        old["damage_bits_ceiling"],
        old["entropy_mae_increase_bits_ceiling"],
        old["removal_kl_bits_ceiling"],
    ]
    return merged.intervention(
        {
            "kind": old["kind"],
            "subspace": old["subspace"],
            "quantity": old["quantity"],
            "where": where_text(old["site"], old["positions"], old["donors"]),
            "controls": controls_text(old["kind"], old["n_random"], old["n_matched"], old["n_floor"]),
            "bands": tuple(old["bands"]),
            "movement": old.estimate("movement", *_controls(old, "movement"), _untrained(old)).with_ceiling(
                old["movement_ceiling"]
            ),
            "indirect_movement": _indirect(old, "movement"),
            "answer_shift_bits": old.estimate("redirect_change_bits", *_shift_controls(old)),
            "indirect_answer_shift_bits": _indirect(old, "redirect_change_bits"),
            "unedited_answer_shift_bits": old["redirect_bits_unedited"],
            "kl_increase_bits": old.estimate("damage_bits", *_controls(old, "damage_bits")),
            "indirect_kl_increase_bits": _indirect(old, "damage_bits"),
            "entropy_error_increase_bits": old.estimate(
                "entropy_mae_increase_bits", *_controls(old, "entropy_mae_increase_bits")
            ),
            "removal_kl_bits": old.estimate("removal_kl_bits"),
            "ceiling_bits": Estimate.of(np.stack(ceilings), n=n),
            "r2": Estimate.of(
                [old["r2_before"], old["r2_after"]], baselines=[level] if np.isfinite(shuffled).any() else []
            ),
            "coordinate_r2": _coordinate_r2(old),
            "rank": old["rank"],
            "variance_share": Estimate.of(
                old["variance_share"], baselines=[Baseline.of("chance", MATCHED, old["matched_share"])]
            ),
            "outside_share": old["outside_share"],
            "frame_overlap": _frame_overlap(old),
            "matched_by": tuple(
                matched_text(by, int(rank)) if by else ""
                for by, rank in zip(old["matched_by"], old["matched_rank"], strict=True)
            ),
            "baseline_kl_bits": old["baseline_kl_bits"],
            "verdict_by_layer": tuple(old["verdict_by_layer"]),
            "reason_by_layer": tuple(old["reason_by_layer"]),
            "n": n,
        }
    )


def onwards(old: Old) -> OnwardsReport:
    """Return the report on erasure from a layer on."""
    n, name = int(old["n"]), "kl_increase_bits"
    least, most = old[f"{name}_least"], old[f"{name}_most"]
    unknown = np.full_like(most, np.nan)
    controls = (
        Baseline.of("chance", RANDOM_MOST, most, low=least, high=most),
        Baseline.of("chance", MATCHED_MOST, old.get(f"{name}_matched_most", unknown)),
    )
    return OnwardsReport(
        site=old["site"],
        subspace=old["subspace"],
        quantity=old["quantity"],
        kl_increase_bits=Estimate.of(old[name], old.ends(name), n=n, baselines=controls).with_ceiling(
            old[f"{name}_ceiling"]
        ),
        stages=STAGES,
        r2=Estimate.of([old["r2_before"], old["r2_after"]]),
        r2_excess=old["r2_excess"],
        unedited_kl_bits=Estimate.of(old["baseline_kl_bits"], n=n),
        verdict_by_layer=tuple(old["verdict_by_layer"]),
        is_matched_by_layer=tuple(old.get("is_matched_by_layer", (False,) * len(most))),
        n=n,
    )


def joint(old: Old) -> JointInterventionReport:
    """Return the report on edits in several layers at once."""
    n = int(old["n"])
    orthogonal = "increase_bits_orthogonal"
    unedited = Baseline.of(
        "baseline",
        UNEDITED,
        old["axis_correlation_baseline"],
        low=old["axis_correlation_baseline_lo"],
        high=old["axis_correlation_baseline_hi"],
    )
    return JointInterventionReport(
        kind=old["kind"],
        site=old["site"],
        subspace=old["subspace"],
        rank=old["rank"],
        sets=tuple(old["sets"]),
        metrics=tuple(old["metrics"]),
        targets=tuple(old["targets"]),
        unedited_bits=old.estimate("baseline_bits"),
        increase_bits=old.estimate(
            "increase_bits",
            _random(old, "increase_bits"),
            old.level("chance", ORTHOGONAL, orthogonal, low=f"{orthogonal}_least", high=f"{orthogonal}_most"),
        ).with_ceiling(old["increase_bits_ceiling"]),
        beyond_random_bits=old.estimate("beyond_random_bits"),
        axis_correlation=Estimate.of(
            old["axis_correlation"],
            old.ends("axis_correlation"),
            n=int(old["n_kept"]),
            baselines=[_random(old, "axis_correlation"), unedited],
        ),
        verdicts=tuple(old["verdicts"]),
        n_random=old["n_random"],
        n_kept=old["n_kept"],
        n=n,
    )


def write_strength(old: Old) -> WriteReport:
    """Return the report on which heads write into a subspace."""
    n = int(old["n"])
    strength = Baseline.of("chance", RANDOM_WRITES, old.null("strength"))
    return WriteReport(
        subspace=old["subspace"],
        strength=Estimate.of(old["strength"], n=n, baselines=[strength]),
        kl_increase_bits=Estimate.of(old["damage_bits"]),
        rank_correlation=Estimate.of(
            old["rank_correlation"], baselines=[Baseline.of("chance", SHEER, old.null("rank_correlation"))]
        ),
        n=n,
    )


def _random(old: Old, name: str) -> Baseline:
    return old.level("chance", RANDOM, f"{name}_null", low=f"{name}_least", high=f"{name}_most")


def _controls(old: Old, name: str) -> tuple[Baseline, Baseline]:
    """Mean and range over random subspaces and over those with the same share of variance."""
    own = f"{name}_matched"
    return _random(old, name), old.level("chance", MATCHED, own, low=f"{own}_least", high=f"{own}_most")


def _shift_controls(old: Old) -> tuple[Baseline, Baseline]:
    """The same of the answer shift, whose level under random subspaces was stored instead of its change."""
    null, least, most = (
        old[f"redirect_bits_{end}"] - old["redirect_bits_unedited"] for end in ("null", "least", "most")
    )
    return Baseline.of("chance", RANDOM, null, low=least, high=most), _controls(old, "redirect_change_bits")[1]


def _untrained(old: Old) -> Baseline:
    """Movement in untrained networks, over all positions: stored as a share of the ceiling."""
    level = np.full_like(old["movement_ceiling"], np.nan)
    level[:, 0] = old.get("movement_untrained") * old["movement_ceiling"][:, 0]
    return Baseline.of("baseline", UNTRAINED, level)


def _indirect(old: Old, name: str) -> Estimate:
    most = ((RANDOM_MOST, "most"), (MATCHED_MOST, "matched_most"))
    unknown = np.full_like(old[f"{name}_indirect"], np.nan)
    levels = [Baseline.of("chance", own, old.get(f"{name}_indirect_{end}", unknown)) for own, end in most]
    return old.estimate(f"{name}_indirect", *levels)


def _coordinate_r2(old: Old) -> Estimate:
    random = np.stack([old.null(f"{target}_r2") for target in TARGETS])
    return Estimate.of(
        [old[f"{target}_r2"] for target in TARGETS],
        baselines=[Baseline.of("chance", RANDOM, random)] if np.isfinite(random).any() else [],
    )


def _frame_overlap(old: Old) -> Estimate:
    unknown = np.full(len(old["rank"]), np.nan)
    null, most = (old.get(f"frame_overlap_{end}", unknown) for end in ("null", "most"))
    return Estimate.of(
        old.get("frame_overlap", unknown),
        old.ends("frame_overlap"),
        baselines=[Baseline.of("chance", RANDOM, null, high=most)] if np.isfinite(null).any() else [],
    )


CONVERTERS: dict[str, Callable[[Old], Report]] = {
    "intervention": intervention,
    "erasure_onwards": onwards,
    "joint_intervention": joint,
    "write_strength": write_strength,
}
DROPPED: dict[str, tuple[str, ...]] = {
    "intervention": (
        # The answer shift was stored as a level and as its change: level = change + `unedited_answer_shift_bits`.
        "redirect_bits",
        "redirect_bits_null",
        "redirect_bits_least",
        "redirect_bits_most",
        "redirect_bits_ceiling",
        # The interval of that level. The paired interval of the change is kept: it is what verdicts rest on.
        "redirect_bits_lo",
        "redirect_bits_hi",
        # Effect over ceiling, both of which are kept; `share_of_ceiling` is a property.
        "share_of_ceiling",
        # The baseline "untrained networks" of `movement`, over the ceiling.
        "movement_untrained",
        # Nothing reads it, and no verdict rests on it: entropy error without the direct path.
        "entropy_mae_increase_bits_indirect",
        "entropy_mae_increase_bits_indirect_lo",
        "entropy_mae_increase_bits_indirect_hi",
        "entropy_mae_increase_bits_indirect_most",
        "entropy_mae_increase_bits_indirect_matched_most",
        # In the text of `matched_by` and of `controls`.
        "matched_rank",
        "n_random",
        "n_matched",
        "n_floor",
        # Follow from `verdict_by_layer` and `subspace`; the rule is that of the code.
        "verdict",
        "verdict_rule",
    ),
    "erasure_onwards": (
        # As above; every report has 20 random subspaces (`N_RANDOM`).
        "verdict",
        "verdict_rule",
        "n_random",
    ),
}
