"""The ablation report: KL increase of each ablation, ranked, with paired intervals.

`damage_bits` is the KL increase: KL(exact ‖ model) with the ablation minus KL without it; its baseline is 0. A
component whose ablation leaves the logits bit-identical has no effect (`inert`, `no_effect`): an exact statement.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Bool, Float, Int

from bayesgeom.ablations.component import Ablation
from bayesgeom.ablations.criteria import (
    LEAST_SEQUENCES,
    MODE,
    Criterion,
    Effects,
    blocks_matter,
    key_overlap_finds_it,
    late_heads_are_redundant,
    one_head_is_unique,
    untested,
)
from bayesgeom.ablations.tally import Tally
from bayesgeom.core.edits import Mode
from bayesgeom.results.cells import interval_cell
from bayesgeom.results.report import Headline, Report, aligned
from bayesgeom.stats.bootstrap import ratio_interval

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

N_SHOWN = 20
_ALIKE: Mapping[str, tuple[str, ...]] = {
    "Heads": ("head",),
    "Attention and MLPs": ("attention", "mlp"),
    "Whole blocks": ("block",),
    "Several together": ("set",),
}


@final
@dataclass(frozen=True, kw_only=True)
class AblationReport(Report):
    """Per ablation: increase in KL and entropy error (bits), ratio of KL to the baseline's, change in accuracy.

    Intervals are paired: the same sequences with and without the ablation, resampled together. `damage_by_head` and
    `damage_by_layer_sum` hold single-head ablations only, NaN elsewhere. `layer` and `head` are −1 where an ablation is
    of several components, `attribution_bits` NaN where it was not asked for. `uniform_kl_bits` is the
    uniform predictor's KL on the same sequences.
    """

    name: ClassVar[str] = "ablation"
    title: ClassVar[str] = "Ablation: what breaks without it?"
    about: ClassVar[str] = (
        "Each component is ablated in turn and the model is scored again against the exact posterior on the same "
        "sequences. The number is the KL increase in bits; the baseline is 0. What can be read out of an activation "
        "need not matter to the answer, and this tests whether it does. Whiskers are 95 % paired intervals. The "
        "criteria of the published claims on layers and heads are applied to this checkpoint (`criteria`)."
    )

    mode: Mode
    ablations: tuple[str, ...]
    kinds: tuple[str, ...]
    layer: Int[np.ndarray, " ablation"]
    head: Int[np.ndarray, " ablation"]
    damage_bits: Float[np.ndarray, " ablation"]
    damage_bits_lo: Float[np.ndarray, " ablation"]
    damage_bits_hi: Float[np.ndarray, " ablation"]
    entropy_mae_increase_bits: Float[np.ndarray, " ablation"]
    entropy_mae_increase_bits_lo: Float[np.ndarray, " ablation"]
    entropy_mae_increase_bits_hi: Float[np.ndarray, " ablation"]
    kl_ratio: Float[np.ndarray, " ablation"]
    kl_ratio_lo: Float[np.ndarray, " ablation"]
    kl_ratio_hi: Float[np.ndarray, " ablation"]
    accuracy_change: Float[np.ndarray, " ablation"]
    accuracy_change_lo: Float[np.ndarray, " ablation"]
    accuracy_change_hi: Float[np.ndarray, " ablation"]
    attribution_bits: Float[np.ndarray, " ablation"]
    inert: Bool[np.ndarray, " ablation"]
    damage_bits_by_position: Float[np.ndarray, "ablation position"]
    damage_by_head: Float[np.ndarray, "layer head"]
    damage_by_layer_sum: Float[np.ndarray, " layer"]
    baseline_kl_bits: float
    baseline_entropy_mae_bits: float
    top_damage_bits: float
    top_to_second_ratio: float
    share_above_half_of_top: float
    attribution_rank_correlation: float
    key_overlap_pick: str
    intervals: Mapping[str, tuple[float, float]]
    nulls: Mapping[str, float]
    n: int
    uniform_kl_bits: float = math.nan  # older reports do not hold it

    def ranked(self) -> list[int]:
        """Indices of the ablations, largest KL increase first."""
        return [int(index) for index in np.argsort(-self.damage_bits, kind="stable")]

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Ablations that leave every logit bit-identical."""
        return tuple(label for label, is_inert in zip(self.ablations, self.inert, strict=True) if is_inert)

    def criteria(self) -> tuple[Criterion, ...]:
        """Apply the criteria of claims A1, A2, A3 and A5 to this checkpoint.

        The rules are those of the claims file, so they hold for mean ablation of at least 512 sequences; any other
        report is told what to run.
        """
        heads, blocks = self._of_kind("head"), np.array([kind == "block" for kind in self.kinds])
        ends = (self.entropy_mae_increase_bits, self.entropy_mae_increase_bits_lo, self.entropy_mae_increase_bits_hi)
        increases = [np.where(self.inert, 0.0, end)[blocks] for end in ends]
        named = [label for label, is_block in zip(self.ablations, blocks, strict=True) if is_block]
        first = [self.damage_bits[i] for i, k in enumerate(self.kinds) if k == "attention" and self.layer[i] == 0]
        found = (
            blocks_matter(named, *increases, own_error_bits=self.baseline_entropy_mae_bits),
            one_head_is_unique(
                heads,
                own_kl_bits=self.baseline_kl_bits,
                layer_attention_bits=float(first[0]) if first else math.nan,
                is_layer_ablated=bool(first),
            ),
            late_heads_are_redundant(
                heads, n_layers=len(self.damage_by_layer_sum), uniform_kl_bits=self.uniform_kl_bits
            ),
            key_overlap_finds_it(heads, [pick for pick in self.key_overlap_pick.split("; ") if pick]),
        )
        reason = self._other_measurement()
        return tuple(untested(own, reason) for own in found) if reason else found

    def _other_measurement(self) -> str:
        """Why the criteria of the claims file do not hold for this report; "" where they do."""
        if np.isnan(self.entropy_mae_increase_bits).all():
            return "attribution is a preview and no ablation; run with --method exact"
        if self.mode != MODE:
            return f"the criterion is of {MODE} ablation, this is {self.mode} ablation; run with --mode {MODE}"
        if self.n < LEAST_SEQUENCES:
            return (
                f"the criterion asks for {LEAST_SEQUENCES} sequences, this has {self.n}; run with --n {LEAST_SEQUENCES}"
            )
        return ""

    def _of_kind(self, kind: str) -> Effects:
        # What leaves every logit bit-identical has exactly no effect and needs no interval.
        lo, hi = (np.where(self.inert, 0.0, end) for end in (self.damage_bits_lo, self.damage_bits_hi))
        everything = Effects(
            labels=self.ablations, layer=self.layer, kl_increase_bits=self.damage_bits, lo=lo, hi=hi
        )  # fmt: skip
        return everything.where(np.array([own == kind for own in self.kinds]))

    def headlines(self) -> Sequence[Headline]:
        top = self.ablations[self.ranked()[0]]
        return (
            self.scalar("top_damage_bits", f"largest KL increase: {top}", unit="bits", null_label="no effect"),
            *self._key_overlap(),
            self.scalar("top_to_second_ratio", "largest / second-largest KL increase of a single head"),
            self.scalar("share_above_half_of_top", "share of heads above half of the largest"),
            self.scalar("baseline_kl_bits", "KL without ablation", unit="bits"),
            *self._attribution(),
        )

    def _key_overlap(self) -> Sequence[Headline]:
        """KL increase of each head that key overlap would have chosen, and its rank among the heads ablated."""
        if not self.key_overlap_pick:
            return ()
        return tuple(self._picked(pick) for pick in self.key_overlap_pick.split("; "))

    def _picked(self, pick: str) -> Headline:
        heads = [index for index in self.ranked() if self.kinds[index] == "head"]
        named = pick.split(" ", maxsplit=1)[0]
        at = [f"L{self.layer[i]}H{self.head[i]}" == named for i in heads]
        label = f"least key overlap: {pick}"
        if not any(at):
            return Headline(metric="damage_bits", label=f"{label}, not ablated alone", value=math.nan, unit="bits")
        rank = at.index(True)
        place = f"{label}, rank {rank + 1} of {len(heads)} heads by KL increase"
        return self.entry("damage_bits", (heads[rank],), place, unit="bits", null_label="no effect")

    def _attribution(self) -> Sequence[Headline]:
        if math.isnan(self.attribution_rank_correlation):
            return ()
        return (self.scalar("attribution_rank_correlation", "rank correlation of attribution with KL increase"),)

    def figure(self) -> "Figure":
        from bayesgeom.ablations.drawing import Alike, ablation_figure

        groups = []
        for title, kinds in _ALIKE.items():
            alike = [index for index in self.ranked() if self.kinds[index] in kinds]
            if chosen := alike[:N_SHOWN]:
                group = Alike(
                    title=title,
                    n=len(alike),
                    labels=[self.ablations[index] for index in chosen],
                    damage=self.damage_bits[chosen],
                    interval=(self.damage_bits_lo[chosen], self.damage_bits_hi[chosen]),
                    by_position=self.damage_bits_by_position[chosen],
                )
                groups.append(group)
        heads_title = f"Heads, {self.mode} ablation (baseline: 0)"
        return ablation_figure(self.title, groups, self.damage_by_head, heads_title=heads_title)

    def table(self, *, most: int = N_SHOWN) -> str:
        """The ranked list as the command line prints it."""
        rows: list[tuple[str, ...]] = [
            ("ablation", "KL increase (bits)", "95 % interval", "KL ratio", "entropy error +", "")
        ]
        rows += [self._row(index) for index in self.ranked()[:most]]
        n_more = len(self.ablations) - most
        more = [f"… and {n_more} with smaller KL increases: report.json and arrays.safetensors (--out) hold all"]
        return "\n".join([*aligned(rows), *(more if n_more > 0 else [])])

    def _row(self, index: int) -> tuple[str, ...]:
        return (
            self.ablations[index],
            f"{self.damage_bits[index]:.5f}",
            interval_cell(self.damage_bits_lo[index], self.damage_bits_hi[index], ".5f"),
            f"{self.kl_ratio[index]:.2f}",
            f"{self.entropy_mae_increase_bits[index]:+.5f}",
            "no_effect" if self.inert[index] else "",
        )


@final
@dataclass(frozen=True, kw_only=True)
class Context:
    """What a report needs beside the tally."""

    battery: Sequence[Ablation]
    mode: Mode
    n_layers: int
    n_heads: int
    seed: int
    attribution_bits: Float[np.ndarray, " ablation"]
    key_overlap_pick: str
    uniform_kl_bits: float


def ablation_report(tally: Tally, context: Context) -> AblationReport:
    """Intervals, ranks and summaries of a finished tally."""
    effects = _effects(tally, context.seed)
    singles = [a.components[0] if len(a.components) == 1 else None for a in context.battery]
    damage = effects["damage_bits"]
    by_head = np.full((context.n_layers, context.n_heads), np.nan)
    for component, value in zip(singles, damage, strict=True):
        if component is not None and component.head is not None:
            by_head[component.layer, component.head] = value
    heads = np.sort(by_head[np.isfinite(by_head)])[::-1]
    baseline = tally.baseline.sum(axis=1) / tally.done
    shares = (tally.profile / tally.done)[:, 0]
    both_known = np.isfinite(context.attribution_bits)
    top = int(damage.argmax())
    return AblationReport(
        mode=context.mode,
        ablations=tuple(ablation.label for ablation in context.battery),
        kinds=tuple("set" if component is None else component.kind for component in singles),
        layer=np.array([-1 if c is None else c.layer for c in singles]),
        head=np.array([-1 if c is None or c.head is None else c.head for c in singles]),
        **effects,
        attribution_bits=context.attribution_bits,
        inert=tally.inert,
        damage_bits_by_position=shares[1:] - shares[0],
        damage_by_head=by_head,
        damage_by_layer_sum=np.where(np.isfinite(by_head).any(axis=1), np.nansum(by_head, axis=1), np.nan),
        baseline_kl_bits=float(baseline[0]),
        baseline_entropy_mae_bits=float(baseline[1]),
        top_damage_bits=float(damage[top]),
        top_to_second_ratio=float(heads[0] / heads[1]) if len(heads) > 1 and heads[1] > 0 else math.nan,
        share_above_half_of_top=float((heads > heads[0] / 2).mean()) if len(heads) else math.nan,
        attribution_rank_correlation=_rank_correlation(context.attribution_bits[both_known], damage[both_known]),
        key_overlap_pick=context.key_overlap_pick,
        intervals={"top_damage_bits": (float(effects["damage_bits_lo"][top]), float(effects["damage_bits_hi"][top]))},
        nulls={"top_damage_bits": 0.0},
        n=tally.done,
        uniform_kl_bits=context.uniform_kl_bits,
    )


def _effects(tally: Tally, seed: int) -> dict[str, Float[np.ndarray, " ablation"]]:
    """Each effect with its paired bootstrap interval over units."""
    sizes = tally.counts[:, None].astype(np.float64)
    found: dict[str, np.ndarray] = {}
    for index, metric in enumerate(("damage_bits", "entropy_mae_increase_bits", "accuracy_change")):
        change = tally.sums[:, index] - tally.baseline[index]
        found[metric] = change.sum(axis=1) / tally.done
        found[f"{metric}_lo"], found[f"{metric}_hi"] = ratio_interval(change.T, sizes, seed=seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        found["kl_ratio"] = tally.sums[:, 0].sum(axis=1) / tally.baseline[0].sum()
    ratio = ratio_interval(tally.sums[:, 0].T, tally.baseline[0][:, None], seed=seed)
    found["kl_ratio_lo"], found["kl_ratio_hi"] = ratio
    return found


def _rank_correlation(x: Float[np.ndarray, " a"], y: Float[np.ndarray, " a"]) -> float:
    from bayesgeom.stats.correlation import spearman

    return float(spearman(x, y)) if len(x) > 2 else math.nan
