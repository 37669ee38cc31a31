"""`paths`: how many bits the prediction loses without one direct edge between two parts of a model.

An edge leads from a sender to one input of a receiver. The sender is the embedding, a head, or an MLP; the input is
q, k or v of a later head, the input of a later MLP, or the output. Path patching removes this edge alone:

1. The sender's update of the residual stream is replaced by its mean over sequences at each position, in what this one
   input reads. Everything between sender and receiver keeps its activations: no other part sees the change.
2. What the receiver then writes reaches all later layers as usual, and the prediction is scored again.

A norm at the receiver's input is computed anew. The increase of KL(exact ‖ model) is what the edge is worth.

References:
    Goldowsky-Dill, MacLeod, Sato & Arora 2023, "Localizing model behavior with path patching", arXiv:2304.05969;
    Wang et al. 2022, "Interpretability in the wild", arXiv:2211.00593.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import ClassVar, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from bayesgeom.ablations.engine import BatchReference, Exact, Means, batches, edited_logits, position_means
from bayesgeom.ablations.run import N_REFERENCE
from bayesgeom.circuits.effects import context_free
from bayesgeom.circuits.graph import N_LISTED, PathsReport, paths_report
from bayesgeom.circuits.writers import HEAD_INPUTS, Receiver, Writer, Writers
from bayesgeom.core import (
    K_ROT,
    MLP_OUT,
    Q_ROT,
    RESID_POST,
    RESID_PRE,
    AblationMode,
    InvalidArgument,
    K,
    Q,
    Reference,
    Replace,
    Site,
    Trials,
    UnknownName,
    V,
    Z,
    checked,
    phase,
)
from bayesgeom.core.errors import suggestion
from bayesgeom.models.base import BaselinePass, Model, Variant, provenance
from bayesgeom.models.replay.hooked import PlainLoop, PrefixReplay, mlp_reads
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, scored_task_of
from bayesgeom.report.report import with_provenance
from bayesgeom.tasks.base import Branch, WindTunnel, at_most, check_count, derived_seed

MOST_EDGES = 20_000
N_DRAWS = 20  # random directions of each of the strongest edges
_MEANS, _CHANCE = 3, 4  # branches of the seed
_AT_ONCE = 8  # senders whose receivers are replayed together


@final
@dataclass(frozen=True, eq=False)
class _Given(AblationMode):
    """Replace an activation by this one; at site z by that of one head."""

    name: ClassVar[str] = "given"
    values: Tensor

    def replacement(
        self, values: Shaped[Tensor, "..."], site: Site, layer: int, reference: Reference
    ) -> Shaped[Tensor, "..."]:
        return self.values[:, :, None] if site == Z else self.values


Edge = tuple[Writer, Receiver]
Own = TypeVar("Own", Writer, Receiver)


@checked("model", "task")
def paths(
    model: ModelLike,
    task: TaskLike | None = None,
    *,
    senders: Sequence[str] | None = None,
    receivers: Sequence[str] | None = None,
    n: int = 64,
    seed: int = 0,
) -> PathsReport:
    """Measure the KL increase without each direct edge between the embedding, heads, MLPs and the output.

    Args:
        model: A model, its name or its directory.
        task: A task or its name; by default the one that the model was trained on.
        senders: Labels such as "embedding", "L0H2", "L1 mlp". Default: all.
        receivers: Labels such as "L2H3 k" (one input), "L2H3" (its q, k and v), "L2 mlp", "output". Default: all.
        n: Sequences to draw.
        seed: Seed of the sequences, means and intervals.

    Returns:
        The KL increase of every edge from a sender to a later receiver, with intervals over sequences.

    Raises:
        InvalidArgument: n < 1, no sender comes before a receiver, or there are more than 20,000 edges.
        UnknownName: There is no such sender or receiver.
        MissingSite: The model lacks a site that an edge needs.
        TaskMismatch: The task has no exact posterior, or does not fit the model.

    Example:
        >>> import bayesgeom
        >>> task = bayesgeom.tasks.Bijection(n_values=5, n_pairs=3)
        >>> config = bayesgeom.TransformerConfig(d_vocab=10, n_ctx=5, n_layers=1, n_heads=1, d_model=8, d_mlp=8)
        >>> bayesgeom.paths(config.build(seed=0), task, n=9, receivers=["L0 mlp", "output"]).edges
        ('embedding → L0 mlp', 'L0H0 → L0 mlp', 'embedding → output', 'L0H0 → output', 'L0 mlp → output')
    """
    check_count(n)
    subject = model_for(model, task)
    return PathsRun.of(subject, scored_task_of(subject, task), senders, receivers).report(n, seed)


@final
@dataclass(frozen=True, kw_only=True)
class PathsRun:
    """Checked edges of a model on a task. Internal."""

    model: Model
    task: WindTunnel
    writers: Writers
    edges: tuple[Edge, ...]  # ordered by layer and input of the receiver

    @classmethod
    def of(
        cls, model: Model, task: WindTunnel, senders: Sequence[str] | None, receivers: Sequence[str] | None
    ) -> "PathsRun":
        """Check all arguments before anything runs."""
        writers = Writers(model, by="paths")
        serial = frozenset(layer for layer in model.layers_of(MLP_OUT) if mlp_reads(model, layer) != RESID_PRE)
        sending = _chosen("sender", senders, {writer.label: [writer] for writer in writers.every})
        receiving = sorted(_chosen("receiver", receivers, _receivers(model)), key=_order)
        edges = tuple((a, b) for b in receiving for a in sending if b.reads(a, serial))
        if not edges:
            raise InvalidArgument(
                f"no edge leads from {sending[0].label}{', …' * (len(sending) > 1)} to {receiving[0].label}"
                f"{', …' * (len(receiving) > 1)}: a sender must write before the receiver reads."
            )
        if len(edges) > MOST_EDGES:
            raise InvalidArgument(
                f"{model.spec.name} has {len(edges):,} edges between these senders and receivers; at most "
                f"{MOST_EDGES:,} are measured at once. Name some: receivers=['output'], or senders=['embedding']."
            )
        return cls(model=model, task=task, writers=writers, edges=edges)

    def report(self, n: int, seed: int) -> PathsReport:
        """Measure `n` sequences, with means of others, and the strongest edges with random changes."""
        engine, spec = self.model.replayer(), self.model.spec
        replayer = engine if isinstance(engine, PrefixReplay) else PlainLoop(self.model)
        with phase("means"):
            n_others = at_most(self.task, N_REFERENCE)
            others = self._blocks(n_others, derived_seed(seed, _MEANS))
            means = position_means(replayer, others, spec, self.writers.places(), n_others)
        drawn = self._blocks(at_most(self.task, n), derived_seed(seed, Branch.TRIALS))
        parts = [trials for block in drawn for trials in batches(block, spec)]
        measuring = EdgeReplay(writers=self.writers, replayer=replayer, means=means)
        with phase("edges", len(parts) * len(self.edges), "edge") as shown:
            scores = [measuring.kl_bits(trials, self.edges, shown.update) for trials in parts]
        kl = np.concatenate([whole for whole, _ in scores])
        lost = np.concatenate([without for _, without in scores], axis=1).T - kl[:, None]
        strongest = np.argsort(-lost.mean(axis=0), kind="stable")[:N_LISTED]
        chance = np.full((N_DRAWS, len(self.edges)), np.nan)
        generator = torch.Generator().manual_seed(derived_seed(seed, _CHANCE))
        edges = [self.edges[at] for at in sorted(strongest)]
        with phase("random directions", len(parts) * len(edges) * N_DRAWS, "edge") as shown:
            for draw in range(N_DRAWS):
                gaussian = torch.randn(spec.d_model, spec.d_model, generator=generator, dtype=torch.float32)
                turn = torch.linalg.qr(gaussian).Q
                turned = [measuring.kl_bits(trials, edges, shown.update, turn)[1] for trials in parts]
                chance[draw, sorted(strongest)] = np.concatenate(turned, axis=1).mean(axis=1) - kl.mean()
        report = paths_report(
            self.edges,
            lost,
            kl,
            context_free=context_free([trials.at_scored(trials.predictive) for trials in parts]),
            chance=chance,
            shape=(spec.n_layers, spec.n_heads),
            seed=derived_seed(seed, Branch.RESAMPLING),
        )
        arguments = {"n": n, "seed": seed, "edges": len(self.edges)}
        return with_provenance(report, provenance(self.model, self.task, arguments))

    def _blocks(self, n: int, seed: int) -> Iterator[Trials]:
        for block in self.task.stream(n, seed=seed, device=self.model.spec.device):
            self.model.check_fits(block)
            yield block


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeReplay:
    """Replays edges, each removed alone."""

    writers: Writers
    replayer: PrefixReplay | PlainLoop
    means: Means

    def kl_bits(
        self,
        trials: Trials,
        edges: Sequence[Edge],
        tell: Callable[[int], object],
        turn: Float[Tensor, "d_model d_model"] | None = None,
    ) -> tuple[Float[np.ndarray, " sequence"], Float[np.ndarray, "edge sequence"]]:
        """Return the KL of every sequence, mean over scored positions, with all edges and without each of them.

        Args:
            trials: The sequences.
            edges: The edges.
            tell: Is told how many edges were replayed.
            turn: Rotates what senders lose, so that it points in random directions and is as long.
        """
        baseline, exact = self.replayer.baseline(trials), Exact.of(trials)
        stored, places = baseline.stored, self.writers.places()
        deviations = {place: self.means[place].to(stored[place]) - stored[place] for place in places}
        every, senders = self.writers.updates(deviations, stored), {sender for sender, _ in edges}
        changes = {writer: (x.clone() if turn is None else x @ turn.to(x)) for writer, x in every if writer in senders}

        def kl_of(logits: Float[Tensor, "batch query_pos d_vocab"]) -> Float[np.ndarray, " sequence"]:
            return np.asarray(exact.scores(logits)[0].mean(axis=1))

        without, reference = np.zeros((len(edges), len(trials))), BatchReference({}, baseline)
        for numbers, variants in self._variants(baseline, edges, changes):
            for which, logits in edited_logits(self.replayer, baseline, variants, reference):
                for at, edited in zip(which, logits, strict=True):
                    without[numbers[at]] = kl_of(edited)
            tell(len(numbers))
        return kl_of(baseline.logits), without

    def _variants(
        self, baseline: BaselinePass, edges: Sequence[Edge], changes: Mapping[Writer, Tensor]
    ) -> Iterator[tuple[list[int], list[Variant]]]:
        """Yield edits that stand for edges to one kind of input in one layer, a few senders at a time."""
        numbered = sorted(enumerate(edges), key=lambda entry: _order(entry[1][1])[:2])
        for (layer, kind), group in groupby(numbered, key=lambda entry: _order(entry[1][1])[:2]):
            by_sender: dict[Writer, list[tuple[int, Receiver]]] = {}
            for number, (sender, receiver) in group:
                by_sender.setdefault(sender, []).append((number, receiver))
            listed = list(by_sender)
            for start in range(0, len(listed), _AT_ONCE):
                chosen = listed[start : start + _AT_ONCE]
                received = self._received(baseline, kind, layer, [changes[writer] for writer in chosen])
                each = [
                    (number, (_edit(receiver, values),))
                    for sender, values in zip(chosen, received, strict=True)
                    for number, receiver in by_sender[sender]
                ]
                yield [number for number, _ in each], [variant for _, variant in each]

    def _received(
        self, baseline: BaselinePass, kind: str, layer: int, changes: Sequence[Float[Tensor, "batch pos d_model"]]
    ) -> Iterable[Tensor]:
        """Yield, for each change, what the receivers of one kind in a layer then write."""
        match kind:
            case "heads":
                return self.replayer.heads_received(baseline, layer, changes)
            case "mlp":
                return self.replayer.mlp_received(baseline, layer, changes)
        return (baseline.stored[RESID_POST, layer - 1] + change for change in changes)


def _edit(receiver: Receiver, values: Tensor) -> Replace:
    """Return the edit by which what a receiver writes takes these values."""
    if receiver.head >= 0:
        by = _Given(values[HEAD_INPUTS.index(receiver.input), :, :, receiver.head])
        return Replace(site=Z, layer=receiver.layer, mode=by.name, heads=(receiver.head,), by=by)
    by = _Given(values)
    if receiver.input == "mlp":
        return Replace(site=MLP_OUT, layer=receiver.layer, mode=by.name, by=by)
    return Replace(site=RESID_POST, layer=receiver.layer - 1, mode=by.name, by=by)


def _order(receiver: Receiver) -> tuple[int, str, int, int]:
    """Return what receivers are ordered by: inputs of the heads of a layer are replayed together."""
    is_head = receiver.head >= 0
    at = HEAD_INPUTS.index(receiver.input) if is_head else 0
    return receiver.layer, "heads" if is_head else receiver.input, receiver.head, at


def _receivers(model: Model) -> Mapping[str, list[Receiver]]:
    """Return all receivers whose inputs can be changed, by their labels; that of a head stands for its three inputs."""
    has = {site: frozenset(model.layers_of(site)) for site in (Q, Q_ROT, K, K_ROT)}
    heads = frozenset(model.layers_of(Z, V)) & (has[Q] | has[Q_ROT]) & (has[K] | has[K_ROT])
    named = dict[str, list[Receiver]]()
    for layer, head, head_input in product(sorted(heads), range(model.spec.n_heads), HEAD_INPUTS):
        receiver = Receiver(layer=layer, input=head_input, head=head)
        named.setdefault(receiver.part, []).append(receiver)
        named[receiver.label] = [receiver]
    rest = [Receiver(layer=layer, input="mlp") for layer in model.layers_of(MLP_OUT)]
    rest.append(Receiver(layer=model.spec.n_layers, input="output"))
    return named | {receiver.label: [receiver] for receiver in rest}


def _chosen(what: str, labels: Sequence[str] | None, named: Mapping[str, list[Own]]) -> list[Own]:
    """Return what these labels stand for; without labels all, in their order."""
    known = list(named)
    if labels is not None and not labels:
        raise InvalidArgument(f"{what}s is empty: name at least one, such as {known[0]!r}, or omit it for all.")
    for label in (name for name in labels or () if name not in named):
        few = f"{', '.join(known[:3])} … {known[-1]}"
        raise UnknownName(f"there is no {what} named {label!r}. There are: {few}.{suggestion(label, known)}")
    return list(dict.fromkeys(part for label in (known if labels is None else labels) for part in named[label]))
