"""The report on the gradient laws: do they hold, and does attention correlate with its advantage for the loss?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core.text import fitted, number_text
from bayesgeom.gradients.capture import Targets
from bayesgeom.gradients.tally import BIN_EDGES, IDENTITIES, OTHER, LayerTally
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Signed, Unit, mean_estimate
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class GradientReport(Report):
    """Gradient descent raises the score of a key if its advantage is positive: more attention to it lowers the loss.

    It moves each value along the gradients of the queries that attend to it. Both laws are exact; their largest
    deviation from automatic differentiation is reported. The correlation is positive for a head that attends to keys
    with high advantage. The baseline pairs its attention with another sequence's advantage at the same position, which
    shows what position alone explains. A trained head has little left to gain, so a correlation near zero does not
    indicate poor attention.

    Fields: gradients of each sequence's loss (nats, mean over scored positions) at every head's attention.

    - `identity_error`: largest difference between a law and autograd, relative to the layer's largest gradient of that
      kind; `identity_error_nats` is the difference itself. NaN if the model has no such hook point.
    - `correlation`: Spearman of attention with advantage within one query's row, mean over scored rows of at least
      three visible keys. The baseline pairs the attention with another sequence's advantage. Shuffled keys give 0.
    - `routing_norm`: root mean square of ∂L/∂s over visible pairs (nats per e-fold change of the odds). `value_norm`:
      that of ‖∂L/∂v‖ over positions. `value_elasticity`: that of ‖∂L/∂v‖·‖v‖ (nats per relative change of a value).
    - `advantage_by_attention`: mean advantage, in units of its row's root mean square, by `attention_bin`: log2 of
      attention over uniform attention, lower edges after the first.
    - `mean_advantage_nats`, `mean_attention`: mean maps at scored positions; the second is the responsibility matrix.
    """

    name: ClassVar[str] = "gradients"
    title: ClassVar[str] = "Gradient laws of attention"

    targets: Targets
    laws: tuple[str, ...]
    identity_error: Annotated[Estimate, Quantity("law layer", label="laws against autograd, relative error")]
    identity_error_nats: Annotated[Estimate, Quantity("law layer", unit="nats", label="laws against autograd")]
    loss_nats: Annotated[Estimate, NonNegative(unit="nats", better="lower", label="loss")]
    mean_correlation: Annotated[
        Estimate, Signed(better="higher", label="correlation of attention with advantage, mean over heads")
    ]
    correlation: Annotated[
        Estimate, Signed("layer head", better="higher", label="correlation of attention with advantage")
    ]
    routing_norm: Annotated[Estimate, NonNegative("layer head", unit="nats", label="root mean square of ∂L/∂s")]
    value_norm: Annotated[Estimate, NonNegative("layer kv_head", unit="nats", label="root mean square of ‖∂L/∂v‖")]
    value_elasticity: Annotated[
        Estimate, NonNegative("layer kv_head", unit="nats", label="root mean square of ‖∂L/∂v‖·‖v‖")
    ]
    attention_bin: Annotated[Float[np.ndarray, " edge"], Unit("1")]
    advantage_by_attention: Annotated[
        Estimate, Quantity("layer head bin", label="advantage in units of its row's root mean square")
    ]
    pairs_by_attention: Annotated[Float[np.ndarray, "layer head bin"], Unit("1")]
    mean_advantage_nats: Annotated[Float[np.ndarray, "layer head query_pos key_pos"], Unit("nats")]
    mean_attention: Annotated[Float[np.ndarray, "layer head query_pos key_pos"], Unit("1")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        at, own = self._most_above()
        most, count = f"correlation most above baseline: L{at[0]}H{at[1]}", self.correlation.value.size
        worst, worst_nats = _largest(self.identity_error.value), _largest(self.identity_error_nats.value)
        return (
            headline_of(self, "identity_error", at=worst, label="largest relative error against autograd"),
            headline_of(self, "mean_correlation"),
            headline_of(self, "correlation", at, most, own=own, chosen_of=count),
            headline_of(self, "identity_error_nats", at=worst_nats, label="largest error against autograd"),
            headline_of(self, "loss_nats"),
        )

    def _most_above(self) -> tuple[tuple[int, ...], Estimate]:
        """Return the head most above its baseline, with an interval that allows for the choice."""
        own = self.correlation
        level, (low, high) = own.baseline(OTHER).value, own.ends
        above = Estimate.of(own.value - level, (low - level, high - level), n=own.n, reason=own.reason)
        at, chosen = above.extreme("largest")
        own, (lo, hi) = own[at], [np.asarray(end + level[at]) for end in chosen.ends]
        return at, replace(own, low=lo, high=hi, reason=chosen.reason)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.gradients.drawing import binned_panel, correlation_panel, norm_panel

        other, binned = self.correlation.baseline(OTHER).value, self.advantage_by_attention
        values = "Values: rms of ‖∂L/∂v‖·‖v‖, log10"
        return (
            correlation_panel("Attention with advantage, within rows", self.correlation.value),
            correlation_panel("With another sequence's advantage (baseline)", other),
            norm_panel("Routing: rms of ∂L/∂s, log10", self.routing_norm.value),
            norm_panel(values, self.value_elasticity.value, "key head"),
            *(
                binned_panel(layer, self.attention_bin, *own)
                for layer, own in enumerate(
                    zip(binned.value, binned.baseline(OTHER).value, self.pairs_by_attention, strict=True)
                )
            ),
        )

    def table(self) -> str:
        """Return the errors of the laws, then every layer's heads."""
        worst = [
            f"{name}: {number_text(np.nanmax(row))}" if np.isfinite(row).any() else f"{name}: no such point"
            for name, row in zip(self.laws, self.identity_error.value, strict=True)
        ]
        rows: list[tuple[str, ...]] = [
            ("layer", "correlation by head (baseline)", "routing norm", "value norm", "value elasticity")
        ]
        found, other = self.correlation.value, self.correlation.baseline(OTHER).value
        for layer in range(len(found)):
            norms = (self.routing_norm, self.value_norm, self.value_elasticity)
            heads = "  ".join(
                f"{number_text(a)} ({number_text(b)})" for a, b in zip(found[layer], other[layer], strict=True)
            )
            rows.append((str(layer), heads, *(number_text(norm.value[layer].mean()) for norm in norms)))
        return "\n".join([f"relative error against autograd: {', '.join(worst)}", "", *fitted(rows)])


def gradient_report(
    loss: Float[np.ndarray, " sequence"],
    tallies: Sequence[LayerTally],
    errors: Float[np.ndarray, "layer law 2"],
    *,
    targets: Targets,
    seed: int,
) -> GradientReport:
    """Return the report: means and intervals over sequences; `errors` are differences and their scales."""
    n = len(loss)
    by_head = np.stack([tally.correlation.cpu().numpy() for tally in tallies], axis=1)
    by_other = np.stack([tally.other_correlation.cpu().numpy() for tally in tallies], axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = (errors[..., 0] / errors[..., 1]).T
    binned = np.stack([tally.binned.cpu().numpy() for tally in tallies], axis=1)
    maps = np.stack([tally.maps.cpu().numpy() for tally in tallies], axis=1) / n

    def other(level: Float[np.ndarray, "*axes"] | float) -> tuple[Baseline, ...]:
        return (Baseline.of("permutation", OTHER, level),)

    def norm(of: Sequence[Float64[Tensor, "sequence head"]]) -> Estimate:
        return mean_estimate(np.stack([own.cpu().numpy() for own in of], axis=1), seed=seed)

    return GradientReport(
        targets=targets,
        laws=IDENTITIES,
        identity_error=Estimate.of(relative, n=n),
        identity_error_nats=Estimate.of(errors[..., 0].T, n=n),
        loss_nats=mean_estimate(loss, seed=seed),
        mean_correlation=mean_estimate(
            by_head.reshape(n, -1).mean(axis=1), seed=seed, baselines=other(float(by_other.mean()))
        ),
        correlation=mean_estimate(by_head, seed=seed, baselines=other(by_other.mean(axis=0))),
        routing_norm=norm([tally.routing_norm for tally in tallies]),
        value_norm=norm([tally.value_norm for tally in tallies]),
        value_elasticity=norm([tally.value_elasticity for tally in tallies]),
        attention_bin=np.array(BIN_EDGES),
        advantage_by_attention=Estimate.of(
            _ratio(binned[0], binned[1]), n=n, baselines=other(_ratio(binned[2], binned[3]))
        ),
        pairs_by_attention=binned[1],
        mean_advantage_nats=maps[0].astype(np.float32),
        mean_attention=maps[1].astype(np.float32),
        n=n,
    )


def _largest(values: Float[np.ndarray, "row column"]) -> tuple[int, int]:
    """Return the index of the largest value, ignoring NaN; the first entry if all are NaN."""
    if not np.isfinite(values).any():
        return 0, 0
    row, column = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return int(row), int(column)


def _ratio(
    above: Float[np.ndarray, "layer head bin"], below: Float[np.ndarray, "layer head bin"]
) -> Float[np.ndarray, "layer head bin"]:
    return np.where(below > 0, above / np.maximum(below, 1), np.nan)
