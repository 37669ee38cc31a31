"""Attention sink: how much more attention the first token gets than under uniform attention.

Reference: Xiao et al. 2024, arXiv:2309.17453 (the name).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
import torch

from bayesgeom.core.run import PATTERN, Run
from bayesgeom.probes.base import Control, Needs, Probe, planted_run, planted_trials
from bayesgeom.report.estimate import Baseline, Estimate, Quantity, mean_estimate, of_untrained
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of

UNIFORM = Baseline.of("chance", "uniform attention", 0.0)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionSinkReport(Report):
    """Heads that need no information often attend to the first token.

    The number is the attention on it minus that of uniform attention over all visible tokens, at scored positions after
    the first: 0 by chance, near 1 if a head attends to nothing else.
    """

    name: ClassVar[str] = "attention_sink"
    title: ClassVar[str] = "Attention sink: does the first token get more attention than others?"

    excess: Annotated[Estimate, Quantity("layer head", better="higher", label="first token, beyond uniform")]
    mean_excess: Annotated[Estimate, Quantity(better="higher", label="first token, beyond uniform, mean")]
    n: int

    def headlines(self) -> Sequence[Headline]:
        return (headline_of(self, "mean_excess"),)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import add_baseline, add_line
        from bayesgeom.report.theme import label_axes

        panel, layers = Panel.blank("Mean over heads"), range(len(self.excess.value))
        add_line(panel.figure, layers, self.excess.value.mean(axis=1), name="measured")
        for own in self.excess.baselines:
            add_baseline(panel.figure, layers, own.value.mean(axis=1), name=own.name)
        label_axes(panel.figure, "layer", "attention on the first token − uniform")
        return (panel,)


@final
@dataclass(frozen=True)
class AttentionSink(Probe[AttentionSinkReport]):
    """Reads attention patterns only."""

    name: ClassVar[str] = "attention_sink"
    needs: ClassVar[Needs] = Needs(sites=(PATTERN,))

    def measure(self, run: Run, untrained: Sequence[AttentionSinkReport] = ()) -> AttentionSinkReport:
        position = run.trials.scored_positions()  # batch query_pos
        is_later = (position > 0).float()
        gap = (run.at(PATTERN)[..., 0] - 1 / (position[:, None] + 1)) * is_later[:, None]  # layer batch head query_pos
        per_sequence = (gap.sum(-1) / is_later.sum(-1)[:, None]).movedim(1, 0).double().cpu().numpy()
        return AttentionSinkReport(
            excess=mean_estimate(
                per_sequence,
                seed=run.seed,
                baselines=(UNIFORM, *of_untrained([report.excess.value for report in untrained])),
            ),
            mean_excess=mean_estimate(
                per_sequence.mean(axis=(1, 2)),
                seed=run.seed,
                baselines=(UNIFORM, *of_untrained([float(report.mean_excess) for report in untrained])),
            ),
            n=run.n_recorded,
        )

    def controls(self) -> Iterator[Control[AttentionSinkReport]]:
        rng = np.random.default_rng(0)
        trials = planted_trials(rng.dirichlet(np.ones(5), size=(7, 3)), rng.integers(11, size=(7, 3)))
        uniform = torch.ones(3, 3).tril() / torch.arange(1, 4)[:, None]
        first, own = torch.eye(3)[[0, 0, 0]], torch.eye(3)
        most, none = (1 / 2 + 2 / 3) / 2, -(1 / 2 + 1 / 3) / 2  # positions 1 and 2; position 0 sees itself alone
        for label, patterns, expected in (
            ("uniform in layer 0, first token only in layer 1", (uniform, first), (0.0, most)),
            ("each token itself in layer 0, uniform in layer 1", (own, uniform), (none, 0.0)),
        ):
            planted = torch.stack(patterns)[:, None, None].expand(2, 7, 2, 3, 3)  # layer batch head query key
            yield Control(
                label=label,
                run=planted_run(trials, {PATTERN: planted}),
                holds=lambda r, e=expected: np.allclose(r.excess.value, np.array(e)[:, None], atol=1e-6),
            )
