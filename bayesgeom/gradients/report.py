"""The report on the gradient laws: do they hold, and does attention already go where it would lower the loss?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from jaxtyping import Float

from bayesgeom.gradients.capture import Targets
from bayesgeom.gradients.identities import IDENTITIES
from bayesgeom.gradients.tally import BIN_EDGES, LayerTally
from bayesgeom.results.report import Headline, Report, aligned
from bayesgeom.stats.bootstrap import mean_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_PER_SEQUENCE = ("correlation", "routing_norm", "value_norm", "value_elasticity")


@final
@dataclass(frozen=True, kw_only=True)
class GradientReport(Report):
    """Gradients of one sequence's loss (nats, mean over its scored positions) at every head's attention.

    - `identity_error`: largest difference between a law and autograd, relative to the layer's largest gradient of that
      kind; `identity_error_nats` is the difference itself. NaN where a model has no such point.
    - `correlation`: Spearman of attention with advantage within one query's row, mean over scored rows of at least
      three visible keys; `_null` pairs the attention with another sequence's advantage. Shuffled keys give 0.
    - `routing_norm`, `value_norm`: root mean square of ∂L/∂s over visible pairs, of ‖∂L/∂v‖ over positions;
      `value_elasticity`, of ‖∂L/∂v‖·‖v‖: nats per relative change of a value, as ∂L/∂s is nats per e-fold of the odds.
    - `advantage_by_attention`: mean advantage, in units of its row's root mean square, by `attention_bin`: log2 of
      attention over uniform attention, lower edges after the first.
    - `mean_advantage_nats`, `mean_attention`: mean maps at scored positions; the second is the responsibility matrix.
    """

    name: ClassVar[str] = "gradients"
    title: ClassVar[str] = "Gradient laws: does attention go where it lowers the loss?"
    about: ClassVar[str] = (
        "Descent raises the score of a key where its advantage is positive: attending to it would lower the loss, "
        "compared with attending as now. It moves each value along the gradients of the queries that attend to it. "
        "Both laws are exact; their largest deviation from automatic differentiation is given. A head whose attention "
        "goes where its advantage is has a positive correlation. The null pairs it with another sequence's advantage "
        "at the same place: what remains is owed to position. A trained head has little left to gain, so a correlation "
        "near zero is no sign of bad attention."
    )

    targets: Targets
    identitys: tuple[str, ...]
    identity_error: Float[np.ndarray, "identity layer"]
    identity_error_nats: Float[np.ndarray, "identity layer"]
    loss_nats: float
    largest_identity_error: float
    largest_identity_error_nats: float
    mean_correlation: float
    correlation: Float[np.ndarray, "layer head"]
    correlation_lo: Float[np.ndarray, "layer head"]
    correlation_hi: Float[np.ndarray, "layer head"]
    correlation_null: Float[np.ndarray, "layer head"]
    routing_norm: Float[np.ndarray, "layer head"]
    routing_norm_lo: Float[np.ndarray, "layer head"]
    routing_norm_hi: Float[np.ndarray, "layer head"]
    value_norm: Float[np.ndarray, "layer kv_head"]
    value_norm_lo: Float[np.ndarray, "layer kv_head"]
    value_norm_hi: Float[np.ndarray, "layer kv_head"]
    value_elasticity: Float[np.ndarray, "layer kv_head"]
    value_elasticity_lo: Float[np.ndarray, "layer kv_head"]
    value_elasticity_hi: Float[np.ndarray, "layer kv_head"]
    attention_bin: Float[np.ndarray, " edge"]
    advantage_by_attention: Float[np.ndarray, "layer head bin"]
    advantage_by_attention_null: Float[np.ndarray, "layer head bin"]
    pairs_by_attention: Float[np.ndarray, "layer head bin"]
    mean_advantage_nats: Float[np.ndarray, "layer head query_pos key_pos"]
    mean_attention: Float[np.ndarray, "layer head query_pos key_pos"]
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int

    def headlines(self) -> Sequence[Headline]:
        excess = self.correlation - self.correlation_null
        top = np.unravel_index(int(np.nanargmax(excess)), excess.shape) if np.isfinite(excess).any() else (0, 0)
        layer, head = (int(i) for i in top)
        return (
            self.scalar("largest_identity_error", "laws against autograd, largest relative error"),
            self.scalar("mean_correlation", "attention with advantage, mean over heads", null_label="another sequence"),
            self.entry(
                "correlation", (layer, head), f"most above its null: L{layer}H{head}", null_label="another sequence"
            ),
            self.scalar("largest_identity_error_nats", "laws against autograd, largest error", unit="nats"),
            self.scalar("loss_nats", "loss", unit="nats"),
        )

    def figure(self) -> "Figure":
        from bayesgeom.gradients.drawing import Binned, HeadMap, gradients_figure

        maps = (
            HeadMap(title="Attention with advantage, within rows", values=self.correlation),
            HeadMap(title="The same with another sequence's advantage (the null)", values=self.correlation_null),
            HeadMap(title="Routing: root mean square of ∂L/∂s, log10", values=self.routing_norm, is_norm=True),
            HeadMap(
                title="Values: root mean square of ‖∂L/∂v‖·‖v‖, log10", values=self.value_elasticity, head="key head",
                is_norm=True,
            ),
        )  # fmt: skip
        binned = Binned(
            edges=self.attention_bin,
            values=self.advantage_by_attention,
            null=self.advantage_by_attention_null,
            pairs=self.pairs_by_attention,
        )
        return gradients_figure(self.title, maps, binned)

    def table(self) -> str:
        """What the command line prints: the laws, then every layer's heads."""
        worst = [
            f"{name}: {np.nanmax(row):.1e}" if np.isfinite(row).any() else f"{name}: no such point"
            for name, row in zip(self.identitys, self.identity_error, strict=True)
        ]
        rows: list[tuple[str, ...]] = [
            ("layer", "correlation by head (null)", "routing norm", "value norm", "value elasticity")
        ]
        for layer in range(len(self.correlation)):
            pairs = zip(self.correlation[layer], self.correlation_null[layer], strict=True)
            norms = (self.routing_norm, self.value_norm, self.value_elasticity)
            heads = "  ".join(f"{value:+.2f} ({null:+.2f})" for value, null in pairs)
            rows.append((str(layer), heads, *(f"{norm[layer].mean():.2e}" for norm in norms)))
        return "\n".join([f"relative error against autograd: {', '.join(worst)}", "", *aligned(rows)])


def gradient_report(
    loss: Float[np.ndarray, " sequence"],
    tallies: Sequence[LayerTally],
    errors: Float[np.ndarray, "layer identity 2"],
    *,
    targets: Targets,
    seed: int,
) -> GradientReport:
    """Means and intervals over sequences of the tallies of all layers. `errors` are differences and their scales."""
    n = len(loss)
    rows = {name: np.stack([vars(t)[name].cpu().numpy() for t in tallies], axis=1) for name in _PER_SEQUENCE}
    null = np.stack([t.correlation_null.cpu().numpy() for t in tallies], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = (errors[..., 0] / errors[..., 1]).T
    binned = np.stack([t.binned.cpu().numpy() for t in tallies], axis=1)
    maps = np.stack([t.maps.cpu().numpy() for t in tallies], axis=1) / n
    overall = rows["correlation"].reshape(n, -1).mean(axis=1)
    lo, hi = mean_interval(np.stack([overall, loss], axis=1), seed=seed)
    return GradientReport(
        targets=targets,
        identitys=IDENTITIES,
        identity_error=relative,
        identity_error_nats=errors[..., 0].T,
        loss_nats=float(loss.mean()),
        largest_identity_error=float(np.nanmax(relative)),
        largest_identity_error_nats=float(np.nanmax(errors[..., 0])),
        mean_correlation=float(overall.mean()),
        **_with_bounds(rows, seed),
        correlation_null=null.mean(axis=0),
        attention_bin=np.array(BIN_EDGES),
        advantage_by_attention=_ratio(binned[0], binned[1]),
        advantage_by_attention_null=_ratio(binned[2], binned[3]),
        pairs_by_attention=binned[1],
        mean_advantage_nats=maps[0].astype(np.float32),
        mean_attention=maps[1].astype(np.float32),
        intervals={
            "mean_correlation": (float(lo[0]), float(hi[0])), "loss_nats": (float(lo[1]), float(hi[1])),
        },
        nulls={"mean_correlation": float(null.mean())},
        n=n,
    )  # fmt: skip


def _with_bounds(rows: Mapping[str, Float[np.ndarray, "sequence layer head"]], seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, values in rows.items():
        lo, hi = mean_interval(values, seed=seed)
        found |= {name: values.mean(axis=0), f"{name}_lo": lo, f"{name}_hi": hi}
    return found


def _ratio(
    above: Float[np.ndarray, "layer head bin"], below: Float[np.ndarray, "layer head bin"]
) -> Float[np.ndarray, "layer head bin"]:
    return np.where(below > 0, above / np.maximum(below, 1), np.nan)
