"""Pictures of one training: values at every snapshot on the last snapshot's axes, and attention maps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.dynamics.measure import SnapshotNumbers, interval_of
from bayesgeom.dynamics.trainings import TrainingRun
from bayesgeom.results.estimate import Baseline, Estimate, Quantity, Share, Unit
from bayesgeom.results.estimators import with_interval
from bayesgeom.results.findings import numbers
from bayesgeom.results.headline import Headline
from bayesgeom.results.report import Report, headline_of
from bayesgeom.results.storage import quantities_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

RANDOM_PLANE, FIRST = "random plane", "first snapshot"
N_MAPS, MAX_ROWS = 4, 3  # steps drawn by default, and layers


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ManifoldFilmReport(Report):
    """Centered vectors of the last layer at some scored positions, along PC1 and PC2 of the last snapshot.

    `final_axes_share`: the share of a snapshot's variance along these axes, next to that along a random plane. It has
    no verdict: the axes are fitted to the last snapshot, where even a random network exceeds random planes and others.
    """

    name: ClassVar[str] = "manifold_film"
    title: ClassVar[str] = "The value manifold over training"
    about: ClassVar[str] = (
        "Each dot is the last layer's value vector at one scored position; all snapshots use the same sequences. The "
        "axes are the two directions in which these vectors vary most at the end of training; the color is the exact "
        "entropy. Press the button, or move the slider. If entropy is a function of position, as when keys never "
        "repeat, any code for position would order the colors, too. The share of the variance along these axes has no "
        "verdict: they are fitted to the last snapshot, so it holds more than others by construction."
    )

    limit: ClassVar[str] = "at most 3,072 scored positions are read"

    run: str
    steps: tuple[str, ...]
    cloud: Annotated[Float[np.ndarray, "step point component"], Unit("1")]
    entropy_bits: Annotated[Float[np.ndarray, " point"], Unit("bits")]
    final_axes_share: Annotated[Estimate, Share("step", label="variance along the last snapshot's PC1 and PC2")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        label = quantities_of(type(self))["final_axes_share"].label
        at_steps = sorted({0, len(self.steps) // 2, len(self.steps) - 1})
        lines = [
            headline_of(self, "final_axes_share", at=(at,), label=f"{label}, step {int(self.steps[at]):,}")
            for at in at_steps
        ]
        ends = f"{lines[0].value_text} of the variance at the first snapshot, {lines[-1].value_text} at the last"
        sentence = (
            f"The plane of the last snapshot's first two components holds {ends}. It is fitted to the last snapshot, "
            "where even a random network exceeds both a random plane and other snapshots: this shows no structure."
        )
        return (*lines[:-1], replace(lines[-1], finding=sentence, short_label=f"share of the {lines[-1].label}"))

    def plot(self) -> "Figure":
        from bayesgeom.charts.film import film_figure
        from bayesgeom.results.captions import with_captions

        axes = ("last snapshot's PC1 (activation units)", "last snapshot's PC2 (activation units)")
        figure = film_figure(
            f"{self.title} — {self.run}",
            self.steps,
            self.cloud,
            self.entropy_bits,
            colored_by="entropy (bits)",
            axes=axes,
        )
        return with_captions(figure, (numbers(self.headlines()[-1]),))


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionMapsReport(Report):
    """Attention of one sequence, mean over heads, at some steps and layers.

    `focus`: the mean largest weight of a row. Its baseline is the first snapshot.
    """

    name: ClassVar[str] = "attention_maps"
    title: ClassVar[str] = "Attention over training"
    limit: ClassVar[str] = "the maps show one example"
    about: ClassVar[str] = (
        "Attention from the scored positions (rows) to all positions (columns) of one sequence, mean over heads, at a "
        "few steps of training. A map that looks like the last one hardly changes later. The number is the largest "
        "weight of a row, mean over rows; the baseline is the first snapshot."
    )

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

    def plot(self) -> "Figure":
        from bayesgeom.charts.maps import maps_figure

        steps = [f"{int(step):,}" for step in self.shown_steps]
        captions = [
            f"Largest weight of a row, mean over rows: {own.text()}; at the first snapshot {layer[0].text()}."
            for layer in (self.focus[:, row] for row in range(len(self.shown_layers)))
            for own in (layer[column] for column in range(len(steps)))
        ]
        return maps_figure(f"{self.title} — {self.run}", self.maps, steps, self.shown_layers, captions)


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
