"""`contributions`: what every part of a model adds to the answers' logits directly, in bits.

With the final norm and the norms after sublayers frozen, the logits before a soft cap are a sum: one term for the
embedding, each head, each MLP, and the biases. Logits that are equal for all answers change no probability, so each
term is centered over the answers. KL(exact ‖ model) without one term says how many bits that term is worth, with all
others as they are.

References:
    Elhage et al. 2021, "A mathematical framework for transformer circuits"; nostalgebraist 2020 (logit lens).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float, Float64, Int
from torch import Tensor

from bayesgeom.ablations.engine import batches
from bayesgeom.ablations.run import N_REFERENCE
from bayesgeom.circuits.effects import answer_of, context_free, effects_of, headlines_of, ranked
from bayesgeom.circuits.writers import Writer, Writers
from bayesgeom.core import (
    LOGIT_LENS,
    RESID_POST,
    TOKEN_EMBEDDINGS,
    InvalidArgument,
    MissingSite,
    Trials,
    checked,
    phase,
)
from bayesgeom.models.adapters.proof import tolerance_of
from bayesgeom.models.base import Model, provenance
from bayesgeom.models.replay.hooked import PlainLoop
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, scored_task_of
from bayesgeom.models.unembedding import LinearEnd
from bayesgeom.report.estimate import Coordinate, Estimate, NonNegative, Quantity, Unit, mean_estimate
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report, with_provenance
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.information import NATS_PER_BIT, kl_bits
from bayesgeom.tasks.base import Branch, WindTunnel, at_most, check_count, derived_seed

_MEANS = 3  # branch of the seed
_N_ROWS = 12  # of a panel
_ROUNDING = 1e-6  # of an embedding: rotary models add no positions
_SLACK = 10  # sums of many layers round more than an equation of one


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class ContributionsReport(Report):
    """The logits of the answers are a sum of one term for each part of the network, with the final norm held fixed.

    Bits lost is the increase of KL(exact ‖ model) when the term of one part alone is replaced by its mean over
    sequences at each scored position; the baseline is 0. It counts only what the part writes for the output itself. A
    head whose work is read by later parts may have no direct term and yet be needed, which an ablation shows. A
    negative number means that the prediction is better without that term.

    Fields: by `components`, which are labeled L2H3 for head 3 of layer 2.

    `kl_increase_bits` are the bits lost. `toward_exact_bits` is the mean of Σ P(a) · term(a) over sequences and
    positions, with P the exact predictive: how far the term raises the answers that the posterior expects above the
    average answer. These numbers sum to that of the model. `example` holds all terms, in bits, in the first sequence
    at the scored position `example_position` (from 1); they sum to `example_logits`, the model's own centered logits
    before a soft cap. `layer` and `head` are −1 for a component that has none.
    """

    name: ClassVar[str] = "contributions"
    title: ClassVar[str] = "Direct contributions: which parts write the answer?"

    components: tuple[str, ...]
    kinds: Annotated[tuple[str, ...], "component", Coordinate()]
    layer: Annotated[Int[np.ndarray, " component"], Unit("1"), Coordinate()]
    head: Annotated[Int[np.ndarray, " component"], Unit("1"), Coordinate()]
    n_layers: int
    n_heads: int
    kl_increase_bits: Annotated[Estimate, Quantity("component", unit="bits", better="higher", label="bits lost")]
    toward_exact_bits: Annotated[Estimate, Quantity("component", unit="bits", label="contribution to expected answers")]
    model_kl_bits: Annotated[Estimate, NonNegative(unit="bits", label="KL with every term")]
    example: Annotated[Float[np.ndarray, "component answer"], Unit("bits")]
    example_logits: Annotated[Float[np.ndarray, " answer"], Unit("bits")]
    example_position: int
    n: int

    @property
    def unchanged_kl_bits(self) -> Estimate:
        return self.model_kl_bits

    @property
    def kl_increase_bits_by_part(self) -> Float[np.ndarray, "layer part"]:
        """Bits lost without each head of a layer, then without its MLP or what else writes; NaN where there is none."""
        bits = np.full((self.n_layers, self.n_heads + 1), np.nan)
        is_inside = self.layer >= 0
        columns = np.where(self.head >= 0, self.head, self.n_heads)
        bits[self.layer[is_inside], columns[is_inside]] = self.kl_increase_bits.value[is_inside]
        return bits

    def headlines(self) -> Sequence[Headline]:
        """Return the largest effects and the model's own KL."""
        first, *others = headlines_of(self, self.components, "most bits lost", most=_N_ROWS)
        return first, headline_of(self, "model_kl_bits"), *others

    def answer(self) -> Opening:
        of = self.kl_increase_bits, self.model_kl_bits, self.components
        return answer_of(*of, parts="term", largest=Finding.LARGEST_TERM)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.forest import add_forest
        from bayesgeom.charts.heat import add_heat

        order = ranked(self.kl_increase_bits)
        is_any = self.kl_increase_bits.value[order[0]] > 0
        heat = Panel.blank(f"{self.components[order[0]] if is_any else 'No part'} writes most of the answer")
        add_heat(heat.figure, self.kl_increase_bits_by_part, unit="bits lost", baseline=0.0)
        heads = list(range(0, self.n_heads, max(1, -(-self.n_heads // 8))))
        last = "mlp" if "mlp" in self.kinds else "block"
        ticks = {"tickvals": [*heads, self.n_heads], "ticktext": [*map(str, heads), last]}
        heat.figure.update_xaxes(tickmode="array", **ticks)
        forest, top = Panel.blank("Bits lost without each term, largest first"), order[:_N_ROWS]
        lost = self.kl_increase_bits[top]
        add_forest(forest.figure, [self.components[at] for at in top], lost.value, lost.ends, unit="bits lost")
        return heat, forest


@checked("model", "task")
def contributions(
    model: ModelLike, task: TaskLike | None = None, *, n: int = 512, seed: int = 0
) -> ContributionsReport:
    """Measure what every head, MLP, embedding and bias adds to the answers' logits directly.

    Args:
        model: A model, its name or its directory.
        task: A task or its name; by default the one that the model was trained on.
        n: Sequences to draw.
        seed: Seed of the sequences, means and intervals.

    Returns:
        For every component the bits lost when its contribution alone is replaced by its mean, and the contribution to
        the answers that the exact posterior expects, with intervals over sequences.

    Raises:
        InvalidArgument: n < 1, or the updates of the model's layers do not add up to its last residual.
        MissingSite: No path from the last residual to the logits was found.
        TaskMismatch: The task has no exact posterior, or does not fit the model.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> bayesgeom.contributions(config.build(seed=0), task, n=9).components
        ('embedding', 'positions', 'L0H0', 'L0 mlp', 'biases')
    """
    check_count(n)
    subject = model_for(model, task)
    return _report(_Terms(subject, scored_task_of(subject, task)), n, seed)


def _report(terms: "_Terms", n: int, seed: int) -> ContributionsReport:
    """Measure `n` sequences, with the means of others."""
    total, count = torch.zeros(()), 0
    with phase("means", N_REFERENCE, "sequence") as shown:
        for trials, written, _ in terms.batches(N_REFERENCE, derived_seed(seed, _MEANS)):
            total, count = total.to(written) + written.sum(dim=1, keepdim=True), count + len(trials)
            shown.update(len(trials))
    lost, toward, kl = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    answers, example = list[Tensor](), list[tuple[Tensor, Tensor]]()
    with phase("contributions", n, "sequence") as shown:
        for trials, written, logits in terms.batches(n, derived_seed(seed, Branch.TRIALS)):
            exact = trials.at_scored(trials.predictive)
            answers.append(exact)
            kl.append(terms.kl_bits(exact, logits))
            without = logits - written + total / count
            lost.append(np.stack([terms.kl_bits(exact, each) - kl[-1] for each in without], axis=1))
            expected = einsum(exact, written, "b q a, c b q a -> b c") / exact.shape[1]
            toward.append(expected.cpu().numpy() / NATS_PER_BIT)
            example = example or [(written[:, 0], logits[0])]
            shown.update(len(trials))
    components, ((parts, logits),) = terms.components(), example
    middle, spec, draws = parts.shape[1] // 2, terms.model.spec, derived_seed(seed, Branch.RESAMPLING)
    centered = (logits - logits.mean(dim=-1, keepdim=True))[middle]
    report = ContributionsReport(
        components=tuple(component.label for component in components),
        kinds=tuple(component.kind for component in components),
        layer=np.array([component.layer for component in components]),
        head=np.array([component.head for component in components]),
        n_layers=spec.n_layers,
        n_heads=spec.n_heads,
        kl_increase_bits=effects_of(np.concatenate(lost), draws),
        toward_exact_bits=mean_estimate(np.concatenate(toward), seed=draws),
        model_kl_bits=mean_estimate(
            np.concatenate(kl), seed=draws, bounds=(0.0, np.inf), baselines=context_free(answers)
        ),
        example=(parts[:, middle] / NATS_PER_BIT).cpu().numpy(),
        example_logits=(centered / NATS_PER_BIT).cpu().numpy(),
        example_position=middle + 1,
        n=n,
    )
    return with_provenance(report, provenance(terms.model, terms.task, {"n": n, "seed": seed}))


Terms = Float64[Tensor, "component batch query_pos answer"]
Logits = Float64[Tensor, "batch query_pos answer"]


@final
class _Terms:
    """The terms of the answers' logits, batch by batch."""

    def __init__(self, model: Model, task: WindTunnel) -> None:
        model.require((LOGIT_LENS,), by="contributions")
        end = model.unembedding()
        assert end is not None, "the model has a logit lens"
        self.model, self.task, self.end = model, task, end
        self.writers = Writers(model, by="contributions")
        self._loop = PlainLoop(model)
        self._linear: LinearEnd | None = None
        self._has_positions: bool | None = None  # until the first batch shows it

    def components(self) -> tuple[Writer, ...]:
        """Return whose terms they are, once there were some."""
        embedding, *others = self.writers.every
        positions = [Writer(kind="positions")] * bool(self._has_positions)
        return (embedding, *positions, *others, Writer(kind="biases"))

    def batches(self, n: int, seed: int) -> Iterator[tuple[Trials, Terms, Logits]]:
        """Yield each batch with its centered terms and the logits before the soft cap, which they sum to."""
        for block in self.task.stream(at_most(self.task, n), seed=seed, device=self.model.spec.device):
            self.model.check_fits(block)
            for trials in batches(block, self.model.spec):
                yield trials, *self._of(trials)

    def kl_bits(self, exact: Logits, logits: Logits) -> Float64[np.ndarray, " batch"]:
        """Return KL(exact ‖ model) of logits before the soft cap, mean over scored positions."""
        return np.asarray(kl_bits(exact, self.end.capped(logits).log_softmax(-1)).mean(dim=1).cpu().numpy())

    @torch.no_grad()
    def _of(self, trials: Trials) -> tuple[Terms, Logits]:
        baseline = self._loop.baseline(trials).stored
        stored = {place: trials.at_scored(baseline[place]) for place in self.writers.places()}
        last = trials.at_scored(baseline[RESID_POST, self.model.spec.n_layers - 1])
        if self._linear is None:
            self._linear = self.end.linear(trials.answer_ids, last)
        if self._linear is None:
            raise MissingSite(
                f"contributions requires logits that are linear in the last residual after its norm; "
                f"{self.model.spec.name} computes something else there. `ablate` measures its parts instead."
            )
        linear = self._linear
        scale, matrix = linear.scale(last), (linear.matrix - linear.matrix.mean(dim=0)).T
        logits = replace(self.end, soft_cap=None).logits(last, trials.answer_ids).double()
        terms, rest = list[Tensor](), last.double()
        for writer, update in self.writers.updates(stored, stored):
            rest = rest - update.double()
            parts = self._split(trials, update) if writer.kind == "embedding" else (update,)
            terms += [scale * (part.double() @ matrix) for part in parts]
        centered = logits - logits.mean(dim=-1, keepdim=True)
        self._check_sum(scale, rest @ matrix, centered)
        return torch.stack([*terms, centered - torch.stack(terms).sum(dim=0)]), logits

    def _split(self, trials: Trials, entered: Float[Tensor, "batch query_pos d_model"]) -> Sequence[Tensor]:
        """Return the embedding of the tokens, and of the positions if they have one, which add up to what entered."""
        if TOKEN_EMBEDDINGS not in self.model.sites:
            self._has_positions = False
            return (entered,)
        ids, places = trials.at_scored(trials.tokens).unique(return_inverse=True)
        embedded = self.model.static(TOKEN_EMBEDDINGS, ids, 0).to(entered)[places]
        rest = entered - embedded
        if self._has_positions is None:
            self._has_positions = bool(rest.abs().max() > _ROUNDING * embedded.abs().max())
        return (embedded, rest) if self._has_positions else (entered,)

    def _check_sum(self, scale: Float64[Tensor, "batch query_pos 1"], rest: Logits, centered: Logits) -> None:
        """Check that heads, MLPs and embedding leave only biases of the last residual.

        Raises:
            InvalidArgument: The updates do not add up to the last residual.
        """
        varying = scale * (rest - rest.mean(dim=(0, 1)))
        error = float(varying.abs().max() / centered.abs().max().clamp_min(1e-12))
        if not error <= _SLACK * tolerance_of(self.model.spec.dtype):
            raise InvalidArgument(
                f"the updates of the layers of {self.model.spec.name} do not add up to its last residual: what is left "
                f"of it changes the logits by {error:.1e} of the largest. Something rescales the residual stream "
                f"between the layers, so there are no direct contributions. `ablate` measures its parts instead."
            )
