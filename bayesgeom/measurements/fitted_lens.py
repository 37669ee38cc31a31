"""Fitted lenses: what a layer holds of the posterior, beyond what the model's own output matrix reads there.

Two maps are fitted to every layer and scored on other sequences:

    tuned lens      an affine map into the last residual, read by the model's own end, fitted to the model's predictions
    softmax probe   a linear map to the answers' log-odds, fitted to the exact predictive

With "fitted_lens:MAP" a third one is loaded: the J-lens, the mean Jacobian of the last residual in each layer's, read
by the model's own end. transformer-lens loads MAP. Plain text has no exact posterior: there nothing is fitted, and the
logit lens and the J-lens are compared with the model's own last prediction.

The fitted maps act on the layer's principal axes, scaled to variance 1; axes with less than 1e-10 of the largest
variance are left out. Both have an intercept, without a penalty. The objective is the cross-entropy in nats, minimized
by L-BFGS on all points. The probe's penalty is ½ · 1e-6 · ‖W‖². The tuned lens starts at the least squares solution M
and its penalty is ½ · 1e-4 · mean over columns of ‖column change‖² / mean square of M.

References:
    Belrose et al. 2023, arXiv:2303.08112 (tuned lens). Gurnee et al. 2026, "Verbalizable Representations Form a Global
    Workspace in Language Models" (J-lens).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Self, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from bayesgeom.core import (
    LOGIT_LENS,
    RESID_POST,
    RESID_PRE,
    Ask,
    InvalidArgument,
    MissingSite,
    ModelSpec,
    NoCopy,
    Run,
    Trials,
    concatenate,
    phase,
)
from bayesgeom.core.plugins import Contained
from bayesgeom.core.torch_state import check_differentiable
from bayesgeom.measurements.base import Control, Further, Measurement, Subject, planted_run
from bayesgeom.measurements.posterior_lens import stages_of
from bayesgeom.measurements.running import AT_ONCE
from bayesgeom.models.base import Model, Stream, bytes_per_sequence, recording_bytes
from bayesgeom.models.unembedding import Unembedding
from bayesgeom.report.estimate import (
    UNTRAINED,
    Baseline,
    Estimate,
    Kind,
    NonNegative,
    Quantity,
    mean_estimate,
    stacked,
)
from bayesgeom.report.panels import Panel
from bayesgeom.report.report import Report
from bayesgeom.report.tables import Headline, headline_of
from bayesgeom.stats.behavior import POSITION, UNIFORM, context_free_kl_bits
from bayesgeom.stats.bootstrap import ARRIVED, arrival, ratio_interval, shuffled_within_position
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.reduction import Reduction
from bayesgeom.tasks.base import Branch, FiniteTask, WindTunnel, derived_seed
from bayesgeom.tasks.dice import Dice

LOGIT, TUNED, PROBE, JACOBIAN = "logit lens", "tuned lens", "softmax probe", "J-lens"
EXACT, OWN = "exact posterior", "the model's own prediction"  # what lenses are compared with
SHUFFLED, MEAN = "shuffled labels", "mean prediction"
ANSWERS = ("all", "confident wrong")
CONFIDENT, WRONG = 0.5, 0.5  # least probability of a confident answer, and share of the exact's best that is wrong
N_FIT, N_TEST, LEAST = 1_024, 256, 80  # sequences; with fewer than LEAST in all nothing is fitted
_FITS = 3  # branch of seeds
_SMALLEST, _RIDGE, _NEAR = 1e-10, 1e-6, 1e-4
_AT_ONCE = 2**24  # logits over the whole vocabulary that are in memory together
_STEPS_PROBE, _STEPS_TUNED, _STEPS_SHUFFLED = 100, 20, 30
_BEFORE = Reduction("lens input", RESID_PRE, lambda values, *_: values, lambda *_: 0)
Scored = Float64[np.ndarray, "sequence position stage"]  # KL in bits
_LAST = Reduction("lens last", RESID_POST, lambda values, *_: values, lambda *_: 0)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class FittedLensReport(Report):
    """Two fitted lenses next to the logit lens, scored on sequences on which they were not fitted.

    The tuned lens maps a layer into the last one before the model's own end reads it, so it allows for another basis.
    The softmax probe is the best linear reader of the exact answer that was found: what any later linear part could
    know. Where it is far below the logit lens, the layer holds more than its answer says. Information that a probe
    finds need not be used. "Shuffled labels" is the same probe fitted to posteriors of other sequences at the same
    position: it knows the position alone, and is worse by what it overfits.

    Fields: KL(target ‖ lens) by lens and stage: the embedding, then after each layer. The `target` is the exact
    posterior, or the model's own prediction on plain text, where nothing is fitted.

    `arrival` is the number of layers from which the KL stays below a tenth of that of the stronger context-free
    predictor, NaN if it never does. `removed_bits` is the fall of the KL by each layer. `kept_bits` is
    KL(exact ‖ output) − KL(exact ‖ softmax probe), of the layer whose probe is best on the other half of the scored
    sequences: over all positions, and where the output is confidently wrong. There its best answer has a probability of
    at least one half, and less than half of the exact best's by the exact posterior. The baselines "shuffled labels"
    and "untrained networks" (one, of the same shape) are of the softmax probe alone. `n` sequences are scored, and the
    maps were fitted on `n_fit` others. `jacobian` names the loaded map of the J-lens.
    """

    name: ClassVar[str] = "fitted_lens"
    title: ClassVar[str] = "Posterior by layer, fitted lenses"

    kl_bits: Annotated[Estimate, NonNegative("lens_name stage", unit="bits", better="lower", label="KL(target ‖ lens)")]
    removed_bits: Annotated[Estimate, Quantity("lens_name layer", unit="bits", label="bits that the layer removes")]
    kept_bits: Annotated[
        Estimate,
        Quantity(
            "answer_kind", unit="bits", better="higher", label="bits that the best layer holds and the output not"
        ),
    ]
    arrival: Annotated[Estimate, NonNegative("lens_name", unit="layers", label="layers until the posterior is there")]
    lens_names: tuple[str, ...]
    answer_kinds: tuple[str, ...]
    stages: tuple[str, ...]
    target: str
    jacobian: str
    n_fit: int
    n: int

    def headlines(self) -> Sequence[Headline]:
        rows = [
            headline_of(self, "arrival", (at,), f"layers until it is there, {lens}", verdict="")
            for at, lens in enumerate(self.lens_names)
        ]
        if PROBE not in self.lens_names:
            return rows
        probe = self.lens_names.index(PROBE)
        first = headline_of(self, "kl_bits", (probe, -1), f"KL(exact ‖ {PROBE}), {self.stages[-1]}", verdict="")
        known = [at for at in range(len(ANSWERS)) if np.isfinite(self.kept_bits.value[at])]
        return [first, *(headline_of(self, "kept_bits", (at,)) for at in known), *rows]

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import add_baseline, add_estimate, add_line, label_layers, log_floor
        from bayesgeom.report.theme import SERIES, label_axes, log_axes

        n_layers, names = len(self.stages) - 1, self.lens_names
        x, main = np.arange(-1, n_layers), names.index(PROBE if PROBE in names else LOGIT)
        levels = (level for level in self.kl_bits.baselines if level.name in (UNIFORM, POSITION, MEAN))
        threshold = ARRIVED * min(float(level.value[0, 0]) for level in levels)
        panel = Panel.blank("KL by layer of each lens")
        add_baseline(panel.figure, x, threshold, name="there: a tenth of context-free")
        for at in (index for index in range(len(names)) if index != main):
            estimate = self.kl_bits[at]
            add_line(panel.figure, x, estimate.value, name=names[at], band=estimate.ends, color=SERIES[at + 1])
        add_estimate(panel.figure, x, self.kl_bits[main], name=names[main], is_log=True)
        log_axes(panel.figure, floor=log_floor(self.kl_bits.value, np.asarray(threshold)))
        label_layers(panel.figure, n_layers)
        label_axes(panel.figure, "read after layer (emb: the embedding)", f"KL({self.target} ‖ lens) (bits)")
        return [panel]


@final
@dataclass(frozen=True, kw_only=True)
class FittedLens(Measurement[FittedLensReport]):
    """Lenses that are fitted on `n_fit` sequences and scored on `n_test` others, or read on `n_test` texts.

    Args:
        jacobian: File or published name of a J-lens; "" for none.
    """

    name: ClassVar[str] = FittedLensReport.name
    asks: ClassVar[frozenset[Ask]] = frozenset({Ask.RERUN})
    is_default: ClassVar[bool] = False
    option: ClassVar[str] = "jacobian"
    jacobian: str = ""
    loaded: "JacobianMap | None" = field(default=None, repr=False)
    unembedding: Unembedding | None = field(default=None, repr=False)
    n_fit: int = field(default=0, repr=False)
    n_test: int = field(default=0, repr=False)

    def prepared(self, model: Model, task: WindTunnel, *, n: int, seed: int) -> Self:
        """Return the measurement on at most 2 n sequences, or on n texts, with the loaded J-lens."""
        model.require_asks(self.asks, by=self.name)
        model.require([LOGIT_LENS], by="fitted_lens")
        loaded = JacobianMap.of(self.jacobian, model.spec) if self.jacobian else None
        if task.has_posterior:  # the tuned lens is fitted through the end of the model
            check_differentiable(model.module, model.spec.name)
        layers = {RESID_PRE: range(model.spec.n_layers), RESID_POST: range(1)}
        each = bytes_per_sequence(model.spec, layers, task.sample(1, seed=seed))
        room = recording_bytes(model.spec.device, model.memory_gib) // each
        wanted = min(N_FIT + N_TEST, 2 * n + n // 2) if task.has_posterior else n
        most, least = min(wanted, room), LEAST if task.has_posterior else 1
        if isinstance(task, FiniteTask):
            most = min(most, task.n_sequences)
        if most < least:
            raise InvalidArgument(
                f"fitted_lens needs {least} sequences and would get {most}: raise n to at least {max(1, least // 2)}, "
                f"or the memory for activations by memory_gib of load (--memory-gib); a sequence takes "
                f"{each / 2**20:.3g} MiB."
            )
        return replace(
            self,
            loaded=loaded,
            unembedding=model.unembedding(),
            n_fit=most - most // 5 if task.has_posterior else 0,
            n_test=most // 5 if task.has_posterior else most,
        )

    def further(self, task: WindTunnel, run: Run, seed: int) -> Iterator[Further]:
        start, n = derived_seed(seed, Branch.TRIALS, _FITS), self.n_fit + self.n_test
        trials = concatenate([*task.stream(n, seed=start, device=run.trials.tokens.device)])
        yield Further(trials=trials, record=(_stream(run.spec, trials),), label="sequences of the lenses")

    def of(self, subject: Subject, untrained: Sequence[FittedLensReport] = ()) -> FittedLensReport:
        """Fit and score every layer; with untrained networks, the probe of one of them is a baseline."""
        assert self.unembedding is not None, "it is prepared"
        (run,) = (each.streamed for each in subject.further)
        assert run is not None, "there is a stream"
        fit = _Fit(
            spec=run.spec,
            task=subject.known_task(),
            unembedding=self.unembedding,
            jacobian=self.loaded,
            n_fit=self.n_fit,
            n_test=self.n_test,
            seed=subject.seed,
        )
        return fit.report(run, _untrained(subject, run.trials) if subject.n_untrained else None)

    def controls(self) -> Iterator[Control[FittedLensReport]]:
        """Yield layers that hold the posterior in the order of the output, in another order, and not at all."""
        task = Dice(n_faces=3, length=5)
        trials = task.sample(120, seed=0)
        exact = trials.at_scored(trials.predictive).float()
        noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(0))
        planted = planted_run(trials, {})
        spec = replace(planted.spec, n_layers=2, d_model=3, d_vocab=3)
        end = Unembedding(
            parts=(), factors=(1.0,), matrix=torch.eye(3), bias=None, output=None, scale=1.0, soft_cap=None
        )
        before = torch.stack([noise, exact.log().roll(1, dims=-1)])
        statistics = {_BEFORE.name: before, _LAST.name: exact.log()[None]}
        layers = {_BEFORE.name: (0, 1), _LAST.name: (1,)}
        run = replace(planted, spec=spec).with_statistics(statistics, layers, trials, planted.log_answers)

        def holds(report: FittedLensReport) -> bool:
            logit, _, probe = report.kl_bits.value
            return bool(probe[0] > 0.01 and logit[1] > 0.1 and probe[1] < 0.01 and max(logit[2], probe[2]) < 0.01)

        yield Control(
            label="noise, the posterior in another order, and as the output reads it",
            run=run,
            further=(run,),
            task=task,
            measurement=replace(self, unembedding=end, n_fit=96, n_test=24),
            holds=holds,
        )


def _stream(spec: ModelSpec, trials: Trials) -> Stream:
    """Return what is recorded: the residual stream at scored positions before each layer, and after the last."""
    return Stream(layers={_BEFORE: tuple(range(spec.n_layers)), _LAST: (spec.n_layers - 1,)}, trials=trials)


def _untrained(subject: Subject, trials: Trials) -> Run | None:
    """Return the same run of an untrained network; None if none with the same sites can be built."""
    try:
        network = subject.edited().untrained_copy(derived_seed(subject.seed, Branch.UNTRAINED, 0))
        network.require([RESID_PRE, RESID_POST], by="a baseline")
    except (MissingSite, NoCopy):
        return None
    return network.run(trials.batches(at_most=AT_ONCE), record=[_stream(network.spec, trials)]).streamed


def _residuals(run: Run) -> list[Float[Tensor, "batch query_pos d_model"]]:
    return [*run.reduced[_BEFORE.name], *run.reduced[_LAST.name]]


@final
@dataclass(frozen=True, kw_only=True)
class _Fit:
    """What every lens is fitted with."""

    spec: ModelSpec
    task: WindTunnel
    unembedding: Unembedding
    jacobian: "JacobianMap | None"
    n_fit: int
    n_test: int
    seed: int

    def report(self, run: Run, untrained: Run | None) -> FittedLensReport:
        residuals = _residuals(run)
        if not self.task.has_posterior:
            return self._of_text(residuals)
        exact = run.trials.at_scored(run.trials.predictive)
        scored = self._scored(run, residuals, exact)
        test = exact[self.n_fit :].cpu().numpy()
        references = context_free_kl_bits(test)
        probes = {SHUFFLED: self._shuffled(residuals, exact)}
        if untrained is not None:
            fitted = [self._probed(resid, exact[: self.n_fit], _STEPS_PROBE) for resid in _residuals(untrained)]
            probes[UNTRAINED] = _kl(exact[self.n_fit :], fitted)
        by_sequence, levels = ({name: kl.mean(axis=1) for name, kl in each.items()} for each in (scored, probes))
        report = self._assembled(by_sequence, references, levels)
        wrong = _is_wrong(test, run.log_answers[self.n_fit :].exp().cpu().numpy())
        return replace(report, kept_bits=self._kept(scored, probes, wrong))

    def _of_text(self, residuals: Sequence[Float[Tensor, "batch query_pos d_model"]]) -> FittedLensReport:
        """Compare the logit lens, and the J-lens if there is one, with the model's own prediction, over all ids."""
        (n, n_pos, _), d_vocab = residuals[-1].shape, self.spec.d_vocab
        dtype = getattr(torch, self.spec.dtype)
        parts = torch.arange(n).split(max(1, _AT_ONCE // (n_pos * d_vocab)))

        def read(resid: Tensor) -> Float[Tensor, "batch query_pos d_vocab"]:
            return self.unembedding.logits(resid.to(dtype)).double().log_softmax(dim=-1)

        with torch.no_grad(), phase("lenses on text", len(residuals), "layer") as shown:
            mean = sum(read(residuals[-1][part]).exp().sum(dim=(0, 1)) for part in parts) / (n * n_pos)
            assert isinstance(mean, Tensor)
            kl = defaultdict[str, np.ndarray](partial(np.zeros, (n, len(residuals))))
            references = defaultdict[str, np.ndarray](partial(np.zeros, n))
            for stage, resid in enumerate(residuals):
                for part in parts:
                    probs = read(residuals[-1][part]).exp()
                    read_by = {LOGIT: resid[part], **self._transported(resid[part], stage)}
                    for name, moved in read_by.items():
                        kl[name][part, stage] = _of_sequences(kl_bits(probs, read(moved)))
                    if stage == 0:
                        flat = torch.full_like(mean, 1 / d_vocab)
                        for name, level in ((UNIFORM, flat), (MEAN, mean)):
                            references[name][part] = _of_sequences(kl_bits(probs, level.log().expand_as(probs)))
                shown.update(1)
        return self._assembled(kl, references, {})

    def _transported(self, resid: Tensor, stage: int) -> dict[str, Tensor]:
        """Return the last residual that the J-lens expects from a layer's; NaN at the embedding, empty without one."""
        if self.jacobian is None:
            return {}
        if stage == 0:
            return {JACOBIAN: torch.full_like(resid, torch.nan)}
        matrix = self.jacobian.matrices.get(stage - 1)  # none after the last layer: the residual itself
        return {JACOBIAN: resid if matrix is None else resid.float() @ matrix.to(resid.device).T}

    def _assembled(
        self,
        kl_by_lens: Mapping[str, Float64[np.ndarray, "sequence stage"]],
        references: Mapping[str, Float64[np.ndarray, " sequence"]],
        probes: Mapping[str, Float64[np.ndarray, "sequence stage"]],
    ) -> FittedLensReport:
        """Return the report from the KL of each lens and of what the probe is compared with; `kept_bits` is unknown."""
        names, stages = tuple(kl_by_lens), len(kl_by_lens[LOGIT][0])

        def of_probe(name: str, bits: Float64[np.ndarray, " stage"]) -> Baseline:
            level = np.full((len(names), len(bits)), np.nan)
            level[names.index(PROBE)] = bits
            return Baseline.of(_kind(name), name, level)

        context_free = [Baseline.of("baseline", name, float(bits.mean())) for name, bits in references.items()]
        levels = [of_probe(name, bits.mean(axis=0)) for name, bits in probes.items()]
        falls = [of_probe(name, -np.diff(bits.mean(axis=0))) for name, bits in probes.items()]
        kl = np.stack([*kl_by_lens.values()], axis=1)
        reference, whole = min(references.values(), key=np.mean), Baseline.of("baseline", "all layers", stages - 1)
        arrivals = []
        for lens_kl in kl_by_lens.values():
            known = int(np.isnan(lens_kl[0]).sum())  # the J-lens does not read the embedding
            at, ends = arrival(lens_kl[:, known:], reference, seed=self.seed)
            ends = (ends[0] + known, ends[1] + known)
            arrivals.append(Estimate.of(at + known, ends, n=self.n_test, baselines=[whole]))
        return FittedLensReport(
            kl_bits=mean_estimate(kl, seed=self.seed, bounds=(0.0, np.inf), baselines=[*context_free, *levels]),
            removed_bits=mean_estimate(-np.diff(kl, axis=2), seed=self.seed, baselines=falls),
            kept_bits=Estimate.of(np.full(len(ANSWERS), np.nan), n=self.n_test),
            arrival=stacked(arrivals),
            lens_names=names,
            answer_kinds=ANSWERS,
            stages=stages_of(stages - 1),
            target=EXACT if self.task.has_posterior else OWN,
            jacobian=self.jacobian.name if self.jacobian else "",
            n_fit=self.n_fit,
            n=self.n_test,
        )

    def _kept(
        self,
        scored: Mapping[str, Scored],
        probes: Mapping[str, Scored],
        wrong: Bool[np.ndarray, "sequence position"],
    ) -> Estimate:
        """Return what the best layer's probe is nearer to exact than the output, over all and over wrong answers."""
        output = scored[LOGIT][..., -1]
        weights = np.stack([np.ones_like(output), wrong.astype(np.float64)], axis=-1)
        counts = weights.sum(axis=1)

        def beyond(own: Scored) -> Float64[np.ndarray, "sequence kind"]:
            return np.asarray(np.einsum("sp,spk->sk", output - _of_best_layer(own), weights))

        def ratio(sums: Float64[np.ndarray, "sequence kind"]) -> Float64[np.ndarray, " kind"]:
            total = counts.sum(axis=0)
            unknown = np.full(len(ANSWERS), np.nan)
            return np.asarray(np.divide(sums.sum(axis=0), total, out=unknown, where=total > 0))

        sums = beyond(scored[PROBE])
        levels = [Baseline.of(_kind(name), name, ratio(beyond(level))) for name, level in probes.items()]
        interval, value = ratio_interval(sums, counts, seed=self.seed), ratio(sums)
        reason = np.where(np.isnan(value), 0, interval.code)
        return Estimate.of(value, (interval.lo, interval.hi), n=self.n_test, baselines=levels, reason=reason)

    def _scored(
        self, run: Run, residuals: Sequence[Tensor], exact: Float64[Tensor, "batch query_pos answer"]
    ) -> dict[str, Scored]:
        """Return the KL of each lens on the sequences that are not fitted."""
        answers, n_fit, dtype = run.trials.answer_ids, self.n_fit, getattr(torch, run.spec.dtype)
        probs, last = run.log_answers.exp(), residuals[-1]

        def read(x: Tensor) -> Tensor:
            return self.unembedding.logits(x.to(dtype), answers)

        columns = defaultdict[str, list[Tensor]](list)
        for stage, resid in enumerate(residuals):
            axes = _Axes(resid[:n_fit])
            probe, is_last = axes.probe(exact[:n_fit], _STEPS_PROBE), stage == len(residuals) - 1
            # The map of the last residual into itself is the identity.
            tuned = read if is_last else axes.tuned(last[:n_fit], probs[:n_fit], lambda x: read(x).float())
            with torch.no_grad():
                test = resid[n_fit:]
                moved = {name: read(x) for name, x in self._transported(test, stage).items()}
                for name, logits in {LOGIT: read(test), TUNED: tuned(test), PROBE: probe(test), **moved}.items():
                    columns[name].append(logits)
        return {name: _kl(exact[n_fit:], logits) for name, logits in columns.items()}

    def _shuffled(self, residuals: Sequence[Tensor], exact: Float64[Tensor, "batch query_pos answer"]) -> Scored:
        """Return the KL of probes that were fitted to posteriors of other sequences at the same position."""
        rng = np.random.default_rng(derived_seed(self.seed, Branch.RESAMPLING, _FITS))
        others = torch.from_numpy(shuffled_within_position(exact[: self.n_fit].cpu().numpy(), rng)).to(exact.device)
        return _kl(exact[self.n_fit :], [self._probed(resid, others, _STEPS_SHUFFLED) for resid in residuals])

    def _probed(
        self, resid: Tensor, target: Float64[Tensor, "fitted query_pos answer"], steps: int
    ) -> Float[Tensor, "scored query_pos answer"]:
        """Return the logits of a probe on the sequences that are not fitted."""
        return _Axes(resid[: self.n_fit]).probe(target, steps)(resid[self.n_fit :])


@final
@dataclass(frozen=True, kw_only=True)
class JacobianMap:
    """A J-lens: the mean Jacobian of the last residual in each layer's, by layer; none for the last layer."""

    name: str
    matrices: Mapping[int, Float[Tensor, "d_model d_model"]]

    @classmethod
    def of(cls, name: str, spec: ModelSpec) -> Self:
        """Load a map by transformer-lens, from a file, or by the name of a published one.

        Raises:
            InvalidArgument: It cannot be loaded, or is of a model of other sizes.
        """
        try:
            from transformer_lens.tools.analysis import JacobianLens
        except ImportError as error:
            raise InvalidArgument(
                f"fitted_lens:{name} loads a J-lens by transformer-lens 4.3 or later: pip install -U transformer-lens."
            ) from error
        with Contained() as loading:
            lens = JacobianLens.from_pretrained(name)
        if loading.error is not None:
            reason = str(loading.error).strip().partition("\n")[0]
            raise InvalidArgument(
                f"the J-lens {name!r} cannot be loaded by transformer-lens: {reason}"
            ) from loading.error
        expected, target = [*range(spec.n_layers - 1)], lens.metadata.get("target_layer", spec.n_layers - 1)
        if (lens.d_model, lens.source_layers, target) != (spec.d_model, expected, spec.n_layers - 1):
            raise InvalidArgument(
                f"the J-lens {name!r} has {len(lens.source_layers)} maps of width {lens.d_model} into layer {target}; "
                f"{spec.name} needs {len(expected)} of width {spec.d_model} into layer {spec.n_layers - 1}, one for "
                f"each layer but the last. Pass the J-lens of this model."
            )
        return cls(name=Path(name).name if Path(name).is_file() else name, matrices=lens.jacobians)


def _kl(
    exact: Float64[Tensor, "batch query_pos answer"], logits: Sequence[Float[Tensor, "batch query_pos answer"]]
) -> Scored:
    """Return the KL in bits of every sequence and position from logits of the answers, by stage."""
    stages = [kl_bits(exact, stage_logits.double().log_softmax(dim=-1)).clamp_min(0.0) for stage_logits in logits]
    return np.asarray(torch.stack(stages, dim=2).cpu().numpy())


def _kind(name: str) -> Kind:
    return "permutation" if name == SHUFFLED else "baseline"


def _of_sequences(kl: Float[Tensor, "batch query_pos"]) -> Float64[np.ndarray, " sequence"]:
    return np.asarray(kl.clamp_min(0.0).mean(dim=1).cpu().numpy())


def _of_best_layer(kl: Scored) -> Float64[np.ndarray, "sequence position"]:
    """Return the KL of the stage that is best on the other half of the sequences, for each half."""
    best = kl[..., 0].copy()
    for half in (slice(0, None, 2), slice(1, None, 2)):
        others = np.delete(kl, half, axis=0)
        best[half] = kl[half][..., int(others.mean(axis=(0, 1)).argmin())]
    return best


def _is_wrong(
    exact: Float64[np.ndarray, "sequence position answer"], output: Float64[np.ndarray, "sequence position answer"]
) -> Bool[np.ndarray, "sequence position"]:
    """Return where the output's best answer is confident, and far less probable than the exact best one."""
    best = output.argmax(axis=-1)[..., None]
    of_best = np.take_along_axis(exact, best, axis=-1)[..., 0]
    return np.asarray((output.max(axis=-1) >= CONFIDENT) & (of_best < WRONG * exact.max(axis=-1)))


Reader = Callable[[Float[Tensor, "batch query_pos d_model"]], Float[Tensor, "batch query_pos answer"]]


@final
class _Axes:
    """The principal axes of a layer's residuals at the fitted points, scaled to variance 1."""

    def __init__(self, resid: Float[Tensor, "batch query_pos d_model"]) -> None:
        points = resid.flatten(0, 1)
        self.mean = points.mean(dim=0)
        centered = points - self.mean
        variances, axes = torch.linalg.eigh(centered.T.double() @ centered.double() / len(centered))
        kept = variances > _SMALLEST * variances[-1].clamp_min(1e-30)
        self.scaled = (axes[:, kept] / variances[kept].sqrt()).to(points.dtype)
        self.points = centered @ self.scaled

    def probe(self, exact: Float64[Tensor, "batch query_pos answer"], steps: int) -> Reader:
        """Return the linear map to the answers' logits with the least cross-entropy to the exact predictive."""
        target = exact.flatten(0, 1).to(self.points.dtype)
        weights = self.points.new_zeros(self.points.shape[1], target.shape[1])
        weights, offset = _minimized(
            lambda w, b: _cross_entropy(torch.addmm(b, self.points, w), target) + _RIDGE / 2 * w.square().sum(),
            (weights, target.mean(dim=0).clamp_min(1e-6).log()),
            steps,
        )
        return lambda resid: (resid - self.mean) @ self.scaled @ weights + offset

    def tuned(
        self,
        last: Float[Tensor, "batch query_pos d_model"],
        own: Float64[Tensor, "batch query_pos answer"],
        read: Reader,
    ) -> Reader:
        """Return the affine map into the last residual whose reading is nearest to the model's own prediction."""
        goal, target = last.flatten(0, 1), own.flatten(0, 1).to(self.points.dtype)
        start = self.points.T @ goal / len(goal)
        size = (start.square().sum() / max(1, len(start))).clamp_min(1e-30)  # a layer without variance has no axes
        matrix, offset = _minimized(
            lambda m, c: (
                _cross_entropy(read(self.points @ m + c), target) + _NEAR / 2 * (m - start).square().sum() / size
            ),
            (start, goal.mean(dim=0)),
            _STEPS_TUNED,
        )
        return lambda resid: read((resid - self.mean) @ self.scaled @ matrix + offset)


def _cross_entropy(logits: Float[Tensor, "point answer"], target: Float[Tensor, "point answer"]) -> Float[Tensor, ""]:
    return -(target * logits.log_softmax(dim=-1)).sum(dim=-1).mean()


def _minimized(
    loss: Callable[[Tensor, Tensor], Tensor], start: tuple[Tensor, Tensor], steps: int
) -> tuple[Tensor, Tensor]:
    """Return the arguments that minimize a loss, by L-BFGS."""
    first, second = (tensor.clone().requires_grad_() for tensor in start)
    optimizer = torch.optim.LBFGS([first, second], max_iter=steps, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        value = loss(first, second)
        first.grad, second.grad = torch.autograd.grad(value, (first, second))
        return value.detach()

    with torch.enable_grad():
        optimizer.step(closure)
    return first.detach(), second.detach()
