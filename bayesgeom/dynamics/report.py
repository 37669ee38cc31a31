"""The reports of training dynamics: numbers and pictures of every snapshot, joined along steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.core import ModelSpec, Reason, Verdict, number_text
from bayesgeom.core.text import aligned_table, count_text
from bayesgeom.measurements.inside import InsideReport, inside_report
from bayesgeom.report.estimate import R2, Baseline, Estimate, NonNegative, Quantity, Share, Unit, stacked
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import quantities_of
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.bootstrap import seed_interval
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.training.packed import chosen_among

if TYPE_CHECKING:
    from bayesgeom.charts.curves import Curve

UNIFORM, DIRECTIONS, SUBSPACES = "uniform predictor", "random directions", "random subspaces"
SHUFFLED, RANDOM_PLANE, FIRST = "shuffled entropies", "random plane", "first snapshot"
NEARBY = 0.1  # share of the first distance
N_MAPS, MAX_ROWS = 4, 3  # steps drawn by default, and layers
VIEWED = "viewed "  # before the names of the arrays that the viewer shows
MOST_VIEWED = 24  # steps in the viewer
_FORMED = (  # metric, layer and label of what has formed by the last snapshot
    ("belief_r2", (), "R² of the belief, last layer,"),
    ("answer_shift_bits", (0,), "answer shift, layer 0,"),
    ("frame_ratio", (0,), "frame ratio, layer 0,"),
)
_IDENTITY = 1e-5  # relative difference from the ceiling; errors of float32 are below 1e-6
_MAX_LAYERS = 7  # of the answer shift, whose ceiling and baseline are drawn too
_MAX_CURVES = 9  # number of colors
Steps = Sequence[int]


@final
@dataclass(frozen=True, kw_only=True)
class SnapshotNumbers:
    """Estimates and arrays of one snapshot by name; `missing` states why an estimate is NaN."""

    spec: ModelSpec
    estimates: Mapping[str, Estimate]
    arrays: Mapping[str, np.ndarray]
    missing: Mapping[str, str]


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class DynamicsReport(Report):
    """Every snapshot of a training is measured on the same sequences.

    Curves show the error of the answers and the distance of attention patterns from the last snapshot. They also show
    the geometry of keys and values, the R² of a linear read-out of the belief, and how much the answer depends on the
    key frame. Baselines are the uniform predictor, random directions and subspaces, and shuffled entropies; otherwise
    compare with the first snapshot, before training. Numbers at the last snapshot are those of the training in which
    they are lowest. At layer 0 the frame may hold all that differs between sequences; its swap then equals the ceiling,
    by construction.

    Fields: one row per training, one column per snapshot; all snapshots are measured on the same sequences.

    Intervals of one training are over sequences. `kl_bits_mean` is the mean over trainings, with Student's interval.

    - `lens_kl_bits`: what the logit lens reads from the embedding (stage 0) and after each layer, against the exact
      posterior. `arrival`: layers after which it stays below a tenth of context-free, as in `posterior_lens`.
    - `pattern_distance_bits`: Jensen–Shannon divergence of attention rows at scored positions from the last snapshot.
    - `key_overlap`: mean |cosine| between hypothesis tokens' keys. `pc1_share`, `curve_share`: for the last layer's
      values (for its residual stream in models without values). `belief_r2`: held out, from the last layer's residual
      stream.
    - `answer_shift_bits`: effect on the answer of swapping the frame at each layer's input; its `ceiling` is that of
      swapping the whole residual stream. `frame_ratio`: overlap of the frame with the directions on which the answers
      depend, divided by chance level.
    """

    name: ClassVar[str] = "dynamics"
    title: ClassVar[str] = "Geometry over training: when does it appear?"

    runs: tuple[str, ...]
    steps: tuple[str, ...]
    # KL has no `better`: the uniform predictor is a scale. `calibration` compares with the task's strongest baseline.
    kl_bits: Annotated[Estimate, NonNegative("run step", unit="bits", label="KL(exact ‖ model)")]
    kl_bits_mean: Annotated[Estimate, NonNegative("step", unit="bits", label="KL, mean over trainings")]
    entropy_mae_bits: Annotated[Estimate, NonNegative("run step", unit="bits", better="lower", label="entropy error")]
    lens_kl_bits: Annotated[
        Estimate, NonNegative("run step stage", unit="bits", better="lower", label="KL(exact ‖ logit lens)")
    ]
    arrival: Annotated[Estimate, NonNegative("run step", unit="layers", label="layers until the posterior is there")]
    pattern_distance_bits: Annotated[
        Estimate, Quantity("run step", unit="bits", label="distance of attention patterns from the last snapshot")
    ]
    pattern_distance_bits_by_layer: Annotated[Float[np.ndarray, "run step layer"], Unit("bits")]
    key_overlap: Annotated[Estimate, Share("run step layer", better="lower", label="mean |cos| between keys")]
    pc1_share: Annotated[Estimate, Share("run step", better="higher", label="PC1 share of the last values")]
    curve_share: Annotated[Estimate, R2("run step", better="higher", label="curve share of the last values")]
    belief_r2: Annotated[Estimate, R2("run step", better="higher", label="held-out R² of the belief, last layer")]
    answer_shift_bits: Annotated[
        Estimate, Quantity("run step layer", unit="bits", better="higher", label="answer shift of the frame swap")
    ]
    frame_ratio: Annotated[
        Estimate, NonNegative("run step layer", better="higher", label="frame ratio: overlap over chance level")
    ]
    n: int

    def headlines(self) -> Sequence[Headline]:
        last = len(self.steps) - 1
        if len(self.runs) == 1:
            label = "KL at the last snapshot"
            return (headline_of(self, "kl_bits", at=(0, last), label=label), *self._lowest(last))
        label = f"KL at the end, mean of {count_text(len(self.runs), 'training')}"
        return (headline_of(self, "kl_bits_mean", at=(last,), label=label), *self._lowest(last))

    def answer(self) -> Opening:
        kl, distance = (estimate.value.mean(axis=0) for estimate in (self.kl_bits, self.pattern_distance_bits))
        rest, patterns = _settled(kl), _settled(distance[:-1])  # the last snapshot has no distance from itself
        level = next(iter(self.kl_bits.compared), None)
        finding = Finding.TRAINED if len(self.steps) > 1 else Finding.ONE_SNAPSHOT
        return finding.of(
            first=kl[0],
            last=kl[-1],
            step=int(self.steps[-1]),
            rest=math.nan if rest is None else int(self.steps[rest]),
            patterns=math.nan if patterns is None else int(self.steps[patterns]),
            baseline=level.name if level else "",
            level=level.value.mean() if level else math.nan,
        )

    def _lowest(self, last: int) -> list[Headline]:
        """Return what formed by the last snapshot, in the training in which it is lowest; unknown numbers are left out.

        The frame is that of layer 0: deeper layers receive what it has written. A swap there that equals the ceiling
        is an identity, whatever the training: it has no verdict of its own.
        """
        found, n_runs = list[Headline](), len(self.runs)
        of = f", lowest of {count_text(n_runs, 'training')}" if n_runs > 1 else ""
        for metric, layer, label in _FORMED:
            trainings = self.estimate(metric)[(slice(None), last, *layer)]
            if np.isfinite(trainings.value).any():
                (run,), own = trainings.extreme("smallest")
                at, named = (run, last, *layer), f"{label} at the last snapshot{of}"
                line = headline_of(self, metric, at, named, own=own, chosen_of=n_runs)
                ceiling = float(self.estimate(metric).ceiling[at])
                is_identity = math.isclose(line.value, ceiling, rel_tol=_IDENTITY)
                found.append(replace(line, verdict=str(Verdict.BY_CONSTRUCTION)) if is_identity else line)
        return found

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.curves import Curve
        from bayesgeom.report.theme import EXACT, QUANTITIES

        distances, shift = self.pattern_distance_bits, self.answer_shift_bits
        to_last = self._by_run(distances, distances.value[:, :1])
        highest = Curve(name="ceiling, layer 0", values=shift.ceiling[..., 0].mean(axis=0), color=EXACT)
        shifts = [highest, *_by_layer(shift.value)[:_MAX_LAYERS]]
        by_layer = _by_layer(self.pattern_distance_bits_by_layer)
        shape = [
            Curve(name="PC1 share", values=self.pc1_share.value.mean(axis=0), color=QUANTITIES[0]),
            Curve(name="curve share", values=self.curve_share.value.mean(axis=0), color=QUANTITIES[1]),
        ]
        near, none = [("stable: a tenth", NEARBY), ("start", 1.0)], [("no shift", 0.0)]
        panel, folded = self._panel, partial(self._panel, is_folded=True)
        return (
            panel(f"KL, bits: {_change(self.kl_bits)}", "KL (bits, log scale)", self.kl_bits, is_log=True),
            self._lens_panel(),
            panel("Patterns: distance from the last", "share of the first", distances, to_last, near),
            panel(f"Belief by a linear map: R² {_change(self.belief_r2)}", "held-out R²", self.belief_r2),
            panel("Swapping the frame, by layer", "answer shift (bits)", shift, shifts, none),
            folded(
                f"Entropy error, bits: {_change(self.entropy_mae_bits)}",
                "entropy error (bits, log scale)",
                self.entropy_mae_bits,
                is_log=True,
            ),
            folded("Pattern distances, by layer", "Jensen–Shannon (bits)", distances, by_layer),
            folded("Key overlap, by layer", "mean |cosine|", self.key_overlap),
            folded("Shape of the last values", "share of variance", self.curve_share, shape),
            folded("Frame ratio, by layer", "over chance", self.frame_ratio),
        )

    def _panel(
        self,
        title: str,
        unit: str,
        own: Estimate,
        curves: Sequence["Curve"] = (),
        levels: Sequence[tuple[str, float]] = (),
        *,
        is_log: bool = False,
        is_folded: bool = False,
    ) -> Panel:
        """Draw an estimate over log steps, or curves made of it, with its baselines and other levels."""
        has_layers = own.value.ndim > 2
        curves = curves or (_by_layer(own.value) if has_layers else self._by_run(own))
        first, named = (own[..., 0], ", layer 0") if has_layers else (own, "")
        compared = [(f"baseline: {level.name}{named}", level.value.mean(axis=0)) for level in first.compared]
        drawn = [*compared, *levels]
        return steps_panel(title, unit, self.steps, curves[:_MAX_CURVES], drawn, is_log=is_log, is_folded=is_folded)

    def _lens_panel(self) -> Panel:
        """Draw the KL of the logit lens by stage, upward, and step; the color ends at that of the uniform predictor."""
        from bayesgeom.charts.heat import add_heat

        kl, there = self.lens_kl_bits.value.mean(axis=0), self.arrival.value[:, -1].mean()
        after = f"there after {there:.3g} of {len(kl[0]) - 1} layers" if np.isfinite(there) else "never there"
        panel = Panel.blank(f"Posterior by layer and step: {after}")
        free = float(self.kl_bits.baseline(UNIFORM).value.mean()) if self.kl_bits.baselines else np.nan
        names = ([*(f"layer {at}" for at in reversed(range(len(kl[0]) - 1))), "embedding"], self.steps)
        limits = (0.0, free) if free > 0 else None
        axes = ("training step", "read after")
        add_heat(panel.figure, kl.T[::-1], unit="bits to exact", baseline=0.0, names=names, axes=axes, limits=limits)
        panel.figure.update_xaxes(nticks=8)
        return panel

    def _by_run(self, own: Estimate, first: Float[np.ndarray, "run 1"] | float = 1.0) -> list["Curve"]:
        """Return a curve per training with its band, divided by `first`."""
        from bayesgeom.charts.curves import Curve

        shared = min(self.runs, key=len) if len(self.runs) > 1 else ""
        names = [name.removeprefix(shared).lstrip("-") or "first" for name in self.runs]
        rows = zip(names, own.value / first, *(end / first for end in own.ends), strict=True)
        return [Curve(name=name, values=values, band=(low, high)) for name, values, low, high in rows]

    def table(self) -> str:
        """Return means over trainings by snapshot, and the chance levels."""
        columns = {
            "KL (bits)": self.kl_bits,
            "arrival (layers)": self.arrival,
            "entropy error (bits)": self.entropy_mae_bits,
            "pattern distance (bits)": self.pattern_distance_bits,
            "key overlap": self.key_overlap[..., 0],
            "PC1 share": self.pc1_share,
            "belief R²": self.belief_r2,
            "answer shift (bits)": self.answer_shift_bits[..., 0],
            "frame ratio": self.frame_ratio[..., 0],
        }
        means = {name: own.value.mean(axis=0) for name, own in columns.items()}
        return "\n".join([*step_table(self.steps, means), self._chance()])

    def _chance(self) -> str:
        """Return the chance level of each column at the last snapshot; those by layer are of layer 0."""
        last = (
            ("KL", self.kl_bits[:, -1]),
            ("key overlap", self.key_overlap[:, -1, 0]),
            ("belief R²", self.belief_r2[:, -1]),
            ("answer shift", self.answer_shift_bits[:, -1, 0]),
            ("frame ratio", self.frame_ratio[:, -1, 0]),
        )
        known = [
            f"{what} {number_text(level.value.mean())} ({level.name})" for what, own in last for level in own.compared
        ]
        return f"chance: {', '.join(known)}"


def _settled(curve: Float[np.ndarray, " step"]) -> int | None:
    """Return the first index from which on a curve stays below a tenth of its first value; None if it does not."""
    high = np.flatnonzero(~(curve <= NEARBY * curve[:1]))
    return int(high[-1]) + 1 if len(high) and high[-1] + 1 < len(curve) else None


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ManifoldFilmReport(Report):
    """Each dot is the last layer's value vector at one scored position; all snapshots use the same sequences.

    The axes are the two directions in which these vectors vary most at the end of training; the color is the exact
    entropy. Press the button, or move the slider. If entropy is a function of position, as when keys never repeat, any
    code for position would order the colors, too. The share of the variance along these axes has no verdict: they are
    fitted to the last snapshot, where even a random network exceeds random planes and other snapshots.

    Fields: centered vectors of the last layer at some scored positions, along PC1 and PC2 of the last snapshot.
    `final_axes_share`: the share of a snapshot's variance along these axes, next to that along a random plane.
    """

    name: ClassVar[str] = "manifold_film"
    title: ClassVar[str] = "Value manifold over training: when does it form?"

    limit: ClassVar[str] = "at most 3,072 scored positions"

    run: str
    steps: tuple[str, ...]
    cloud: Annotated[Float[np.ndarray, "step point component"], Unit("1")]
    entropy_bits: Annotated[Float[np.ndarray, " point"], Unit("bits")]
    final_axes_share: Annotated[Estimate, Share("step", label="variance along the last snapshot's PC1 and PC2")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        label = quantities_of(type(self))["final_axes_share"].label
        at_steps = sorted({0, len(self.steps) // 2, len(self.steps) - 1}, reverse=True)
        return [
            headline_of(self, "final_axes_share", at=(at,), label=f"{label}, step {int(self.steps[at]):,}")
            for at in at_steps
        ]

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.cloud import film_panel

        axes = ("last snapshot's PC1 (activation units)", "last snapshot's PC2 (activation units)")
        return [film_panel(self.steps, self.cloud, self.entropy_bits, colored_by="entropy (bits)", axes=axes)]


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionMapsReport(Report):
    """Attention from the scored positions (rows) to all positions (columns) of one sequence, mean over heads.

    It is drawn at a few steps of training. A map that looks like the last one hardly changes later. The number is the
    largest weight of a row, mean over rows; the baseline is the first snapshot.

    Fields: attention at some steps and layers. `focus`: the mean largest weight of a row. Its baseline is the first
    snapshot.
    """

    name: ClassVar[str] = "attention_maps"
    title: ClassVar[str] = "Attention over training: when does it settle?"
    limit: ClassVar[str] = "the maps show one example"

    run: str
    shown_steps: tuple[str, ...]
    shown_layers: tuple[str, ...]
    maps: Annotated[Float[np.ndarray, "shown_step shown_layer query_pos key_pos"], Unit("1")]
    focus: Annotated[Estimate, Quantity("shown_step shown_layer", label="largest weight of a row")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        step = f"step {int(self.shown_steps[-1]):,}"
        labels = [f"largest weight, layer {layer}, {step}" for layer in self.shown_layers]
        return [headline_of(self, "focus", at=(-1, row), label=label) for row, label in enumerate(labels)]

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.charts.lines import brief

        # The first queries have few keys in a causal model, so their weights are large: they do not extend the scale.
        most, drawn = float(self.maps[:, :, self.maps.shape[2] // 2 :].max()), list[Panel]()
        queries, keys = (range(1, 1 + size) for size in self.maps.shape[2:])
        axes: dict[str, Any] = {"names": (queries, keys), "axes": ("key position", "scored position")}
        for row, layer in enumerate(self.shown_layers):
            for column, step in enumerate(self.shown_steps):
                focus = brief(self.focus.value[column, row])
                panel = Panel.blank(
                    f"Layer {layer}, step {int(step):,}: largest weight of a row {focus}",
                    is_folded=column + 1 < len(self.shown_steps),
                )
                weights = self.maps[column, row].round(3)
                add_heat(panel.figure, weights, unit="attention", baseline=0.0, limits=(0.0, most), **axes)
                drawn.append(panel)
        return drawn


def _change(own: Estimate) -> str:
    """Return the first and the last known mean over trainings, for a title."""
    from bayesgeom.charts.lines import brief

    means = own.value.mean(axis=0)
    known = means[np.isfinite(means)]
    return f"{brief(known[0])} → {brief(known[-1])}" if len(known) else "not measured"


def _by_layer(values: Float[np.ndarray, "run step layer"]) -> list["Curve"]:
    """Return a curve per layer, the mean over trainings."""
    from bayesgeom.charts.curves import Curve
    from bayesgeom.report.theme import layer_colors

    rows = zip(values.mean(axis=0).T, layer_colors(values.shape[-1]), strict=False)
    return [Curve(name=f"layer {layer}", values=own, color=color) for layer, (own, color) in enumerate(rows)]


def steps_panel(
    title: str,
    unit: str,
    steps: Sequence[str],
    curves: Sequence["Curve"],
    levels: Sequence[tuple[str, float | Float[np.ndarray, " step"]]] = (),
    *,
    is_log: bool = False,
    is_folded: bool = False,
) -> Panel:
    """Draw curves over log steps, with levels for comparison."""
    from bayesgeom.charts.curves import add_curves
    from bayesgeom.charts.lines import add_note
    from bayesgeom.report.theme import log_axes

    panel = Panel.blank(title, is_folded=is_folded)
    if any(np.isfinite(curve.values).any() for curve in curves):
        at = np.array([int(step) for step in steps])
        add_curves(panel.figure, at, curves, unit=unit, levels=levels, log_steps=True)
    else:
        add_note(panel.figure, "not measured")
    if is_log:
        log_axes(panel.figure)
    return panel


def step_table(steps: Sequence[str], columns: Mapping[str, Float[np.ndarray, " step"]]) -> list[str]:
    """Return the lines of a table with a row per snapshot."""
    rows = [(step, *(number_text(column[at]) for column in columns.values())) for at, step in enumerate(steps)]
    return aligned_table([("step", *columns), *rows])


def over_trainings(value: Any, ends: tuple[Any, Any], *, n: int, baselines: Sequence[Baseline] = ()) -> Estimate:
    """Return an estimate over `n` trainings, without an interval for a single one."""
    reason = Reason.ONE_TRAINING if n < 2 else None
    return Estimate.of(value, ends, resampled="trainings", n=n, baselines=baselines, reason=reason)


def dynamics_report(
    runs: Sequence[str], steps: Steps, snapshots: Sequence[Sequence[SnapshotNumbers]], *, n: int
) -> DynamicsReport:
    """Return the estimates of all snapshots of these trainings, joined along steps."""
    names = [name for name, quantity in quantities_of(DynamicsReport).items() if "run" in quantity.dims]
    joined: dict[str, Any] = {
        name: stacked([stacked([snapshot.estimates[name] for snapshot in run]) for run in snapshots]) for name in names
    }
    kl, distance = joined["kl_bits"], joined["pattern_distance_bits"]
    is_itself = (np.arange(len(steps)) == len(steps) - 1) & (distance.value == 0)
    low, high = (np.where(is_itself, 0.0, end) for end in distance.ends)
    by_layer = [[snapshot.arrays["pattern_distance_bits_by_layer"] for snapshot in run] for run in snapshots]
    levels = [level[0] for level in kl.baselines]
    return DynamicsReport(
        runs=tuple(runs),
        steps=tuple(map(str, steps)),
        kl_bits_mean=over_trainings(kl.value.mean(axis=0), seed_interval(kl.value), n=len(runs), baselines=levels),
        pattern_distance_bits_by_layer=np.array(by_layer),
        n=n,
        **{**joined, "pattern_distance_bits": replace(distance, low=low, high=high)},
    )


def film(run: str, steps: Steps, snapshots: Sequence[SnapshotNumbers]) -> ManifoldFilmReport | None:
    """Return the film of a training; None if its architecture provides no vectors."""
    if "points" not in snapshots[-1].arrays:
        return None
    share = stacked([snapshot.estimates["final_axes_share"] for snapshot in snapshots])
    return ManifoldFilmReport(
        run=run,
        steps=tuple(map(str, steps)),
        cloud=np.stack([snapshot.arrays["points"] for snapshot in snapshots]),
        entropy_bits=snapshots[-1].arrays["point_entropy_bits"],
        final_axes_share=share,
        n=share.n,
    )


def viewed(task: WindTunnel, steps: Steps, snapshots: Sequence[SnapshotNumbers]) -> InsideReport:
    """Return what the viewer shows of a training: the same few sequences at every snapshot, or at some of many."""
    at = chosen_among(len(steps), MOST_VIEWED)
    first = snapshots[at[0]].arrays
    numbers = {
        name.removeprefix(VIEWED): np.concatenate([snapshots[index].arrays[name] for index in at])
        for name in first
        if name.startswith(VIEWED)
    }
    n_each, steps_shown = len(first[f"{VIEWED}ids"]), np.array([steps[index] for index in at], np.int32)
    numbers |= {"training_steps": np.repeat(steps_shown, n_each), "answer_ids": first[f"{VIEWED}answer_ids"]}
    return inside_report(numbers, task)


def attention_maps(run: str, steps: Steps, snapshots: Sequence[SnapshotNumbers]) -> AttentionMapsReport | None:
    """Return attention maps at a few steps from first to last; None without attention."""
    if "maps" not in snapshots[-1].arrays:
        return None
    shown = chosen_among(len(steps), N_MAPS)
    whole = np.stack([snapshots[index].arrays["maps"] for index in shown])
    layers = chosen_among(whole.shape[1], MAX_ROWS)
    maps = whole[:, layers]
    largest = maps.max(axis=-1).mean(axis=-1)
    return AttentionMapsReport(
        run=run,
        shown_steps=tuple(str(steps[index]) for index in shown),
        shown_layers=tuple(map(str, layers)),
        maps=maps,
        focus=Estimate.of(largest, n=1, baselines=[Baseline.of("baseline", FIRST, largest[0])]),
        n=1,
    )


@final
@dataclass(frozen=True)
class ThresholdStep:
    """The first snapshot at which a condition holds, and the one before: the change lies between them.

    `step` is NaN if the condition never holds; `before` is NaN if it is unknown.
    """

    step: float
    before: float


NEVER = ThresholdStep(float("nan"), float("nan"))


def stable(steps: Steps, distance: Float[np.ndarray, " step"]) -> ThresholdStep:
    """Return the first snapshot before the last one from which on a distance is at most a tenth of its first value.

    Args:
        steps: Training step of every snapshot.
        distance: The distance to the last snapshot, which is 0 there by definition. NaN counts as far.

    Returns:
        The snapshot; `NEVER` if the distance is within a tenth from the start. If only the last snapshot is within a
        tenth, the step is NaN and `before` is the second-to-last snapshot.

    Example:
        >>> stable((0, 10, 20, 40, 80), np.array([1.0, 0.05, 0.5, 0.08, 0.0]))
        ThresholdStep(step=40.0, before=20.0)
    """
    far = np.flatnonzero(~(distance[:-1] <= NEARBY * distance[0]))
    if len(far) == 0:
        return NEVER
    step, before = steps[far[-1] + 1], max(steps[far[-1]], 1)
    return ThresholdStep(step=float("nan") if step == steps[-1] else float(step), before=float(before))


def times_later(later: ThresholdStep, earlier: ThresholdStep) -> tuple[float, float, float]:
    """Return the ratio of two steps, with the bounds that the spacing of snapshots allows."""
    return later.step / earlier.step, later.before / earlier.step, later.step / earlier.before
