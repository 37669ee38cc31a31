"""Key overlap, query-key alignment, belief read-out and value manifold."""

from collections.abc import Callable

import numpy as np

from bayesgeom.probes.base import known
from bayesgeom.probes.belief_report import (
    CONSTANT,
    EMBEDDING,
    GAUSSIAN,
    MEAN_BELIEF,
    SHUFFLE,
    STAGES,
    SUBSPACES,
    BeliefReadoutReport,
    window_levels,
)
from bayesgeom.probes.key_report import RANDOM_DIRECTIONS, RANDOM_W_K, KeyOverlapReport
from bayesgeom.probes.qk_alignment import ALIKE, OTHER, STRONGEST, UNIFORM, QKAlignmentReport, random_orders
from bayesgeom.probes.value_manifold import GAUSSIAN as GAUSSIAN_POINTS
from bayesgeom.probes.value_manifold import NO_ENDS, ORDERINGS, ValueManifoldReport
from bayesgeom.results.estimate import Baseline, Estimate
from bayesgeom.results.estimators import UNTRAINED
from bayesgeom.results.report import Report
from conversions import merged
from conversions.old import Old


def key_overlap(old: Old) -> KeyOverlapReport:
    """Levels of a head become baselines; verdicts are computed from them."""

    def alone(field: str) -> Estimate:
        chance = np.asarray(old.null(field))
        return old.estimate(field, Baseline.of("chance", RANDOM_DIRECTIONS, chance[..., None, None]))

    overlap, mean_overlap = _with_levels(old, "overlap", "chance")
    centered_overlap, mean_centered_overlap = _with_levels(old, "overlap_centred", "centred_chance")
    return KeyOverlapReport(
        views=old["views"],
        overlap=overlap,
        centered_overlap=centered_overlap,
        mean_overlap=mean_overlap,
        mean_centered_overlap=mean_centered_overlap,
        largest_overlap=alone("overlap_max"),
        largest_centered_overlap=alone("overlap_centred_max"),
        signed_mean=alone("signed_mean"),
        orthogonality=alone("orthogonality"),
        dimension_utilization=alone("dimension_utilisation"),
        cross_fitted_overlap=old["overlap_crossfit"],
        overlap_bias=old["overlap_bias"],
        welch=old["welch"],
        n_vectors=old["n_vectors"],
        n_unseen=old["n_unseen"],
        n=old["n"],
    )


def _with_levels(old: Old, field: str, chance: str) -> tuple[Estimate, Estimate]:
    """Head by head with the range of one head, then the mean over heads."""
    expected, least, most = (old[f"{chance}{end}"].swapaxes(0, 1)[..., None] for end in ("", "_lo", "_hi"))
    untrained = old[f"{field}_initialisation"]
    found = old.estimate(
        field,
        Baseline.of("chance", RANDOM_W_K, expected[0], low=least[0], high=most[0]),
        Baseline.of("chance", RANDOM_DIRECTIONS, expected[1], low=least[1], high=most[1]),
        Baseline.of("baseline", UNTRAINED, untrained, low=least[2], high=most[2]),
    )
    mean = old.estimate(
        f"{field}_mean",
        Baseline.of("chance", RANDOM_W_K, expected[0, ..., 0]),
        Baseline.of("chance", RANDOM_DIRECTIONS, expected[1, ..., 0]),
        Baseline.of("baseline", UNTRAINED, expected[2, ..., 0]),
    )
    return found, mean


def qk_alignment(old: Old) -> QKAlignmentReport:
    """Verdicts are computed from the profile over layers and the strongest layer of untrained networks."""
    uniform, other = Baseline.of("chance", UNIFORM, 0.0), Baseline.of("permutation", OTHER, 0.0)
    by_head = old["mass_over_other_initialisation"]
    strongest = old["mass_over_other_initialisation_most"][:, None]
    return QKAlignmentReport(
        relations=old["relations"],
        mass_excess=old.estimate("mass_excess", uniform, _untrained(old, "mass_excess")),
        contrast=old.estimate("contrast", Baseline.of("chance", ALIKE, 0.0), _untrained(old, "contrast")),
        auc=old.estimate("auc", Baseline.of("chance", ALIKE, 0.5), _untrained(old, "auc")),
        mass_excess_by_layer=old.estimate("mass_excess_by_layer", uniform),
        mass_over_other=old.estimate("mass_over_other", other, _untrained(old, "mass_over_other")),
        contrast_over_other=old.estimate("contrast_over_other", other),
        auc_over_other=old.estimate("auc_over_other", other),
        mass_over_other_by_layer=old.estimate(
            "mass_over_other_by_layer",
            other,
            Baseline.of("baseline", UNTRAINED, by_head.mean(axis=-1)),
            Baseline.of("baseline", STRONGEST, strongest),
        ),
        layer_trend=old.estimate("layer_trend", random_orders(by_head.shape[1])),
        identified=old["identified"],
        mask_difference=old["mask_difference"],
        uniform_mass=old["uniform_mass"],
        rows=old["rows"],
        n=old["n"],
    )


def belief_readout(old: Old) -> BeliefReadoutReport:
    """The embedding and window observers become baselines of what is read."""
    nothing = np.zeros((0, 0))
    names = old.get("windows", ())

    def read(field: str, *levels: Baseline) -> Estimate:
        before = np.full_like(old[field], np.nan)
        before[0] = old[f"embedding_{field}"]
        return old.estimate(
            field, levels[0], _untrained(old, field), *levels[1:], Baseline.of("baseline", EMBEDDING, before)
        )

    def scored(field: str, *levels: Baseline) -> Estimate:
        return old.estimate(field, *levels, _untrained(old, field))

    def shuffled(field: str) -> Baseline:
        return Baseline.of("permutation", SHUFFLE, old.null(field))

    def within(field: str) -> Baseline:
        name = f"{field}_random_subspace"
        return old.level("chance", SUBSPACES, name, low=f"{name}_lo", high=f"{name}_hi")

    windows = [
        Estimate.of(old.get(field, nothing), old.ends(field) or (0.0, 0.0), n=old["n"])
        for field in ("window_r2", "window_map_r2")
    ]
    nearest = "nearest_centroid_accuracy"
    return BeliefReadoutReport(
        r2=read("r2", shuffled("r2"), within("r2"), *window_levels(*windows, names)),
        total_variation=read("total_variation", Baseline.of("baseline", MEAN_BELIEF, old.null("total_variation"))),
        balanced_accuracy=read("balanced_accuracy", shuffled("balanced_accuracy"), within("balanced_accuracy")),
        silhouette=scored("silhouette", Baseline.of("chance", GAUSSIAN, old.null("silhouette"))),
        rand_index=scored("rand_index", shuffled("rand_index")),
        token_rand_index=scored("token_rand_index", shuffled("token_rand_index")),
        nearest_centroid_accuracy=old.estimate(
            nearest,
            shuffled(nearest),
            _untrained(old, nearest),
            Baseline.of("baseline", CONSTANT, old["constant_accuracy"]),
        ),
        window_r2=windows[0],
        window_map_r2=windows[1],
        drawn_belief=old["drawn_belief"],
        drawn_readout=np.stack([old["drawn_first"], old["drawn_last"], old["drawn_untrained"]]),
        sites=old["sites"],
        cluster_counts=old["cluster_counts"],
        confidences=old["confidences"],
        window_starts=old.get("window_starts", ()),
        windows=names,
        stages=STAGES,
        subspace_rank=old["subspace_rank"],
        n_clustered=old["n_clustered"],
        n=old["n"],
    )


def value_manifold(old: Old) -> ValueManifoldReport:
    """Spearman over all points and within positions become one field."""
    pair = ("spearman", "partial_spearman")

    def both(form: str) -> np.ndarray:
        return np.stack([old[form.format(field)] for field in pair])

    def untrained_shape(field: str) -> Baseline:
        return Baseline.of("baseline", UNTRAINED, old.null(field))

    def related(field: str) -> Estimate:
        return old.estimate(field, Baseline.of("permutation", SHUFFLE, old.null(field)), _untrained(old, field))

    spearman = Estimate.of(
        both("{}"),
        (both("{}_lo"), both("{}_hi")),
        n=old["n"],
        why_not=NO_ENDS,
        baselines=known(
            Baseline.of("permutation", SHUFFLE, both("{}_null")),
            Baseline.of("baseline", UNTRAINED, both("{}_initialisation")),
        ),
    )
    gaussian = old.level("chance", GAUSSIAN_POINTS, "pc1_share_gaussian")
    return merged.value_manifold(
        {
            "pc1_share": old.estimate("pc1_share", untrained_shape("pc1_share"), gaussian),
            "pc12_share": old.estimate("pc12_share", untrained_shape("pc12_share")),
            "participation_ratio": old.estimate("participation_ratio", untrained_shape("participation_ratio")),
            "spearman": spearman,
            "signed_spearman": Estimate.of(both("{}_signed"), (both("{}_signed_lo"), both("{}_signed_hi")), n=old["n"]),
            "p_value": Estimate.of(both("{}_p"), n=old["n"]),
            "pearson": related("pearson"),
            "entropy_r2": related("entropy_r2"),
            "curve_share": related("curve_share"),
            "head_pc1_share": old.estimate("head_pc1_share", untrained_shape("head_pc1_share")),
            "head_spearman": old.estimate("head_spearman", untrained_shape("head_spearman")),
            "shown_points": old["shown_points"],
            "shown_curve": old["shown_curve"],
            "shown_entropy_bits": old["shown_entropy_bits"],
            "shown_position": old["shown_position"],
            "curve_entropy_bits": old["curve_entropy_bits"],
            "identified": old["identified"],
            "is_own_entropy": old["is_own_entropy"],
            "standardized": old["standardised"],
            "sites": old["sites"],
            "shown_sites": old["shown_sites"],
            "orderings": ORDERINGS,
            "n": old["n"],
        }
    )


def _untrained(old: Old, field: str) -> Baseline:
    return Baseline.of("baseline", UNTRAINED, old.get(f"{field}_initialisation"))


CONVERTERS: dict[str, Callable[[Old], Report]] = {
    "key_overlap": key_overlap,
    "qk_alignment": qk_alignment,
    "belief_readout": belief_readout,
    "value_manifold": value_manifold,
}
DROPPED: dict[str, tuple[str, ...]] = {
    # Expected overlap of random directions: `chance_overlap(d)` and `chance_overlap_centred(n_vectors, d)`, where the
    # baseline of `orthogonality` is 1 − d^−½. Means over draws stay as "random directions".
    # Verdicts: `KeyOverlapReport.verdict`, from the intervals and the ranges of the levels.
    "key_overlap": ("overlap_null", "overlap_centred_null", "verdict", "verdict_centred"),
    # `n_held_out`: n // 2.
    "belief_readout": ("n_held_out",),
}
