"""A cell of a scorecard: one architecture, trained on one world at one learning rate with one seed, and its numbers."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from bayesgeom.core import BayesGeomError, InvalidArgument, NonFinite, Trials, Verdict
from bayesgeom.core.plugins import Contained
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.measurements.audit_parts import mixture
from bayesgeom.measurements.evidence_response import evidence_response
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.resolve import as_model
from bayesgeom.report.estimate import Estimate, mean_estimate
from bayesgeom.scorecards.architectures import Architecture, architectures_of
from bayesgeom.scorecards.worlds import MEMORIZE, NAMED, TRANSPORT_AGE, World, world_from_config
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.associative_recall import AssociativeRecall
from bayesgeom.tasks.base import DerivedSeed
from bayesgeom.training.loop import Logits, held_out_kl, named_share
from bayesgeom.training.recipes import Recipe
from bayesgeom.training.steps import Training, built

HELD_OUT, SCORED, CHECK_EVERY, N_CURVE = 256, 512, 50, 12
DIVERGED = "the training diverged"  # at the beginning of the reason
_VALIDATION, _SCORES = (DerivedSeed(1_000_003 + number) for number in range(2))  # of sequences that no step draws
OBSERVERS, SEQUENCES = ("memorizing", "generalizing"), ("pool", "fresh")  # the exact observer of each kind of sequences
_CAUSAL = 1e-3  # of the largest logit: an earlier position may change by so much, which is rounding


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a cell, or why there is none.

    `setting` is what else the number belongs to: a verdict, the number of stored pairs, the name of a shortcut, or the
    reason. `seconds` is the processor time of the training until then; `weights` their hash.
    """

    architecture: str
    world: str
    rate: float
    seed: int
    step: int
    quantity: str
    setting: str = ""
    value: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    seconds: float = 0.0
    weights: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is trained: an architecture on a world, at a peak learning rate, with a seed, for so many steps."""

    architecture: Architecture
    world: World
    rate: float
    seed: int
    steps: int
    batch_size: int

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.architecture.name} on {self.world.name}, rate {self.rate:.2g}, seed {self.seed}"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `cell_at`."""
        own = {"architecture": self.architecture.name, "make": self.architecture.text, "world": self.world.config()}
        others = {"rate": self.rate, "seed": self.seed, "steps": self.steps, "batch_size": self.batch_size}
        return {**own, "digest": self.architecture.digest, **others}


def cell_at(*, architecture: str, make: str, digest: str, world: Mapping[str, Any], **settings: Any) -> list[Row]:
    """Do the job of one cell."""
    (found,) = architectures_of({architecture: make})
    if found.digest != digest:
        raise InvalidArgument(f"{make} is another file on this worker than where the job was made: copy it again.")
    return measured(Cell(architecture=found, world=world_from_config(world), **settings))


def measured(cell: Cell) -> list[Row]:
    """Train a cell and return its numbers; a fault of its network or of its training is a row, with the reason."""
    rows, training = list[Row](), None
    with Contained() as running:
        training = _begun(cell)
        for row in _rows(cell, training):
            rows.append(row)
    match running.error:
        case None:
            return rows
        case NonFinite():
            reason = f"{DIVERGED} at step {training.step if training else 0}"
        case BayesGeomError():
            reason = str(running.error)
        case _:
            reason = f"the network failed: {running.fault}"
    return [*rows, _row(cell, training, "failed", setting=reason)]


def _begun(cell: Cell) -> Training:
    """Return the training at its start, with a network that was checked."""
    world = cell.world
    net = built(cell.architecture.make, world.task.d_vocab, world.n_ctx, seed=cell.seed)
    recipe = Recipe(
        name=cell.name,
        task=world.stages[0],
        sizes={},
        optimizer="adamw",
        lr=cell.rate,
        warmup=min(200, cell.steps // 10),
        steps=cell.steps,
        batch_size=cell.batch_size,
        late_batch_size=cell.batch_size,
        seed=cell.seed,
        snapshots=0,
    )
    check_causal(module := Logits(net), world.stages[0].sample(2, seed=_VALIDATION), world.task.d_vocab)
    return Training(recipe, module)


@torch.no_grad()
def check_causal(module: nn.Module, trials: Trials, d_vocab: int) -> None:
    """Check that a module returns logits of every id, and that no position sees a later token.

    Raises:
        InvalidArgument: It does not.
    """
    tokens, changed = trials.tokens, trials.tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % d_vocab
    module.eval()
    logits = module(tokens)
    if not isinstance(logits, Tensor) or logits.shape != (*tokens.shape, d_vocab):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InvalidArgument(f"the network must return logits of shape {(*tokens.shape, d_vocab)}, got {shape}")
    difference = (module(changed) - logits)[:, :-1].abs().amax()
    if difference > _CAUSAL * logits.abs().amax():
        raise InvalidArgument("the network is not causal: an earlier position changes with the last token")


def _rows(cell: Cell, training: Training) -> Iterator[Row]:
    """Train, and yield the numbers: the learning curve, then the scores at the end."""
    world, module, stages = cell.world, training.module, iter(cell.world.stages)
    yield _row(cell, training, "parameters", _n_parameters(module, world.task.d_vocab))
    validation = world.task.sample(HELD_OUT, seed=_VALIDATION)
    due = {0, *np.geomspace(min(10, cell.steps), cell.steps, N_CURVE).round().astype(int).tolist()}
    training.on(stage := next(stages))
    check = stage.sample(HELD_OUT // 2, seed=_VALIDATION)
    while True:
        if training.step in due:
            kl = held_out_kl(training.evaluated(), validation)
            yield _row(cell, training, "validation_kl_bits", kl, setting=str(world.stages.index(stage) + 1))
            if world.primitive == MEMORIZE:
                yield from _mixture_rows(cell, training, HELD_OUT if not training.is_over else SCORED)
            module.train()
        if training.is_over:
            break
        if stage != world.task and training.step % CHECK_EVERY == 0:
            if named_share(training.evaluated(), check) >= NAMED:
                training.on(stage := next(stages))
                check = stage.sample(HELD_OUT // 2, seed=_VALIDATION)
            module.train()
        training.advance()
    training.evaluated()
    yield from _scores(cell, training)


def _scores(cell: Cell, training: Training) -> Iterator[Row]:
    """Yield what the trained network reaches on sequences that chose nothing."""
    world, module = cell.world, training.module
    assert isinstance(module, Logits), "_begun made it"
    model, digest = as_model(module.net), weights_hash(module.net.state_dict())
    found: Any = diagnose(model, world.task, n=SCORED, seed=_SCORES, n_untrained=0, probes=["calibration"])
    calibration = found["calibration"]
    yield _row(cell, training, "kl_bits", calibration.kl_bits, weights=digest)
    level = float(calibration.reference_kl_bits[0])
    yield _row(cell, training, "context_free_kl_bits", level, setting=calibration.references[0])
    # Window observers are added up to one length: those that calibration lists depend on the model.
    levels = {level.name: float(level.value) for level in calibration.kl_bits.baselines if "window" not in level.name}
    if len(calibration.windows) > TRANSPORT_AGE:
        levels[f"window {TRANSPORT_AGE}"] = float(calibration.window_kl_bits.value[:, TRANSPORT_AGE].min())
    shortcut = min(levels, key=levels.__getitem__)
    yield _row(cell, training, "shortcut_kl_bits", levels[shortcut], setting=shortcut)
    if world.primitive == "transport":
        response = evidence_response(model, world.task, ages=[TRANSPORT_AGE], n=SCORED, seed=_SCORES)
        at = response.ages.index(str(TRANSPORT_AGE))
        verdict = str(Verdict(response.verdicts[at]))
        yield _row(cell, training, "slope", response.slope[at], setting=verdict)
    if world.primitive == "bind":
        for task in (*world.stages, *world.harder):
            if isinstance(task, AssociativeRecall):  # what is bound, not whether a key is known to be absent
                task = replace(task, unstored_share=0.0)
            trials = task.sample(HELD_OUT, seed=_SCORES)
            pairs = str(vars(task).get("n_pairs", task))
            kl, share = (mean_estimate(values, seed=cell.seed) for values in named_scores(module, trials))
            yield _row(cell, training, "named", share, setting=pairs)
            yield _row(cell, training, "kl_bits_at", kl, setting=pairs)


@torch.no_grad()
def named_scores(
    module: nn.Module, trials: Trials
) -> tuple[Float64[np.ndarray, " batch"], Float64[np.ndarray, " some"]]:
    """Return, by sequence, the KL, and the share of the answers with a probability above 0.99 that are named."""
    exact = trials.at_scored(trials.predictive)
    answers = trials.at_scored(module(trials.tokens))[:, :, trials.answers].double().log_softmax(-1)
    is_stored = exact.amax(-1) > 0.99
    is_right = (answers.argmax(-1) == exact.argmax(-1)) & is_stored
    has_stored = is_stored.any(1)
    share = is_right.sum(1)[has_stored].double() / is_stored.sum(1)[has_stored]
    return kl_bits(exact, answers).mean(1).numpy(), share.numpy()


def _mixture_rows(cell: Cell, training: Training, n: int) -> Iterator[Row]:
    """Yield how much of the predictions is that of the observer who knows the pool, and of the one who does not.

    They are the weights of the nearest mixture of all predictors of the task, as in an audit, on sequences of the pool
    and on those of new chains, each with a part of the weights that belongs to neither.
    """
    for task, exactly, name in zip((cell.world.task, *cell.world.harder), OBSERVERS, SEQUENCES, strict=False):
        trials = task.sample(n, seed=_SCORES)
        predicted = {exactly: trials.at_scored(trials.predictive), **task.baseline_predictives(trials)}
        with torch.no_grad():
            answers = trials.at_scored(training.module(trials.tokens))[:, :, trials.answers].double().softmax(-1)
        known = {observer: probs.numpy() for observer, probs in predicted.items()}
        weights, left = mixture(answers.numpy(), known, seed=cell.seed)
        for observer in OBSERVERS:
            yield _row(cell, training, observer, weights[list(known).index(observer)], setting=name)
        yield _row(cell, training, "mixture_kl_bits", float(left.mean()), setting=name)


def _n_parameters(module: nn.Module, d_vocab: int) -> float:
    """Return the number of parameters without embeddings and read-outs: matrices with a row or column for each id."""
    return float(sum(own.numel() for own in module.parameters() if own.ndim != 2 or d_vocab not in own.shape))


def _row(
    cell: Cell,
    training: Training | None,
    quantity: str,
    value: Estimate | float = math.nan,
    *,
    setting: str = "",
    weights: str = "",
) -> Row:
    low, high = map(float, value.ends) if isinstance(value, Estimate) else (math.nan, math.nan)
    return Row(
        architecture=cell.architecture.name,
        world=cell.world.name,
        rate=cell.rate,
        seed=cell.seed,
        step=0 if training is None else training.step,
        quantity=quantity,
        setting=setting,
        value=float(value),
        lower=low,
        upper=high,
        seconds=0.0 if training is None else round(training.seconds, 1),
        weights=weights,
    )
