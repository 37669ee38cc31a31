"""`relabeling_invariance`: a paired test of the same latent problems, with hypotheses renamed consistently."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self, final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bayesgeom.core import Ask, Behavior, InvalidArgument, Run, TaskMismatch, Trials, Verdict, checked, number_text
from bayesgeom.measurements.base import Control, Further, Measurement, Needs, Subject, planted_run
from bayesgeom.measurements.running import first_sequences, measured
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import ModelLike, TaskLike
from bayesgeom.report.estimate import Baseline, Estimate, NonNegative, Quantity, Share, Unit, mean_estimate
from bayesgeom.report.findings import Finding, Opening
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.behavior import predicted_behavior
from bayesgeom.stats.intervals import UNBOUNDED, Bounds
from bayesgeom.stats.regression import pearson
from bayesgeom.tasks.base import Branch, SymmetricTask, WindTunnel, block_size, derived_seed
from bayesgeom.tasks.bijection import Bijection

STUCK = "answers do not change"
_NAMES = 5  # branch of the seed
_SPIKE = 4  # times the range of three quarters of the positions, and the bound: where a panel clips one that is alone
SHARE, CEILING_SHARE, ROUNDING = 0.5, 0.01, 1e-3

_FINDINGS: Mapping[str, Finding] = {
    Verdict.INVARIANT: Finding.NAMES_DO_NOT_MATTER,
    Verdict.INVARIANT_ON_AVERAGE: Finding.NAMES_MATTER_IN_SINGLE_SEQUENCES,
    Verdict.NOT_INVARIANT: Finding.NAMES_MATTER,
}


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class RelabelingReport(Report):
    """The model sees every sequence twice, the second time with its hypotheses renamed at random.

    Hypotheses are values, or hidden states with their header rows and columns. The exact answer is the same up to
    names. A point on the diagonal is a sequence with the same error both times. The mean difference alone cannot show a
    preference for names, because losses on some sequences cancel gains on others. The baseline is a model whose answers
    do not change.

    The bound is half of the model's own KL, or 1 % of the KL of a uniform prediction if that is less. Invariant: the 95
    % interval of the mean difference in KL is within ± the bound and contains 0 (up to a thousandth of the bound), and
    the interval of the mean size of the difference per sequence is below the bound. Invariant on average only: the
    same, but the size is above the bound. Not invariant: the mean difference is beyond the bound. Undecided: an
    interval is missing or includes the bound, or the mean difference is significant and within the bound.

    Fields: KL to the exact posterior before and after hypotheses are renamed, the posterior renamed with them.

    `kl_difference_bits` is after − before. If names are exchangeable in the task, it is 0 in expectation for every
    model: a model that prefers some names gains as often as it loses. `kl_difference_size_bits` is the mean of
    |after − before| over sequences, and `prediction_change` the total variation between the answers before and the
    answers after, renamed back. The baseline is a model whose answers do not change.
    """

    name: ClassVar[str] = "relabeling"
    is_behavioral: ClassVar[bool] = True
    title: ClassVar[str] = "Relabeling: do names matter?"
    verdict: str
    bound_bits: float
    kl_before_bits: Annotated[Estimate, NonNegative(unit="bits", better="lower", label="KL before renaming")]
    kl_after_bits: Annotated[Estimate, NonNegative(unit="bits", better="lower", label="KL after renaming")]
    kl_difference_bits: Annotated[Estimate, Quantity(unit="bits", better="lower", label="KL after renaming − before")]
    kl_difference_size_bits: Annotated[
        Estimate, NonNegative(unit="bits", better="lower", label="mean |KL after renaming − before|")
    ]
    prediction_change: Annotated[
        Estimate, Share(better="lower", label="total variation between answers before and after")
    ]
    entropy_mae_difference_bits: Annotated[
        Estimate, Quantity(unit="bits", better="lower", label="entropy error after − before")
    ]
    sequence_correlation: Annotated[
        Estimate, Quantity(better="higher", label="correlation of the KL before and after, over sequences")
    ]
    kl_before_bits_by_sequence: Annotated[Float[np.ndarray, " sequence"], Unit("bits")]
    kl_after_bits_by_sequence: Annotated[Float[np.ndarray, " sequence"], Unit("bits")]
    kl_difference_bits_by_position: Annotated[
        Estimate, Quantity("position", unit="bits", better="lower", label="KL after renaming − before")
    ]
    n: int

    def headlines(self) -> Sequence[Headline]:
        return (
            headline_of(self, "kl_difference_bits", verdict=self.verdict),
            headline_of(self, "kl_difference_size_bits"),
            headline_of(self, "prediction_change"),
            headline_of(self, "entropy_mae_difference_bits"),
            Headline.computed("bound_bits", "bound of the verdict", self.bound_bits, "bits"),
        )

    def answer(self) -> Opening:
        finding, size = _FINDINGS.get(self.verdict, Finding.NAMES_UNDECIDED), self.kl_difference_size_bits
        return finding.of(bits=self.kl_difference_bits, bound=self.bound_bits, size=size)

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import add_baseline, add_line, change_text
        from bayesgeom.report.theme import BASELINE, MEASURED, label_axes, log_axes

        before, after = self.kl_before_bits_by_sequence, self.kl_after_bits_by_sequence
        points = Panel.blank("KL before and after, a point per sequence", is_folded=True)
        along = Panel.blank(change_text("Renaming the hypotheses", float(self.kl_difference_bits.value)))
        difference = self.kl_difference_bits_by_position
        points.figure.add_scatter(
            x=before,
            y=after,
            mode="markers",
            marker={"color": MEASURED, "size": 5, "opacity": 0.6},
            name="sequences",
            showlegend=False,
            hovertemplate="%{x:.3~g} → %{y:.3~g} bits<extra></extra>",
        )
        seen = np.concatenate([before, after])
        positive = seen[seen > 0] if (seen > 0).any() else np.ones(1)
        ends, line = [float(positive.min()), float(positive.max())], {"color": BASELINE, "dash": "dash", "width": 1.5}
        points.figure.add_scatter(x=ends, y=ends, mode="lines", line=line, name="equal", hoverinfo="skip")
        log_axes(points.figure, "xy")
        label_axes(points.figure, "KL before (bits)", "KL after (bits)")
        x = np.arange(1, len(difference.value) + 1)
        for level, name in ((self.bound_bits, "bound of the verdict"), (-self.bound_bits, "bound below")):
            add_baseline(along.figure, x, level, name=name)
        add_line(along.figure, x, difference.value, name="difference", band=difference.ends)
        label_axes(along.figure, "scored position (1 is the first)", "KL after − before (bits)")
        size = np.nanmax(np.abs([difference.value, *difference.ends]), axis=0)
        reach, at = max(float(self.bound_bits), float(np.nanquantile(size, 0.75))), int(np.nanargmax(size))
        if size[at] > _SPIKE * reach:  # one position would flatten the others
            along.figure.update_yaxes(range=[-_SPIKE * reach, _SPIKE * reach])
            at_most = f"up to {number_text(size[at])} bits at position {at + 1}"
            along = replace(along, note=f"Clipped at ±{number_text(_SPIKE * reach)} bits: {at_most}.")
        return [along, points]


@final
@dataclass(frozen=True, kw_only=True)
class Scored:
    """Errors of one pass, and answers with the names of the first pass."""

    kl_bits: Float[np.ndarray, "sequence position"]
    entropy_error_bits: Float[np.ndarray, "sequence position"]
    answers: Float[np.ndarray, "sequence position answer"]


@checked("model", "task")
def relabeling_invariance(
    model: ModelLike, task: TaskLike | None = None, *, n: int = 512, seed: int = 0
) -> RelabelingReport:
    """Measure how the answers change when hypotheses are renamed: values of a bijection or recall, states of an HMM.

    The model sees each sequence as drawn, and again with its hypotheses renamed at random.

    Args:
        model: A model, or what `as_model` takes: a checkpoint's name or directory, a module, a Hugging Face model.
        task: A task, or its text as on the command line. Default: the task that the model was trained on.
        n: Number of sequences.
        seed: Seed of the sequences and of the intervals.

    Returns:
        Distance between both answers, with baselines.

    Raises:
        TaskMismatch: The task's hypotheses cannot be renamed.
        InvalidArgument: n is below 2.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> module = config.build(seed=0)
        >>> bayesgeom.relabeling_invariance(module, task, n=8).n
        8
    """
    return measured(Relabeling(n=n), model, task, n=n, seed=seed)


@final
@dataclass(frozen=True, kw_only=True)
class Relabeling(Measurement[RelabelingReport]):
    """The answers on the first `n` sequences, and on the same with hypotheses renamed."""

    name: ClassVar[str] = RelabelingReport.name
    needs: ClassVar[Needs] = Needs(posterior=True)
    asks: ClassVar[frozenset[Ask]] = frozenset({Ask.PREDICT})
    n: int = 128  # one block, the same for every n of a diagnosis

    def prepared(self, model: Model, task: WindTunnel, *, n: int, seed: int) -> Self:
        if n < 2:
            raise InvalidArgument(f"n, the number of sequences, must be at least 2 for an interval; got {n}.")
        model.require_asks(self.asks, by=self.name)
        _symmetric(task)
        return replace(self, n=min(n, self.n))

    def further(self, task: WindTunnel, run: Run, seed: int) -> Iterator[Further]:
        """Yield the renamed sequences; before them the sequences themselves, if the run holds too few."""
        symmetric, original = _symmetric(task), first_sequences(task, run, self.n, seed=seed)
        if run.n_recorded < self.n:
            yield Further(trials=original, label=run.spec.name)
        renamed = symmetric.relabeled(original, _names(symmetric, original, seed))
        yield Further(trials=renamed, label="hypotheses renamed")

    def of(self, subject: Subject, untrained: Sequence[RelabelingReport] = ()) -> RelabelingReport:
        before, after = (subject.run, *subject.further)[-2:]  # `further` begins with those that the run lacks
        names, n = _names(_symmetric(subject.known_task()), after.trials, subject.seed), len(after.trials)
        given = before.log_answers[:n].exp()
        stuck = predicted_behavior(after.trials, given)
        entropies_bits = before.behavior.exact_entropy_bits[:n]
        return relabeling_report(
            _scored(before.behavior, given),
            _scored(after.behavior, _with_first_names(after.log_answers.exp(), names)),
            _scored(stuck, _with_first_names(given, names)),
            uniform_kl_bits=float(np.log2(given.shape[-1]) - entropies_bits.mean(dtype=np.float64)),
            seed=derived_seed(subject.seed, Branch.RESAMPLING),
        )

    def controls(self) -> Iterator[Control[RelabelingReport]]:
        """Yield the exact answers, and a predictor that hears the first name twice as often as it should."""
        task = Bijection(n_values=5, n_pairs=3)
        trials = task.sample(1021, seed=0)  # with few, the interval of the mean difference includes the bound
        given = replace(self, n=len(trials))
        exact = planted_run(trials, {})
        (renamed,) = (each.trials for each in given.further(task, exact, 0))

        def prefers(sequences: Trials) -> Run:
            weights = torch.tensor([2.0, 1, 1, 1, 1], dtype=torch.float64)
            probs = sequences.at_scored(sequences.predictive) * weights
            return planted_run(sequences, {}, model=probs / probs.sum(dim=-1, keepdim=True))

        yield Control(
            label="exact answers",
            run=exact,
            further=(planted_run(renamed, {}),),
            task=task,
            measurement=given,
            holds=lambda report: float(report.prediction_change) < 1e-9 and float(report.kl_after_bits) < 1e-9,
        )
        yield Control(
            label="a preferred name",
            run=prefers(trials),
            further=(prefers(renamed),),
            task=task,
            measurement=given,
            holds=lambda report: report.verdict == Verdict.INVARIANT_ON_AVERAGE,
        )


def _symmetric(task: WindTunnel) -> SymmetricTask:
    """Return the task, if its hypotheses can be renamed.

    Raises:
        TaskMismatch: They cannot.
    """
    if not isinstance(task, SymmetricTask):
        raise TaskMismatch(
            f"the hypotheses of {task} cannot be renamed without changing the task: relabeling requires a task "
            f"whose answers have arbitrary names (bijection, hmm, recall)."
        )
    return task


def _names(task: SymmetricTask, trials: Trials, seed: int) -> Int64[Tensor, "batch name"]:
    """Return a different renaming for every sequence, drawn by block, so that more sequences begin with the same."""
    names, size = list[Tensor](), block_size(task.n_pos)
    for block, start in enumerate(range(0, len(trials), size)):
        generator = torch.Generator().manual_seed(derived_seed(seed, _NAMES, block))
        n = min(size, len(trials) - start)
        names.append(torch.rand(n, task.n_names, generator=generator, dtype=torch.float64).argsort(dim=1))
    return torch.cat(names).to(trials.tokens.device)


def _scored(behavior: Behavior, answers: Tensor) -> Scored:
    first = slice(len(answers))
    errors = behavior.entropy_error_bits[first]
    kl_bits = behavior.kl_bits[first].astype(np.float64)
    return Scored(kl_bits=kl_bits, entropy_error_bits=errors, answers=answers.cpu().numpy())


def _with_first_names(answers: Tensor, names: Int64[Tensor, "batch name"]) -> Tensor:
    """Return probabilities under new names, in the order of the old ones."""
    return answers.gather(2, names[:, None, :].expand_as(answers))


def relabeling_report(
    before: Scored, after: Scored, stuck: Scored, *, uniform_kl_bits: float, seed: int
) -> RelabelingReport:
    """Return the comparison of two passes with each other and with a model whose answers do not change.

    Args:
        before: The first pass.
        after: The pass over the renamed sequences.
        stuck: The answers of the first pass, scored against the renamed posterior.
        uniform_kl_bits: KL of a uniform prediction on these sequences, in bits.
        seed: Seed of the bootstrap.
    """
    along, gap = after.kl_bits - before.kl_bits, _by_sequence(stuck.kl_bits - before.kl_bits)

    def estimate(
        per_sequence: Float[np.ndarray, " sequence"], stuck_at: float | None = None, bounds: Bounds = UNBOUNDED
    ) -> Estimate:
        level = () if stuck_at is None else (Baseline.of("baseline", STUCK, stuck_at),)
        return mean_estimate(per_sequence, seed=seed, baselines=level, bounds=bounds)

    mean = estimate(_by_sequence(along), float(gap.mean()))
    size = estimate(np.abs(_by_sequence(along)), float(np.abs(gap).mean()))
    kl_before, n = float(before.kl_bits.mean()), len(along)
    bound = min(SHARE * kl_before, CEILING_SHARE * uniform_kl_bits)
    is_identical = not _by_sequence(along).any()
    mean_ends, size_ends = (np.zeros((2, 2)) if is_identical else np.array([mean.ends, size.ends])).tolist()
    one, other = _by_sequence(before.kl_bits), _by_sequence(after.kl_bits)
    return RelabelingReport(
        verdict=str(verdict(mean_ends, size_ends, bound)),
        bound_bits=bound,
        kl_before_bits=Estimate.of(kl_before, n=n),
        kl_after_bits=Estimate.of(after.kl_bits.mean(), n=n),
        kl_difference_bits=mean,
        kl_difference_size_bits=size,
        prediction_change=estimate(_change(before, after), float(_change(before, stuck).mean()), (0.0, 1.0)),
        entropy_mae_difference_bits=estimate(_by_sequence(after.entropy_error_bits - before.entropy_error_bits)),
        sequence_correlation=Estimate.of(pearson(one, other), n=n),
        kl_before_bits_by_sequence=one,
        kl_after_bits_by_sequence=other,
        kl_difference_bits_by_position=mean_estimate(along, seed=seed),
        n=n,
    )


def verdict(mean: Sequence[float], size: Sequence[float], bound: float) -> Verdict:
    """Apply the rule of the report to the intervals of the mean difference and of its mean size per sequence, in bits.

    Example:
        >>> verdict((-0.5, 0.5), (float("nan"), float("nan")), 1.0)
        <Verdict.UNDECIDED: 'undecided'>
    """
    lo, hi = mean
    if lo > bound or hi < -bound:
        return Verdict.NOT_INVARIANT
    rounding = ROUNDING * bound
    is_equivalent = -bound <= lo <= rounding and -rounding <= hi <= bound
    if not is_equivalent or np.isnan(size).any() or size[0] <= bound < size[1]:
        return Verdict.UNDECIDED
    return Verdict.INVARIANT if size[1] <= bound else Verdict.INVARIANT_ON_AVERAGE


def _by_sequence(values: Float[np.ndarray, "sequence position"]) -> Float[np.ndarray, " sequence"]:
    return np.asarray(values.mean(axis=1, dtype=np.float64))


def _change(one: Scored, other: Scored) -> Float[np.ndarray, " sequence"]:
    return np.asarray(np.abs(one.answers - other.answers).sum(axis=2).mean(axis=1) / 2)
