"""Posterior lens: at which layer is the posterior there?

The logit lens applies a model's own final norm and output matrix to the residual stream before each layer. What it
reads is a predictor of the answer, scored like the model: KL(exact ‖ lens) and entropy error, in bits. The lens after
the last layer is the model itself. Nothing is fitted.

References:
    nostalgebraist 2020, "interpreting GPT: the logit lens".
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import LOGIT_LENS, Run, Verdict
from bayesgeom.core.observers import STARTS
from bayesgeom.measurements.base import Control, Needs, Probe, planted_run, planted_trials, with_untrained
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Unit, mean_estimate
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.behavior import POSITION, UNIFORM, context_free_kl_bits
from bayesgeom.stats.bootstrap import ARRIVED, arrival
from bayesgeom.stats.information import entropy_bits, kl_bits
from bayesgeom.stats.windows import window_name

EMBEDDING, EXACT = "embedding", "exact"


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class PosteriorLensReport(Report):
    """The model's own final norm and output matrix read a distribution of the answers from every layer.

    It is scored like a model: 0 bits is the exact posterior, and the last point is the model itself. The posterior
    arrives at the first layer from which the KL stays below a tenth of that of the stronger context-free predictor:
    the uniform one, or the average posterior at each position. The lens reads only what already lies as the output
    matrix expects it. A layer may hold more, which a fitted lens shows, and a value near a baseline does not mean that
    the layer knows nothing.

    Fields: what the logit lens reads from the residual stream, by `stages`: the embedding, then after each layer.

    `kl_bits` is KL(exact ‖ lens) and `entropy_mae_bits` the mean |H lens − H exact|, over sequences and positions.
    `arrival` is the number of layers after which the posterior is there: 0 in the embedding, NaN if it never is. An
    upper end above the number of layers means that it may never be. `sources` are the exact predictive and the stages.
    `example` holds their answer probabilities in one sequence, at the scored position `example_position` (from 1).
    """

    name: ClassVar[str] = "posterior_lens"
    title: ClassVar[str] = "Posterior by layer: where does it appear?"

    kl_bits: Annotated[Estimate, NonNegative("stage", unit="bits", better="lower", label="KL(exact ‖ logit lens)")]
    entropy_mae_bits: Annotated[
        Estimate, NonNegative("stage", unit="bits", better="lower", label="entropy error of the logit lens")
    ]
    arrival: Annotated[Estimate, NonNegative(unit="layers", label="layers until the posterior is there")]
    kl_bits_by_position: Annotated[Float[np.ndarray, "stage position"], Unit("bits")]
    entropy_bits_by_position: Annotated[Float[np.ndarray, "source position"], Unit("bits")]
    example: Annotated[Float[np.ndarray, "source answer"], Unit("1")]
    example_position: int
    stages: tuple[str, ...]
    sources: tuple[str, ...]
    n: int

    @property
    def threshold_bits(self) -> float:
        """A tenth of the KL of the stronger context-free predictor."""
        return ARRIVED * min(float(self.kl_bits.baseline(name).value[0]) for name in (UNIFORM, POSITION))

    def headlines(self) -> Sequence[Headline]:
        is_there, before_last = not np.isnan(self.arrival.value), len(self.stages) - 2
        return (
            headline_of(self, "arrival", verdict="" if is_there else str(Verdict.NOT_REACHED)),
            *(
                headline_of(self, "kl_bits", (at,), f"KL(exact ‖ logit lens), {self.stages[at]}", verdict="")
                for at in dict.fromkeys((0, before_last))
            ),
        )

    def answer(self) -> Opening:
        finding = Finding.NOT_ARRIVED if math.isnan(self.arrival.value) else Finding.ARRIVED
        return finding.of(arrival=self.arrival, layers=len(self.stages) - 1)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.heat import add_heat
        from bayesgeom.charts.lines import add_baseline, add_estimate, add_line, add_reference, label_layers
        from bayesgeom.report.theme import BASELINE, label_axes, layer_colors

        n_layers = len(self.stages) - 1
        x = np.arange(-1, n_layers)  # the embedding, then the layers
        after = f"there after {float(self.arrival):.0f} of {n_layers} layers"
        kl = Panel.blank(f"KL by layer: the posterior is {after if np.isfinite(self.arrival.value) else 'never there'}")
        add_baseline(kl.figure, x, self.threshold_bits, name="there: a tenth of context-free")
        add_estimate(kl.figure, x, self.kl_bits, name="logit lens", is_log=True)
        label_layers(kl.figure, n_layers)
        label_axes(kl.figure, "read after layer (emb: the embedding)", "KL(exact ‖ lens) (bits)")
        entropy = Panel.blank("Entropy of what is read, by position", is_folded=True)
        exact, *read = self.entropy_bits_by_position
        scored, colors = np.arange(1, len(exact) + 1), layer_colors(n_layers)
        add_reference(entropy.figure, scored, exact, name="exact")
        shown = np.linspace(1, n_layers, len(colors)).round().astype(int)  # no more of them than there are colors
        for place, color in zip((0, *shown), (BASELINE, *colors), strict=True):
            add_line(entropy.figure, scored, read[place], name=self.stages[place], color=color)
        label_axes(entropy.figure, "scored position (1 is the first)", "entropy (bits)")
        title = f"One sequence, at scored position {self.example_position}: what each layer would answer"
        upward = [0, *range(len(self.sources) - 1, 0, -1)]  # exact on top, then the last layer, as in the viewer
        answers = self.provenance.get("task_in_words", {}).get("names", ())
        is_named = len(set(answers)) == self.example.shape[1]
        names = ([self.sources[at] for at in upward], list(answers) if is_named else range(self.example.shape[1]))
        example, axes = Panel.blank(title, is_folded=True), ("answer", "read after")
        add_heat(example.figure, self.example[upward], unit="probability", baseline=0.0, names=names, axes=axes)
        return kl, entropy, example


@final
@dataclass(frozen=True)
class PosteriorLens(Probe[PosteriorLensReport]):
    """Score what the logit lens reads before each layer, and the model's own output after the last one."""

    name: ClassVar[str] = "posterior_lens"
    needs: ClassVar[Needs] = Needs(sites=(LOGIT_LENS,), posterior=True)

    def measure(self, run: Run, untrained: Sequence[PosteriorLensReport] = ()) -> PosteriorLensReport:
        exact = run.trials.at_scored(run.trials.predictive)
        read = [*run.at(LOGIT_LENS), run.log_answers]
        kl = _of_stages([kl_bits(exact, answers.double()) for answers in read])
        entropies = _of_stages([entropy_bits(answers) for answers in (exact, *map(_exp, read))])
        errors = np.abs(entropies[:, 1:] - entropies[:, :1])
        exactly = exact.double().cpu().numpy()
        references = context_free_kl_bits(exactly)
        levels = {name: bits.mean() for name, bits in references.items()}
        observers = {window_name(width, start) for start in STARTS for width in range(exact.shape[1] + 1)}
        for name, behavior in run.baseline_behaviors.items():
            if name not in observers:  # calibration compares with each of them
                levels.setdefault(name.replace("_", " "), behavior.kl_bits[: len(exactly)].mean(dtype=np.float64))
        baselines = [Baseline.of("baseline", name, float(level)) for name, level in levels.items()]
        estimate = partial(mean_estimate, seed=run.seed, bounds=(0.0, np.inf))
        reference = min(references.values(), key=np.mean)
        whole = Baseline.of("baseline", "all layers", len(read) - 1)
        middle, stages = exact.shape[1] // 2, stages_of(len(read) - 1)
        report = PosteriorLensReport(
            kl_bits=estimate(kl.mean(axis=2), baselines=baselines),
            entropy_mae_bits=estimate(errors.mean(axis=2)),
            arrival=Estimate.of(*arrival(kl.mean(axis=2), reference, seed=run.seed), n=len(exactly), baselines=[whole]),
            kl_bits_by_position=kl.mean(axis=0),
            entropy_bits_by_position=entropies.mean(axis=0),
            example=torch.stack([exact[0, middle], *(_exp(answers)[0, middle] for answers in read)]).cpu().numpy(),
            example_position=middle + 1,
            stages=stages,
            sources=(EXACT, *stages),
            n=len(exactly),
        )
        return with_untrained(report, untrained, "kl_bits", "entropy_mae_bits")

    def controls(self) -> Iterator[Control[PosteriorLensReport]]:
        rng = np.random.default_rng(0)
        exact = rng.dirichlet(np.full(5, 0.3), size=(61, 3))
        trials = planted_trials(exact, rng.integers(7, size=(61, 3)))
        flat, other = np.full_like(exact, 0.2), exact[rng.permutation(61)]

        def run_of(*layers: Float[np.ndarray, "batch query_pos answer"]) -> Run:
            return planted_run(trials, {LOGIT_LENS: torch.from_numpy(np.log(np.stack(layers)))})

        yield Control(
            label="layer 1 carries the posterior exactly",
            run=run_of(flat, flat, exact),
            holds=lambda r: (
                float(r.arrival) == 2
                and np.array_equal(r.arrival.ends, (2, 2))
                and np.allclose(r.kl_bits.value[2:], 0, atol=1e-12)
                and np.allclose(r.kl_bits.value[:2], r.kl_bits.baseline(UNIFORM).value[0])
            ),
        )
        yield Control(
            label="a layer that loses the posterior again: it is not there before it stays",
            run=run_of(exact, flat, flat),
            holds=lambda r: float(r.arrival) == 3 and r.kl_bits.value[0] < 1e-12,
        )
        # The entropy is right everywhere: a lens scored by its entropy alone would pass.
        yield Control(
            label="posteriors of other sequences: right entropy, far from exact",
            run=run_of(other, other, other),
            holds=lambda r: (
                abs(np.diff(r.entropy_bits_by_position[:2], axis=0)).max() < 1e-12 < 1 < r.kl_bits.value[0]
                and r.kl_bits.clears("lower")[0] == Verdict.NO
            ),
        )
        unlearned = {LOGIT_LENS: torch.from_numpy(np.log(np.stack([flat])))}
        yield Control(
            label="a network that predicts uniformly never has it",
            run=planted_run(trials, unlearned, model=torch.from_numpy(flat)),
            holds=lambda r: np.isnan(r.arrival.value) and r.headlines()[0].verdict == Verdict.NOT_REACHED,
        )


def stages_of(n_layers: int) -> tuple[str, ...]:
    """Return the names of what a lens reads: the embedding, then each layer."""
    return (EMBEDDING, *(f"layer {layer}" for layer in range(n_layers)))


def _exp(log_probabilities: Float[Tensor, "batch query_pos answer"]) -> Float64[Tensor, "batch query_pos answer"]:
    return log_probabilities.double().exp()


def _of_stages(values: Sequence[Float[Tensor, "batch query_pos"]]) -> Float64[np.ndarray, "batch stage query_pos"]:
    stacked = torch.stack([own.double() for own in values], dim=1).clamp_min(0.0)  # rounding
    return np.asarray(stacked.cpu().numpy())
