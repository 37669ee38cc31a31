"""Pictures of one training: values at every snapshot on the last snapshot's axes, and attention maps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.dynamics.measure import SnapshotNumbers, interval_of
from bayesgeom.dynamics.trainings import TrainingRun
from bayesgeom.report.estimate import Baseline, Estimate, Quantity, Share, Unit, with_interval
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.storage import quantities_of
from bayesgeom.report.tables import Headline, headline_of

RANDOM_PLANE, FIRST = "random plane", "first snapshot"
N_MAPS, MAX_ROWS = 4, 3  # steps drawn by default, and layers


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
    title: ClassVar[str] = "Value manifold over training"

    limit: ClassVar[str] = "at most 3,072 scored positions"

    run: str
    steps: tuple[str, ...]
    cloud: Annotated[Float[np.ndarray, "step point component"], Unit("1")]
    entropy_bits: Annotated[Float[np.ndarray, " point"], Unit("bits")]
    final_axes_share: Annotated[Estimate, Share("step", label="variance along the last snapshot's PC1 and PC2")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        label = quantities_of(type(self))["final_axes_share"].label
        at_steps = sorted({0, len(self.steps) // 2, len(self.steps) - 1})
        return [
            headline_of(self, "final_axes_share", at=(at,), label=f"{label}, step {int(self.steps[at]):,}")
            for at in at_steps
        ]

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.film import film_panel

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
    title: ClassVar[str] = "Attention over training"
    limit: ClassVar[str] = "the maps show one example"

    run: str
    shown_steps: tuple[str, ...]
    shown_layers: tuple[str, ...]
    maps: Annotated[Float[np.ndarray, "shown_step shown_layer query_pos key_pos"], Unit("1")]
    focus: Annotated[Estimate, Quantity("shown_step shown_layer", label="largest weight of a row")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        return tuple(
            headline_of(
                self,
                "focus",
                at=(-1, row),
                label=f"largest weight of a row, layer {layer}, step {int(self.shown_steps[-1]):,}",
            )
            for row, layer in enumerate(self.shown_layers)
        )

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.maps import map_panels

        steps = [f"{int(step):,}" for step in self.shown_steps]
        return map_panels(self.maps, steps, self.shown_layers, self.focus.value)


def film(run: TrainingRun, found: Sequence[SnapshotNumbers], *, n: int, seed: int) -> ManifoldFilmReport | None:
    """Return the film of a training; None if its architecture provides no vectors."""
    if "points" not in found[-1].numbers:
        return None
    n = found[-1].count("final_axes_share", n)
    share = np.stack([own.numbers["final_axes_share"] for own in found])
    ends = interval_of(share.T, seed=seed, scale="share")
    plane = np.array([own.numbers["random_final_axes_share"][0] for own in found])
    return ManifoldFilmReport(
        run=run.name,
        steps=tuple(str(step) for step in run.steps),
        cloud=np.stack([own.numbers["points"] for own in found]),
        entropy_bits=found[-1].numbers["point_entropy_bits"],
        final_axes_share=with_interval(share[:, 0], ends, n=n, baselines=[Baseline.of("chance", RANDOM_PLANE, plane)]),
        n=n,
    )


def attention_maps(
    run: TrainingRun, found: Sequence[SnapshotNumbers], at: Sequence[int] | None
) -> AttentionMapsReport | None:
    """Return attention maps at the chosen steps, by default a few from first to last; None without attention."""
    if "maps" not in found[-1].numbers:
        return None
    last = len(run.steps) - 1
    chosen = sorted({int(index) for index in np.linspace(0, last, min(N_MAPS, last + 1)).round()})
    if at is not None:
        chosen = [run.steps.index(step) for step in at]
    whole = np.stack([found[index].numbers["maps"] for index in chosen])
    layers = sorted({int(layer) for layer in np.linspace(0, whole.shape[1] - 1, min(MAX_ROWS, whole.shape[1])).round()})
    maps = whole[:, layers]
    return AttentionMapsReport(
        run=run.name,
        shown_steps=tuple(str(run.steps[index]) for index in chosen),
        shown_layers=tuple(str(layer) for layer in layers),
        maps=maps,
        focus=focus_of(maps.max(axis=-1).mean(axis=-1)),
        n=1,
    )


def focus_of(largest: Float[np.ndarray, "shown_step shown_layer"]) -> Estimate:
    """Return the mean largest weights of one sequence; the baseline is the first snapshot."""
    return Estimate.of(largest, n=1, baselines=[Baseline.of("baseline", FIRST, largest[0])])
