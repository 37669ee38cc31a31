"""Reports on trainings: gradients and their movement, monitored trainings, comparisons, dynamics, replications."""

from collections.abc import Callable

import numpy as np

from bayesgeom.comparison.report import CONTEXT_FREE, ComparisonReport, task_baselines
from bayesgeom.dynamics.pictures import RANDOM_PLANE, AttentionMapsReport, ManifoldFilmReport, focus_of
from bayesgeom.dynamics.replication import CONTEXT_FREE as PREDICTOR
from bayesgeom.dynamics.replication import ReplicationReport
from bayesgeom.dynamics.report import DIRECTIONS, SHUFFLED, SUBSPACES, UNIFORM, DynamicsReport
from bayesgeom.dynamics.rows import over_trainings
from bayesgeom.dynamics.settling import MIN_SEEDS
from bayesgeom.dynamics.settling_report import RULES, SPACING, TOGETHER, SettlingReport
from bayesgeom.gradients.movement import TOGETHER as BOTH
from bayesgeom.gradients.movement import GradientMovementReport
from bayesgeom.gradients.report import GradientReport
from bayesgeom.gradients.tally import OTHER
from bayesgeom.monitor.report import ATTENTION, OTHERS, UNTRAINED, MonitorReport
from bayesgeom.results.estimate import Baseline, Estimate, Kind
from bayesgeom.results.report import Report
from conversions import merged
from conversions.old import Old


def gradients(old: Old) -> GradientReport:
    """Return the report on the gradient laws."""
    n = int(old["n"])
    return GradientReport(
        targets=old["targets"],
        laws=old["identitys"],
        identity_error=old.estimate("identity_error"),
        identity_error_nats=old.estimate("identity_error_nats"),
        loss_nats=old.estimate("loss_nats"),
        mean_correlation=old.estimate(
            "mean_correlation", Baseline.of("permutation", OTHER, old.null("mean_correlation"))
        ),
        correlation=old.estimate("correlation", old.level("permutation", OTHER, "correlation_null")),
        routing_norm=old.estimate("routing_norm"),
        value_norm=old.estimate("value_norm"),
        value_elasticity=old.estimate("value_elasticity"),
        attention_bin=old["attention_bin"],
        advantage_by_attention=old.estimate(
            "advantage_by_attention", old.level("permutation", OTHER, "advantage_by_attention_null")
        ),
        pairs_by_attention=old["pairs_by_attention"],
        mean_advantage_nats=old["mean_advantage_nats"],
        mean_attention=old["mean_attention"],
        n=n,
    )


def gradient_movement(old: Old) -> GradientMovementReport:
    """Return the report on the movement of routing and values."""
    return GradientMovementReport(
        targets=old["targets"],
        steps=old["steps"],
        loss_nats=old.estimate("loss_nats"),
        routing_norm=old.estimate("routing_norm"),
        value_norm=old.estimate("value_norm"),
        value_elasticity=old.estimate("value_elasticity"),
        pattern_distance_bits=old.estimate("pattern_distance_bits"),
        value_distance=old.estimate("value_distance"),
        correlation=old.estimate("correlation", old.level("permutation", OTHER, "correlation_null")),
        pattern_moved_bits=old["pattern_moved_bits"],
        value_moved=old["value_moved"],
        pattern_distance_bits_by_layer=old["pattern_distance_bits_by_layer"],
        value_distance_by_layer=old["value_distance_by_layer"],
        routing_stable_step=old.estimate("routing_settled_step"),
        values_stable_step=old.estimate("values_settled_step"),
        stable_ratio=old.estimate("settled_ratio", Baseline.of("baseline", BOTH, old.null("settled_ratio"))),
        n=int(old["n"]),
    )


def monitor(old: Old) -> MonitorReport:
    """Return the report of a monitored training."""

    def over_steps(metric: str, kind: Kind, chance: str) -> Estimate:
        untrained = Baseline.of("baseline", UNTRAINED, old[f"{metric}_initialisation"])
        return old.estimate(metric, old.level(kind, chance, f"{metric}_null"), untrained)

    return MonitorReport(
        steps=old["steps"],
        kl_bits=over_steps("kl_bits", "baseline", UNIFORM),
        key_orthogonality=over_steps("key_orthogonality", "chance", DIRECTIONS),
        coverage=over_steps("coverage", "chance", DIRECTIONS),
        separation=over_steps("separation", "permutation", OTHERS),
        attention_entropy_bits=over_steps("attention_entropy_bits", "chance", ATTENTION),
        key_orthogonality_by_head=old["key_orthogonality_by_head"],
        coverage_by_head=old["coverage_by_head"],
        attention_entropy_bits_by_head=old["attention_entropy_bits_by_head"],
        rules=tuple(old["thresholds"]),
        threshold=np.array([*old["thresholds"].values()], dtype=np.float64),
        events=old["events"],
        marked_steps=old["marked_steps"],
        n=int(old["n"]),
    )


def comparison(old: Old) -> ComparisonReport:
    """Return the comparison. Of its baselines only the strongest one of each task was stored."""
    strongest = zip(old["strongest_baselines"], old["strongest_baseline_kl_bits"], strict=True)
    baselines = task_baselines(old["kl_bits_null"], [{name: float(level)} for name, level in strongest])

    def american(name: str) -> tuple[str, ...]:
        return tuple(text.replace("realised", "realized") for text in old[name])

    return merged.comparison(
        {
            "checkpoints": old["checkpoints"],
            "task_of": old["task_of"],
            "architecture_of": old["architecture_of"],
            "is_check": old["is_check"],
            "verdicts": american("verdicts"),
            "published": american("published"),
            "standings": american("standings"),
            "targets": old["targets"],
            "rate_search": old["rate_search"],
            "weights_hashes": old["weights_hashes"],
            "missing": old["missing"],
            "n_parameters": old["n_parameters"],
            "n_state_floats": old["n_state_floats"],
            "trained_on": old["trained_on"],
            "kl_bits": old.estimate("kl_bits", *baselines),
            "entropy_mae_bits": old.estimate(
                "entropy_mae_bits", old.level("baseline", CONTEXT_FREE, "entropy_mae_bits_null")
            ),
            "share_closed": old.estimate("share_closed", old.level("baseline", CONTEXT_FREE, "share_closed_null")),
            "accuracy_where_known": _accuracy(old),
            "memory_symbols": Estimate.of(
                old["memory_symbols"], (old["memory_symbols"], old["memory_symbols_hi"]), n=int(old["n"])
            ),
            "window_gap_bits": old["window_gap_bits"],
            "n": int(old["n"]),
        }
    )


def _accuracy(old: Old) -> Estimate:
    """Return the accuracy with its baseline, which is NaN throughout where no answer is known."""
    name = "accuracy_where_known"
    return Estimate.of(
        old[name],
        old.ends(name),
        n=int(old["n"]),
        baselines=[old.level("baseline", CONTEXT_FREE, f"{name}_null")],
    )


def dynamics(old: Old) -> DynamicsReport:
    """Return the curves of dynamics; `settling` returns the rest."""

    uniform = Baseline.of("baseline", UNIFORM, old["kl_bits_uniform"])
    directions = Baseline.of("chance", DIRECTIONS, old["key_overlap_chance"])
    return DynamicsReport(
        runs=old["runs"],
        steps=old["steps"],
        kl_bits=old.estimate("kl_bits", uniform),
        kl_bits_mean=_over_trainings(old, "kl_bits_mean", len(old["runs"]), uniform),
        entropy_mae_bits=old.estimate("entropy_mae_bits"),
        pattern_distance_bits=old.estimate("pattern_distance_bits"),
        pattern_distance_bits_by_layer=old["pattern_distance_bits_by_layer"],
        key_overlap=old.estimate("key_overlap", directions),
        pc1_share=old.estimate("pc1_share"),
        curve_share=old.estimate("curve_share", old.level("permutation", SHUFFLED, "curve_share_null")),
        belief_r2=old.estimate("belief_r2", old.level("chance", SUBSPACES, "belief_r2_null")),
        answer_shift_bits=old.estimate(
            "redirect_bits", old.level("chance", SUBSPACES, "redirect_bits_null")
        ).with_ceiling(old["redirect_ceiling_bits"]),
        frame_ratio=old.estimate("frame_ratio", Baseline.of("chance", DIRECTIONS, 1.0)),
        n=int(old["n"]),
    )


def settling(old: Old) -> SettlingReport:
    """Return what settles when and what falls again, which were part of the report on dynamics."""
    n_runs, names = len(old["runs"]), ("dissociation", "dissociation_by_share")
    ends = [old.ends(name) or (np.nan, np.nan) for name in names]
    unknown = np.full(n_runs, np.nan)
    least, most = (np.stack([old[f"dissociation_by_run_{end}"], unknown]) for end in ("least", "most"))
    together = Baseline.of("baseline", TOGETHER, 0.0)
    over = ("trainings", n_runs) if n_runs >= MIN_SEEDS else ("sequences", int(old["n"]))
    return merged.settling(
        {
            "runs": old["runs"],
            "rules": RULES,
            "frame_step": old["frame_step"],
            "precision_step": np.stack([old["precision_step"], old["precision_step_by_share"]]),
            "dissociation_by_run": Estimate.of(
                np.stack([old["dissociation_by_run"], old["dissociation_by_share_by_run"]]),
                (least, most),
                resampled=SPACING,
            ),
            "dissociation": over_trainings(
                [old[name] for name in names], tuple(np.transpose(ends)), n=n_runs, baselines=[together]
            ),
            "verdicts": (old["verdict"], old["verdict_by_share"]),
            "scales": old["scales"],
            "frame_measures": old["frame_measures"],
            "precision_step_by_scale": old["precision_step_by_scale"],
            "frame_step_by_measure": old["frame_step_by_measure"],
            "dissociation_by_scale": _over_trainings(old, "dissociation_by_scale", n_runs),
            "order_by_scale": old["order_by_scale"],
            "order": old["order"],
            "curves": tuple(name.replace("redirect", "answer shift") for name in old["curves"]),
            "fall": old.estimate("fall", resampled=over[0], n=over[1]),
            "fall_share": old["fall_share"],
            "fall_start": old["fall_start"],
            "fall_end": old["fall_end"],
            "fall_verdicts": old["fall_verdicts"],
            "n": int(old["n"]),
        }
    )


def _over_trainings(old: Old, name: str, n: int, *baselines: Baseline) -> Estimate:
    return over_trainings(old[name], old.ends(name) or (np.nan, np.nan), n=n, baselines=baselines)


def manifold_film(old: Old) -> ManifoldFilmReport:
    """Return the film of the values."""
    return ManifoldFilmReport(
        run=old["run"],
        steps=old["steps"],
        cloud=old["cloud"],
        entropy_bits=old["entropy_bits"],
        final_axes_share=old.estimate("final_axes_share", old.level("chance", RANDOM_PLANE, "final_axes_share_null")),
        n=int(old["n"]),
    )


def attention_maps(old: Old) -> AttentionMapsReport:
    """Return the attention maps."""
    return AttentionMapsReport(
        run=old["run"],
        shown_steps=old["chosens"],
        shown_layers=old["shown_layers"],
        maps=old["maps"],
        focus=focus_of(old["focus"]),
        n=int(old["n"]),
    )


def replication(old: Old) -> ReplicationReport:
    """Return the report over several seeds."""
    n_seeds = len(old["replicas"])

    def mean(name: str) -> Estimate:
        return _over_trainings(old, name, n_seeds, Baseline.of("baseline", PREDICTOR, old.null(name)))

    return ReplicationReport(
        recipe=old["recipe"],
        replicas=old["replicas"],
        weights_hashes=old["weights_hashes"],
        missing=old["missing"],
        steps=old["steps"],
        kl_bits=old.estimate("kl_bits", old.level("baseline", PREDICTOR, "kl_bits_null")),
        entropy_mae_bits=old.estimate("entropy_mae_bits", old.level("baseline", PREDICTOR, "entropy_mae_bits_null")),
        curve_kl_bits=old["curve_kl_bits"],
        curve_loss_nats=old["curve_loss_nats"],
        mean_kl_bits=mean("mean_kl_bits"),
        mean_entropy_mae_bits=mean("mean_entropy_mae_bits"),
        spread_kl_bits=old.estimate("spread_kl_bits", n=n_seeds),
        spread_entropy_mae_bits=old.estimate("spread_entropy_mae_bits", n=n_seeds),
        n=int(old["n"]),
    )


CONVERTERS: dict[str, Callable[[Old], Report]] = {
    "gradients": gradients,
    "gradient_movement": gradient_movement,
    "monitor": monitor,
    "comparison": comparison,
    "dynamics": dynamics,
    "manifold_film": manifold_film,
    "attention_maps": attention_maps,
    "replication": replication,
}
# Reports that one of an old kind becomes besides that of its own kind.
SPLIT: dict[str, tuple[Callable[[Old], Report], ...]] = {"dynamics": (settling,)}
DROPPED: dict[str, tuple[str, ...]] = {
    # The largest entries of `identity_error` and `identity_error_nats`.
    "gradients": ("largest_identity_error", "largest_identity_error_nats"),
    # Means of `share_closed`; number of checkpoints per task and architecture; stated in `rate_search`, else 0.
    "comparison": ("share_by_task", "n_seeds", "rate_trials"),
    # Means of `entropy_mae_bits` over trainings, with Student's interval.
    "dynamics": ("entropy_mae_bits_mean", "entropy_mae_bits_mean_lo", "entropy_mae_bits_mean_hi"),
}
