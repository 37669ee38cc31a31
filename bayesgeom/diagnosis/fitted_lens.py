"""Fitted lenses: what a layer holds of the posterior, beyond what the model's own output matrix reads there.

Two maps are fitted to every layer and scored on other sequences:

    tuned lens      an affine map into the last residual, read by the model's own end, fitted to the model's predictions
    softmax probe   a linear map to the answers' log-odds, fitted to the exact predictive

Both act on the layer's principal axes, scaled to variance 1; axes with less than 1e-10 of the largest variance are left
out. Both have an intercept, without a penalty. The objective is the cross-entropy in nats, minimized by L-BFGS on all
points. The probe's penalty is ½ · 1e-6 · ‖W‖². The tuned lens starts at the least squares solution M and its penalty is
½ · 1e-4 · mean over columns of ‖column change‖² / mean square of M.

References:
    Belrose et al. 2023, arXiv:2303.08112 (tuned lens).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Self, final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.core import LOGIT_LENS, RESID_POST, RESID_PRE, InvalidArgument, NoCopy, Run, Trials, concatenate
from bayesgeom.models.base import Model, Stream, bytes_per_sequence, recording_bytes
from bayesgeom.models.captured.model import CapturedModel
from bayesgeom.models.resolve import require_posterior
from bayesgeom.models.served.model import ServedModel
from bayesgeom.models.unembedding import Unembedding
from bayesgeom.report import (
    Baseline,
    Estimate,
    Headline,
    NonNegative,
    Panel,
    Report,
    headline_of,
    mean_estimate,
    of_untrained,
    stacked,
)
from bayesgeom.stats import (
    ARRIVED,
    POSITION,
    UNIFORM,
    Reduction,
    arrival,
    context_free_kl_bits,
    kl_bits,
    shuffled_within_position,
)
from bayesgeom.tasks.base import Branch, WindTunnel, derived_seed

LENSES = ("logit lens", "tuned lens", "softmax probe")
SHUFFLED = "shuffled labels"
N_FIT, N_TEST, LEAST = 1_024, 256, 80  # sequences; with fewer than LEAST in all nothing is fitted
_FITS = 3  # branch of seeds
_SMALLEST, _RIDGE, _NEAR = 1e-10, 1e-6, 1e-4
_STEPS_PROBE, _STEPS_TUNED, _STEPS_SHUFFLED = 100, 20, 30
_BEFORE = Reduction("lens input", RESID_PRE, lambda values, *_: values, lambda *_: 0)
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

    Fields: KL(exact ‖ lens) by lens and stage: the embedding, then after each layer.

    `arrival` is the number of layers from which the KL stays below a tenth of that of the stronger context-free
    predictor, NaN if it never does. The baselines "shuffled labels" and "untrained networks" (one, of the same shape)
    are of the softmax probe alone. `n` sequences are scored, and the maps were fitted on `n_fit` others.
    """

    name: ClassVar[str] = "fitted_lens"
    title: ClassVar[str] = "Posterior by layer, fitted lenses"

    kl_bits: Annotated[Estimate, NonNegative("lens_name stage", unit="bits", better="lower", label="KL(exact ‖ lens)")]
    arrival: Annotated[Estimate, NonNegative("lens_name", unit="layers", label="layers until the posterior is there")]
    lens_names: tuple[str, ...]
    stages: tuple[str, ...]
    n_fit: int
    n: int

    def headlines(self) -> Sequence[Headline]:
        rows = [headline_of(self, "kl_bits", (2, -1), f"KL(exact ‖ softmax probe), {self.stages[-1]}", verdict="")]
        rows += [
            headline_of(self, "arrival", (at,), f"layers until it is there, {own}") for at, own in enumerate(LENSES)
        ]
        return rows

    def panels(self) -> Sequence[Panel]:
        from bayesgeom.charts.lines import add_baseline, add_estimate, add_line, label_layers, log_floor
        from bayesgeom.report import SERIES, label_axes, log_axes

        n_layers, probe = len(self.stages) - 1, len(self.lens_names) - 1
        x = np.arange(-1, n_layers)  # the embedding, then the layers
        threshold = ARRIVED * min(float(self.kl_bits.baseline(name).value[0, 0]) for name in (UNIFORM, POSITION))
        panel = Panel.blank("KL by layer of each lens")
        add_baseline(panel.figure, x, threshold, name="there: a tenth of context-free")
        for at, lens in enumerate(self.lens_names[:probe]):
            own = self.kl_bits[at]
            add_line(panel.figure, x, own.value, name=lens, band=own.ends, color=SERIES[at + 1])
        add_estimate(panel.figure, x, self.kl_bits[probe], name=self.lens_names[probe], is_log=True)
        log_axes(panel.figure, floor=log_floor(self.kl_bits.value, np.asarray(threshold)))
        label_layers(panel.figure, n_layers)
        label_axes(panel.figure, "read after layer (emb: the embedding)", "KL(exact ‖ lens) (bits)")
        return [panel]


@final
@dataclass(frozen=True, kw_only=True)
class LensFit:
    """A checked fit, before it runs; `n_fit` and `n_test` are numbers of sequences."""

    model: Model
    task: WindTunnel
    unembedding: Unembedding
    n_fit: int
    n_test: int
    seed: int

    @classmethod
    def of(cls, model: Model, task: WindTunnel, *, n: int, seed: int) -> Self:
        """Check that the lenses can be fitted, on at most 2 n sequences.

        Raises:
            InvalidArgument: The model cannot be run, or there are too few sequences or too little memory.
            MissingSite: The model has no logit lens.
            TaskMismatch: The task has no exact posterior.
        """
        require_posterior(task)
        if isinstance(model, CapturedModel | ServedModel):
            raise InvalidArgument(f"fitted_lens runs the model on more sequences: pass the model of {model.spec.name}.")
        model.require([LOGIT_LENS], by="fitted_lens")
        unembedding, one = model.unembedding(), task.sample(1, seed=seed)
        assert unembedding is not None, "there is a logit lens"
        layers = {RESID_PRE: range(model.spec.n_layers), RESID_POST: range(1)}
        each = bytes_per_sequence(model.spec, layers, one)
        most = min(N_FIT + N_TEST, 2 * n + n // 2, recording_bytes(model.spec.device, model.memory_gib) // each)
        if most < LEAST:
            raise InvalidArgument(
                f"fitted_lens needs {LEAST} sequences and would get {most}: raise n to at least {LEAST // 2}, or the "
                f"memory for activations by memory_gib of load (--memory-gib); a sequence takes {each / 2**20:.3g} MiB."
            )
        n_test = most // 5
        return cls(model=model, task=task, unembedding=unembedding, n_fit=most - n_test, n_test=n_test, seed=seed)

    def report(self, n_untrained: int) -> FittedLensReport:
        """Fit and score every layer; with untrained networks, the probe of one of them is a baseline."""
        run, residuals = _recorded(self.model, self._trials())
        exact = run.trials.at_scored(run.trials.predictive)
        found = self._scored(run, residuals, exact)
        stages = len(residuals)
        test = exact[self.n_fit :].cpu().numpy()
        references = context_free_kl_bits(test)
        shuffled = np.full((len(LENSES), stages), np.nan)
        shuffled[2] = self._shuffled(residuals, exact).mean(axis=0)
        levels = [
            *(Baseline.of("baseline", name, float(own.mean())) for name, own in references.items()),
            Baseline.of("permutation", SHUFFLED, shuffled),
            *(self._untrained() if n_untrained else ()),
        ]
        reference = min(references.values(), key=np.mean)
        arrivals = [arrival(own, reference, seed=self.seed) for own in found]
        whole = Baseline.of("baseline", "all layers", stages - 1)
        return FittedLensReport(
            kl_bits=mean_estimate(np.stack(found, axis=1), seed=self.seed, bounds=(0.0, np.inf), baselines=levels),
            arrival=stacked([Estimate.of(*own, n=self.n_test, baselines=[whole]) for own in arrivals]),
            lens_names=LENSES,
            stages=("embedding", *(f"layer {layer}" for layer in range(stages - 1))),
            n_fit=self.n_fit,
            n=self.n_test,
        )

    def _trials(self) -> list[Trials]:
        seed = derived_seed(self.seed, Branch.TRIALS, _FITS)
        return list(self.task.stream(self.n_fit + self.n_test, seed=seed, device=self.model.spec.device))

    def _scored(
        self, run: Run, residuals: Sequence[Tensor], exact: Float64[Tensor, "batch query_pos answer"]
    ) -> list[Float64[np.ndarray, "sequence stage"]]:
        """Return the KL of each lens on the sequences that are not fitted."""
        answers, n_fit = run.trials.answers, self.n_fit
        read = partial(self.unembedding.logits, ids=answers)
        own, last = run.log_answers.exp(), residuals[-1]
        columns: list[list[Tensor]] = [[], [], []]
        for stage, resid in enumerate(residuals):
            axes = _Axes(resid[:n_fit])
            probe = axes.probe(exact[:n_fit], _STEPS_PROBE)
            with torch.no_grad():
                columns[0].append(read(resid[n_fit:].to(getattr(torch, run.spec.dtype))))
                columns[2].append(probe(resid[n_fit:]))
            if stage == len(residuals) - 1:
                columns[1].append(columns[0][-1])  # the map into the last residual is the identity
                continue
            tuned = axes.tuned(last[:n_fit], own[:n_fit], lambda x: read(x.to(getattr(torch, run.spec.dtype))).float())
            with torch.no_grad():
                columns[1].append(tuned(resid[n_fit:]))
        return [_kl(exact[n_fit:], logits) for logits in columns]

    def _shuffled(
        self, residuals: Sequence[Tensor], exact: Float64[Tensor, "batch query_pos answer"]
    ) -> Float64[np.ndarray, "sequence stage"]:
        """Return the KL of probes that were fitted to posteriors of other sequences at the same position."""
        rng = np.random.default_rng(derived_seed(self.seed, Branch.RESAMPLING, _FITS))
        others = torch.from_numpy(shuffled_within_position(exact[: self.n_fit].cpu().numpy(), rng)).to(exact.device)
        return _kl(exact[self.n_fit :], [self._probed(own, others, _STEPS_SHUFFLED) for own in residuals])

    def _probed(
        self, resid: Tensor, target: Float64[Tensor, "fitted query_pos answer"], steps: int
    ) -> Float[Tensor, "scored query_pos answer"]:
        """Return the logits of a probe on the sequences that are not fitted."""
        return _Axes(resid[: self.n_fit]).probe(target, steps)(resid[self.n_fit :])

    def _untrained(self) -> tuple[Baseline, ...]:
        """Return the KL of the probe on an untrained network; empty if none can be built."""
        try:
            network = self.model.untrained_copy(derived_seed(self.seed, Branch.UNTRAINED, 0))
        except NoCopy:
            return ()
        run, residuals = _recorded(network, self._trials())
        exact = run.trials.at_scored(run.trials.predictive)
        logits = [self._probed(own, exact[: self.n_fit], _STEPS_PROBE) for own in residuals]
        level = np.full((len(LENSES), len(residuals)), np.nan)
        level[2] = _kl(exact[self.n_fit :], logits).mean(axis=0)
        return of_untrained([level])


def _recorded(model: Model, blocks: Sequence[Trials]) -> tuple[Run, list[Float[Tensor, "batch query_pos d_model"]]]:
    """Return a run over the sequences, and the residual stream at scored positions before each layer and at the end."""
    every, last = range(model.spec.n_layers), model.spec.n_layers - 1
    stream = Stream(layers={_BEFORE: tuple(every), _LAST: (last,)}, trials=concatenate([*blocks]))
    run = model.run(blocks, record=[stream]).streamed
    assert run is not None, "there is a stream"
    return run, [*run.reduced[_BEFORE.name], *run.reduced[_LAST.name]]


def _kl(
    exact: Float64[Tensor, "batch query_pos answer"], logits: Sequence[Float[Tensor, "batch query_pos answer"]]
) -> Float64[np.ndarray, "batch stage"]:
    """Return the KL in bits of every sequence from logits of the answers, by stage."""
    found = [kl_bits(exact, own.double().log_softmax(dim=-1)).mean(dim=1).clamp_min(0.0) for own in logits]
    return np.asarray(torch.stack(found, dim=1).cpu().numpy())


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
        size = start.square().mean().clamp_min(1e-30) * start.shape[1]
        matrix, offset = _minimized(
            lambda m, c: (
                _cross_entropy(read(self.points @ m + c), target) + _NEAR / 2 * (m - start).square().sum() / size
            ),
            (start, goal.mean(dim=0)),
            _STEPS_TUNED,
        )
        return lambda resid: read((resid - self.mean) @ self.scaled @ matrix + offset)


def _cross_entropy(logits: Float[Tensor, "point answer"], target: Float[Tensor, "point answer"]) -> Float[Tensor, ""]:
    loss: Tensor = -(target * logits.log_softmax(dim=-1)).sum(dim=-1).mean()
    return loss


def _minimized(
    loss: Callable[[Tensor, Tensor], Tensor], start: tuple[Tensor, Tensor], steps: int
) -> tuple[Tensor, Tensor]:
    """Return the arguments that minimize a loss, by L-BFGS."""
    first, second = (own.clone().requires_grad_() for own in start)
    optimizer = torch.optim.LBFGS([first, second], max_iter=steps, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        value = loss(first, second)
        first.grad, second.grad = torch.autograd.grad(value, (first, second))
        return value.detach()

    with torch.enable_grad():
        optimizer.step(closure)
    return first.detach(), second.detach()
