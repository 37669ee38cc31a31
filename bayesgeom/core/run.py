"""What a pass of a model consumes and yields: sites, sequences with their exact posterior, and the finished run.

A site is a named hook point. The names of sites and axes are those of transformer-lens, and the name of an axis decides
which entries are recorded: scored positions only for `pos` and `query_pos`, all entries for `key_pos` and `token`.
Trials are sequences drawn from a task, with the exact predictive at every scored position. A run holds the behavior on
every sequence, and the activations of the recorded ones.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from functools import cached_property
from typing import Any, cast, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from bayesgeom.core.batching import even_slices
from bayesgeom.core.errors import InvalidArgument, MissingSite, TaskMismatch, unknown_name
from bayesgeom.core.observers import WindowObservers


@final
@dataclass(frozen=True)
class Site:
    """A hook point that exists in every layer, with the axes of one layer's activation there.

    A site without a `batch` axis is read from the weights alone and needs no forward pass. Two sites of the same name
    and axes are equal.

    Attributes:
        name: Its name.
        axes: The axes of one layer's activation.
        hook_points: Paths of its hook point in a block of a native module, the first one that exists.
        stage: Its place in the order in which a block computes; a replay can start there. None: it cannot.
        is_inside_mlp: Whether a baseline keeps it on request only.
        proven_by: Name of the site whose equation proves this one, too. "": it has an equation of its own, or none.
    """

    name: str
    axes: tuple[str, ...]
    hook_points: tuple[str, ...] = field(default=(), kw_only=True, compare=False, repr=False)
    stage: int | None = field(default=None, kw_only=True, compare=False, repr=False)
    is_inside_mlp: bool = field(default=False, kw_only=True, compare=False, repr=False)
    proven_by: str = field(default="", kw_only=True, compare=False, repr=False)

    @property
    def is_static(self) -> bool:
        """Whether the site is read from the weights alone."""
        return "batch" not in self.axes


class Ask(Enum):
    """What a measurement may ask of a model beyond its first run; the value says it in words."""

    PREDICT = "predictions on further sequences"
    RERUN = "activations on further sequences"
    EDIT = "edited activations"
    GRADIENTS = "gradients"


_RESIDUAL = ("batch", "pos", "d_model")
_QUERY = ("batch", "pos", "head", "d_head")
_KEY = ("batch", "key_pos", "kv_head", "d_head")
_EXPERT = ("batch", "pos", "expert")

# The list of sites. What else repeats their names is derived from it: a new site is one entry here.
RESID_PRE = Site("resid_pre", _RESIDUAL, hook_points=("hook_resid_pre",), stage=0)
RESID_MID = Site("resid_mid", _RESIDUAL, hook_points=("hook_resid_mid",), stage=3)
RESID_POST = Site("resid_post", _RESIDUAL, hook_points=("hook_resid_post",), stage=8)
ATTN_OUT = Site("attn_out", _RESIDUAL, hook_points=("hook_attn_out",), stage=2)
MLP_OUT = Site("mlp_out", _RESIDUAL, hook_points=("hook_mlp_out",), stage=7)
# Hidden units of the MLP, after the activation function.
MLP_POST = Site("mlp_post", ("batch", "pos", "d_mlp"), hook_points=("mlp.hook_post",), stage=6, is_inside_mlp=True)
ROUTER_LOGITS = Site("router_logits", _EXPERT, stage=4, is_inside_mlp=True)  # of a mixture of experts
EXPERT_WEIGHTS = Site("expert_weights", _EXPERT, stage=5, is_inside_mlp=True)  # factors of the outputs; 0: not chosen
# A matrix of each head, if it is one, row by row: rows for keys, columns for values.
STATE = Site("state", ("batch", "pos", "d_state"))

Q = Site("q", _QUERY, hook_points=("attn.hook_q",), proven_by="q_rot")  # before rotation and norm
# Used in the attention scores; without rotation these use q and k themselves.
Q_ROT = Site("q_rot", _QUERY, hook_points=("attn.hook_rot_q", "attn.hook_q"))
K = Site("k", _KEY, hook_points=("attn.hook_k",), proven_by="k_rot")  # before rotation and norm
K_ROT = Site("k_rot", _KEY, hook_points=("attn.hook_rot_k", "attn.hook_k"))
V = Site("v", _KEY, hook_points=("attn.hook_v",))
Z = Site("z", _QUERY, hook_points=("attn.hook_z",), stage=1)  # a head's output, before W_O
PATTERN = Site("pattern", ("batch", "head", "query_pos", "key_pos"), hook_points=("attn.hook_pattern",))

TOKEN_EMBEDDINGS = Site("token_embeddings", ("token", "d_model"))  # the embedding alone, as it enters the first block
TOKEN_INPUTS = Site("token_inputs", ("token", "d_model"))  # the same after the norm, as the input of W_K
TOKEN_KEYS = Site("token_keys", ("token", "kv_head", "d_head"), proven_by="k")  # the keys: W_K and bias applied
NORM_WEIGHT = Site("norm_weight", ("d_model",))  # scale of the norm before attention; ones if there is no norm
W_K = Site("W_K", ("kv_head", "d_head", "d_model"), proven_by="k")
# Inner products of a head's columns of W_K; of bounded size.
W_K_GRAM = Site("W_K_gram", ("kv_head", "d_head", "column"), proven_by="k")
W_V = Site("W_V", ("kv_head", "d_head", "d_model"), proven_by="v")
W_O = Site("W_O", ("head", "d_head", "d_model"), proven_by="z")  # maps z to the update of the residual stream

ALL_SITES = tuple(site for site in tuple(globals().values()) if isinstance(site, Site))
# Computed from resid_pre during a pass, and no place of an edit: natural-log probabilities of the answers that the
# model's own final norm and output matrix read there. After the last layer they are the model's predictions.
LOGIT_LENS = Site("logit_lens", ("batch", "pos", "answer"))
_BY_NAME = {site.name: site for site in (*ALL_SITES, LOGIT_LENS)}
N_RECORDED = 192  # sequences whose activations a diagnosis stores: enough for every interval, and independent of n


def site_of(site: Site | str) -> Site:
    """Return the site of a name; a site is returned unchanged.

    Raises:
        UnknownName: There is no site of this name.
    """
    if isinstance(site, str) and site not in _BY_NAME:
        raise unknown_name("site", site, _BY_NAME)
    return _BY_NAME[site] if isinstance(site, str) else site


NO_LABEL = -100  # the label at positions that are not scored; torch's `ignore_index`
SLACK = 1e-6  # tolerance for the sum of probabilities


@final
@dataclass(frozen=True, kw_only=True, eq=False)
# No type parameters: shape checks would iterate over the values and so compute them.
class Relations(Mapping):  # type: ignore[type-arg]
    """Named relations, computed when the first one is read.

    Their size grows with the square of the length, and behavioral scores do not need them. `draw` computes them from
    one tensor with a row per sequence, so sequences can be selected and concatenated first. If the scored positions
    `query_positions` are known, relations to later positions are an error.
    """

    draw: Callable[[Shaped[Tensor, "batch *rest"]], Mapping[str, Bool[Tensor, "batch query_pos key_pos"]]]
    of: Shaped[Tensor, "batch *rest"]
    query_positions: Int64[Tensor, "batch query_pos"] | None = None

    def __getitem__(self, name: str) -> Bool[Tensor, "batch query_pos key_pos"]:
        return self._drawn[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._drawn)

    def __len__(self) -> int:
        return len(self._drawn)

    def rows(self, index: slice | Int64[Tensor, " row"]) -> "Relations":
        """Return the relations of the chosen sequences."""
        query_positions = None if self.query_positions is None else self.query_positions[index]
        return Relations(draw=self.draw, of=self.of[index], query_positions=query_positions)

    def and_of(self, others: Sequence["Relations"]) -> "Relations":
        """Return the relations of these sequences followed by others of the same task and length."""
        parts = [self, *others]
        query_positions = [part.query_positions for part in parts if part.query_positions is not None]
        return Relations(
            draw=self.draw,
            of=torch.cat([part.of for part in parts]),
            query_positions=torch.cat(query_positions) if len(query_positions) == len(parts) else None,
        )

    @cached_property
    def _drawn(self) -> Mapping[str, Bool[Tensor, "batch query_pos key_pos"]]:
        drawn = self.draw(self.of)
        if self.query_positions is not None:
            _check_causal(drawn, self.query_positions)
        return drawn


@final
@dataclass(frozen=True, kw_only=True)
class Trials:
    """A batch of sequences with the exact Bayesian predictive at each scored position.

    Every sequence has the same number of scored positions. `predictive` and `belief` are NaN elsewhere. Text without a
    known posterior has no `answers`, and a `predictive` and a `belief` of width 0; `has_posterior` is then false.

    Sequences may differ in length. Shorter ones are padded on the right, which the scored positions of a causal model
    do not see, so no mask is needed.

    Attributes:
        tokens: Token ids.
        scored: True at the scored positions.
        answers: Token ids of the answers, in the order of the last axis of `predictive`.
        predictive: Exact predictive over the answers.
        belief: Exact posterior over the hypotheses.
        labels: Token id of the label at scored positions, `NO_LABEL` elsewhere.
        token_sets: Named sets of ids whose keys may form the key frame.
        relations: Named boolean maps; true if an earlier position is evidence, in that sense, for the query.
        groups: Kind of each sequence, as an index into `group_names`, if there are several.
        group_names: Names of the kinds.
        observers: The filter behind the posterior, from which window observers are made, if the task has latent
            dynamics.
        is_labeled: Whether the belief is a label of a user, for which random labels by token are a control.
        is_signed: Whether the belief is that of a generalized process: its entries sum to 1 and may be negative.
        factor_sizes: Hypotheses of each independent factor, if the belief is over tuples of them, the last one fastest.
        statistics: Named numbers that summarize the belief, such as its mean or log variance; NaN where not scored.
        spellings: For each answer the token ids of each of its spellings, if answers are more than one token each; the
            ids in `answers` and `labels` are then beyond the vocabulary. Empty: the answers are tokens.
    """

    tokens: Int64[Tensor, "batch pos"]
    scored: Bool[Tensor, "batch pos"]
    answers: Int64[Tensor, " answer"]
    predictive: Float64[Tensor, "batch pos answer"]
    belief: Float64[Tensor, "batch pos hypothesis"]
    labels: Int64[Tensor, "batch pos"]
    token_sets: Mapping[str, Int64[Tensor, " token"]] = field(default_factory=dict)
    relations: Relations | Mapping[str, Bool[Tensor, "batch query_pos key_pos"]] = field(default_factory=dict)
    groups: Int64[Tensor, " batch"] | None = None
    group_names: tuple[str, ...] = ()
    observers: WindowObservers | None = None
    is_labeled: bool = False
    is_signed: bool = False
    factor_sizes: tuple[int, ...] = ()
    statistics: Mapping[str, Float64[Tensor, "batch pos"]] = field(default_factory=dict)
    spellings: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def __post_init__(self) -> None:
        counts = self.scored.sum(dim=1)
        if len(counts) == 0 or not bool((counts == counts[0]).all()) or int(counts[0]) == 0:
            listed = f"the counts are {counts.tolist()[:8]}"
            raise InvalidArgument(f"every sequence must score the same, non-zero number of positions; {listed}.")

    def __repr__(self) -> str:
        n, n_pos = self.tokens.shape
        return f"Trials({n:,} sequences of {n_pos} tokens, {self.n_scored} scored, {len(self.answers)} answers)"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def has_posterior(self) -> bool:
        """Whether an exact posterior is known."""
        return len(self.answers) > 0

    @property
    def answer_ids(self) -> Int64[Tensor, " answer"]:
        """Token ids of the answers, for what reads single logits; `TaskMismatch` if they are several tokens each."""
        if self.spellings:
            raise TaskMismatch(
                "answers of several tokens are measured by predictions and activations alone: for edits, gradients and "
                "lenses, choose symbols that are one token each."
            )
        return self.answers

    @cached_property
    def n_scored(self) -> int:
        """Scored positions per sequence."""
        return int(self.scored[0].sum())

    def at_scored(self, values: Shaped[Tensor, "batch pos *rest"]) -> Shaped[Tensor, "batch query_pos *rest"]:
        """Return `values` at the scored positions of each sequence, as a view if possible."""
        if (evenly := self.even_positions) is not None:
            return values[:, evenly]
        return values[self.scored].reshape(len(self), self.n_scored, *values.shape[2:])

    @cached_property
    def even_positions(self) -> slice | None:
        """The scored positions as a slice if they are the same in every sequence and evenly spaced."""
        if not len(self) or not torch.equal(self.scored, self.scored[:1].expand_as(self.scored)):
            return None
        first, *rest = self.scored[0].nonzero()[:, 0].tolist() or [0]
        step = rest[0] - first if rest else 1
        is_even = rest == list(range(first + step, first + step * (len(rest) + 1), step))
        return slice(first, first + step * len(rest) + 1, step) if is_even and self.n_scored else None

    def scored_positions(self) -> Int64[Tensor, "batch query_pos"]:
        """Return the index of each scored position in its sequence."""
        pos = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return self.at_scored(pos.expand(len(self), -1))

    def ends(self) -> Int64[Tensor, " batch"]:
        """Return the number of tokens of each sequence up to its last scored position, which padding can only follow.

        Example:
            >>> from bayesgeom import tasks
            >>> tasks.Bijection(n_values=5, n_pairs=2).sample(2, seed=0).ends()
            tensor([3, 3])
        """
        return self.scored_positions().amax(dim=1) + 1

    def is_read(self) -> Bool[Tensor, "batch pos"]:
        """Return which positions come before the end of their sequence (`ends`): no padding is among them."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.ends()[:, None]

    def visible(self) -> Bool[Tensor, "batch query_pos key_pos"]:
        """Return which positions a causal model sees at each scored position: those up to and including it.

        Example:
            >>> from bayesgeom import tasks
            >>> tasks.Bijection(n_values=5, n_pairs=2).sample(1, seed=0).visible()[0].int()
            tensor([[1, 0, 0],
                    [1, 1, 1]], dtype=torch.int32)
        """
        pos = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return pos <= self.scored_positions()[..., None]

    def token_ids(self) -> Int64[Tensor, " token"]:
        """Return the ids of all token sets, sorted: the `token` axis of sites that are read from the weights."""
        none = torch.zeros(0, dtype=torch.int64, device=self.tokens.device)
        return cast(Tensor, torch.cat([none, *self.token_sets.values()]).unique())

    def followed_by(self, texts: Sequence[Sequence[int]]) -> "Trials":
        """Return a sequence for each scored position and each text: it ends there, and the text follows.

        Its last token is scored.
        """
        (n, length), n_rows, device = self.tokens.shape, self.n_scored * len(texts), self.tokens.device
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (longest + 1 - len(text))] for text in texts], device=device)
        lengths = torch.tensor([*map(len, texts)], device=device).repeat(n * self.n_scored)
        tokens = torch.nn.functional.pad(self.tokens, (0, longest)).repeat_interleave(n_rows, dim=0)
        ends = self.scored_positions().flatten().repeat_interleave(len(texts)) + 1
        pos = torch.arange(length + longest, device=device) - ends[:, None]
        added = ids.repeat(n * self.n_scored, 1).gather(1, pos.clamp(0, longest))
        nothing = torch.zeros(*tokens.shape, 0, dtype=torch.float64, device=device)
        return Trials(
            tokens=torch.where(pos < 0, tokens, added),
            scored=pos == lengths[:, None] - 1,
            answers=self.answers[:0],
            predictive=nothing,
            belief=nothing,
            labels=torch.full_like(tokens, NO_LABEL),
        )

    def rows(self, index: slice | Int64[Tensor, " row"]) -> "Trials":
        """Return the chosen sequences."""
        cut = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("tokens", "scored", "predictive", "belief", "labels"):
            cut[name] = cut[name][index]
        cut["statistics"] = {name: values[index] for name, values in self.statistics.items()}
        cut["groups"] = None if self.groups is None else self.groups[index]
        cut["observers"] = None if self.observers is None else self.observers.rows(index)
        maps = self.relations
        cut["relations"] = maps.rows(index) if isinstance(maps, Relations) else {k: v[index] for k, v in maps.items()}
        return Trials(**cut)

    def batches(self, *, at_most: int | None = None, at_least: int = 1) -> Iterator["Trials"]:
        """Yield consecutive sequences in batches of even sizes; `at_most` and `at_least` as in `even_slices`."""
        for part in even_slices(len(self), at_most=at_most, at_least=at_least):
            yield self.rows(part)


def concatenate(parts: list[Trials]) -> Trials:
    """Return several batches of the same task and length as one batch."""
    first, groups = parts[0], [part.groups for part in parts if part.groups is not None]
    observers = [part.observers for part in parts if part.observers is not None]
    undrawn = [part.relations for part in parts if isinstance(part.relations, Relations)]
    if len(undrawn) == len(parts):
        relations: Mapping[str, Tensor] = undrawn[0].and_of(undrawn[1:])
    else:
        relations = {name: torch.cat([part.relations[name] for part in parts]) for name in first.relations}
    names = ("tokens", "scored", "predictive", "belief", "labels")
    joined: dict[str, Any] = {name: torch.cat([vars(part)[name] for part in parts]) for name in names}
    return replace(
        first,
        **joined,
        relations=relations,
        groups=torch.cat(groups) if groups else None,
        observers=observers[0].and_of(observers[1:]) if len(observers) == len(parts) else None,
        statistics={name: torch.cat([part.statistics[name] for part in parts]) for name in first.statistics},
    )


def with_renamed_answers(trials: Trials, names: Int64[Tensor, "batch answer"]) -> Trials:
    """Return the sequences with answers renamed consistently: answer a of sequence b becomes answer `names[b, a]`.

    The exact posterior is renamed, too.

    Args:
        trials: Sequences whose beliefs are over the answers.
        names: A permutation of the answers for each sequence.

    Raises:
        InvalidArgument: Beliefs are not over the answers.
    """
    if (n_beliefs := trials.belief.shape[-1]) != (n := len(trials.answers)):
        raise InvalidArgument(f"renaming {n} answers needs beliefs over these answers, got {n_beliefs} hypotheses.")
    largest = max(int(trials.tokens.max()), int(trials.answer_ids.max()))
    called = torch.arange(largest + 1, device=trials.tokens.device).repeat(len(trials), 1)
    called[:, trials.answers] = trials.answers[names]
    is_labeled = trials.labels != NO_LABEL

    def carried(values: Float64[Tensor, "batch pos answer"]) -> Float64[Tensor, "batch pos answer"]:
        to = names[:, None, :].expand_as(values)
        return torch.empty_like(values).scatter_(2, to, values)

    return replace(
        trials,
        tokens=called.gather(1, trials.tokens),
        labels=torch.where(is_labeled, called.gather(1, trials.labels * is_labeled), NO_LABEL),
        predictive=carried(trials.predictive),
        belief=carried(trials.belief),
    )


def checked_trials(trials: Trials, *, task: str) -> Trials:
    """Return a task's sequences after checking shapes, dtypes, distributions, labels and relations.

    Relations that are not computed yet are checked when they are.

    Raises:
        InvalidArgument: A check failed. The message names the field, and the first invalid sequence and position.
    """
    n, n_pos = trials.scored.shape
    for name, values in trials.statistics.items():
        if values.dtype != torch.float64 or values.shape != (n, n_pos) or not trials.at_scored(values).isfinite().all():
            raise InvalidArgument(
                f"task {task!r}: statistic {name!r} must be {torch.float64} of shape {(n, n_pos)} and finite at scored "
                f"positions; it is {values.dtype} of shape {tuple(values.shape)}."
            )
    layout = {
        "tokens": (torch.int64, (n, n_pos)),
        "scored": (torch.bool, (n, n_pos)),
        "labels": (torch.int64, (n, n_pos)),
        "answers": (torch.int64, (len(trials.answers),)),
        "predictive": (torch.float64, (n, n_pos, len(trials.answers))),
        "belief": (torch.float64, (n, n_pos, trials.belief.shape[-1])),
    }
    for name, (dtype, shape) in layout.items():
        tensor = vars(trials)[name]
        if tensor.dtype != dtype or tensor.shape != shape:
            raise InvalidArgument(
                f"task {task!r}: {name} must be {dtype} of shape {shape}, with the sequences, positions and "
                f"answers of the other fields; it is {tensor.dtype} of shape {tuple(tensor.shape)}."
            )
    if trials.has_posterior:
        _check_rows(trials, "predictive", task)
        if trials.belief is not trials.predictive and trials.belief.shape[-1]:
            _check_rows(trials, "belief", task, least=-torch.inf if trials.is_signed else 0.0)
        is_labeled = trials.at_scored(trials.labels)
        strange = (is_labeled != NO_LABEL) & ~torch.isin(is_labeled, trials.answers)
        if bool(strange.any()):
            sequence, query, where = _first(strange, trials.scored_positions())
            raise InvalidArgument(
                f"task {task!r}: label {where} is {int(is_labeled[sequence, query])}, which is not one of the answers. "
                f"Use the id of an answer, or NO_LABEL ({NO_LABEL})."
            )
    if isinstance(trials.relations, Relations):
        return replace(trials, relations=replace(trials.relations, query_positions=trials.scored_positions()))
    if trials.relations:
        _check_causal(trials.relations, trials.scored_positions())
    return trials


def _check_rows(trials: Trials, name: str, task: str, *, least: float = 0.0) -> None:
    rows = trials.at_scored(vars(trials)[name])
    wrong = ~((rows.amin(-1) >= least) & ((rows.sum(-1) - 1).abs() <= SLACK))  # true of NaN and infinity
    if bool(wrong.any()):
        sequence, query, where = _first(wrong, trials.scored_positions())
        row = rows[sequence, query]
        raise InvalidArgument(
            f"task {task!r}: {name} {where} is not a distribution: its least entry is {float(row.min()):.6g}, its sum "
            f"{float(row.sum()):.8g}. At scored positions, entries must be at least 0 and sum to 1 within {SLACK}."
        )


def _check_causal(relations: Mapping[str, Tensor], query_positions: Int64[Tensor, "batch query_pos"]) -> None:
    for name, related in relations.items():
        if related.dtype != torch.bool or related.shape[:-1] != query_positions.shape:
            raise InvalidArgument(
                f"relation {name!r} must be boolean with a row for every scored position, of shape "
                f"{(*query_positions.shape, 'positions')}; it is {related.dtype} of shape {tuple(related.shape)}."
            )
        later = torch.arange(related.shape[-1], device=query_positions.device) > query_positions[..., None]
        ahead = (related & later).any(-1)
        if bool(ahead.any()):
            sequence, query, where = _first(ahead, query_positions)
            position = (related & later)[sequence, query].nonzero()[0].item()
            raise InvalidArgument(
                f"relation {name!r} {where} marks position {position} as evidence, which comes later: a causal model "
                f"cannot see it. Remove positions after the scored one."
            )


def _first(
    wrong: Bool[Tensor, "batch query_pos"], query_positions: Int64[Tensor, "batch query_pos"]
) -> tuple[int, int, str]:
    """The first invalid sequence and query, and their description."""
    sequence, query = wrong.nonzero()[0].tolist()
    return sequence, query, f"of sequence {sequence} at position {int(query_positions[sequence, query])}"


_HASH = re.compile(r"[0-9a-f]{16}")
_UNTRAINED = "untrained, seed "
_OMITTED = ("quantization", "d_value", "n_experts")  # where they say nothing


@final
@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Sizes of a model, and what its numbers depend on.

    Attributes:
        name: Name of the checkpoint, or another name of the model.
        architecture: Name of the architecture, such as "transformer" or "llama".
        n_ctx: Longest sequence in tokens. None: any length.
        score_scale: Factor that multiplies q·k.
        weights_hash: Hash of the weights before they were wrapped. For an untrained network, the text of
            `untrained(seed)`.
        d_value: Width of a head's values and output; 0 if it is `d_head`.
        n_experts: Experts of a layer; 0 if there are none, or they are not known.
        d_state: Width of one layer's recurrent state at one position; 0 if there is none.
        quantization: Format from which the weights were dequantized; empty if they were not quantized.
    """

    name: str
    architecture: str
    n_layers: int
    n_heads: int = 0
    n_kv_heads: int = 0
    d_model: int
    d_head: int = 0
    d_mlp: int
    d_vocab: int
    n_ctx: int | None  # None: no position table, any length
    score_scale: float = 1.0
    n_parameters: int
    dtype: str
    device: str
    weights_hash: str
    d_state: int = 0
    quantization: str = ""
    d_value: int = 0
    n_experts: int = 0

    @property
    def d_of_value(self) -> int:
        """Width of a head's values and output, which is `d_head` in most architectures."""
        return self.d_value or self.d_head

    def sizes_at(self, site: Site) -> dict[str, int]:
        """Return the size of every axis of a site that the model determines, by the name of the axis."""
        sizes = {
            "head": self.n_heads,
            "kv_head": self.n_kv_heads,
            "d_head": self.d_of_value if site in (V, Z) else self.d_head,
            "d_model": self.d_model,
            "d_mlp": self.d_mlp,
        }
        optional = {"d_state": self.d_state, "expert": self.n_experts}
        return sizes | {axis: size for axis, size in optional.items() if size}

    @property
    def is_identified(self) -> bool:
        """Whether the weights were hashed. Saved progress is resumed only by a model with the same hash."""
        return bool(_HASH.fullmatch(self.weights_hash))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types, without those in `_OMITTED` that say nothing."""
        return {name: value for name, value in asdict(self).items() if name not in _OMITTED or value}


def untrained_hash(seed: int) -> str:
    """Return the text that replaces the hash of an untrained network, whose weights follow from its seed."""
    return f"{_UNTRAINED}{seed}"


def untrained_seed(spec: ModelSpec) -> int:
    """Return the seed of an untrained network."""
    return int(spec.weights_hash.removeprefix(_UNTRAINED))


def is_untrained(spec: ModelSpec) -> bool:
    """Return whether the spec is that of an untrained network."""
    return spec.weights_hash.startswith(_UNTRAINED)


@final
@dataclass(frozen=True, kw_only=True)
class Behavior:
    """Scores of predictions per sequence and scored position, in bits.

    Entropy, KL and total variation use the model's distribution renormalized over the answers. `off_answer_prob` is the
    probability that the model assigns to other ids. `answer_log2` is log2 of the probability of the label, and
    `correct` is 1 if the most probable answer is the label. Values are float32: sum them in float64.

    If no posterior is known, all values are NaN except `model_entropy_bits`, which is then over the whole vocabulary.
    """

    exact_entropy_bits: Float[np.ndarray, "sequence position"]
    model_entropy_bits: Float[np.ndarray, "sequence position"]
    kl_bits: Float[np.ndarray, "sequence position"]
    total_variation: Float[np.ndarray, "sequence position"]
    off_answer_prob: Float[np.ndarray, "sequence position"]
    answer_log2: Float[np.ndarray, "sequence position"]
    correct: Float[np.ndarray, "sequence position"]

    @property
    def entropy_error_bits(self) -> Float64[np.ndarray, "sequence position"]:
        """|H model − H exact|, in float64."""
        return np.asarray(np.abs(np.subtract(self.model_entropy_bits, self.exact_entropy_bits, dtype=np.float64)))


@final
@dataclass(frozen=True, kw_only=True)
class WindowScores:
    """Errors of every window observer, in bits.

    The axis `start` follows `bayesgeom.core.observers.STARTS`; `window` is the number of visible symbols, from 0.

    Attributes:
        kl_bits: Mean KL(exact ‖ window observer) of every sequence.
        kl_bits_by_position: KL at every position, mean over sequences, of windows of up to ten symbols.
        entropy_error_bits: Entropy error at every position, mean over sequences, of windows of up to ten symbols.
    """

    kl_bits: Float64[np.ndarray, "start window sequence"]
    kl_bits_by_position: Float64[np.ndarray, "start narrow position"]
    entropy_error_bits: Float64[np.ndarray, "start narrow position"]


def at_scored(
    site: Site, values: Shaped[Tensor, "*axes"], trials: Trials, *, axes: Sequence[str] = ("pos", "query_pos")
) -> Shaped[Tensor, "*kept"]:
    """Return a site's activations at the scored positions.

    Args:
        site: The site, which names the axes of `values`.
        values: Activations of one layer at every position.
        trials: The sequences.
        axes: Names of axes; the first one that the site has is reduced to the scored positions. If it has none of them,
            `values` is returned unchanged: keys and values keep every position unless "key_pos" is included.
    """
    for axis in axes:
        if axis in site.axes:
            at = site.axes.index(axis)
            return trials.at_scored(values.movedim(at, 1)).movedim(1, at)
    return values


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished pass of a model, which probes read.

    Attributes:
        spec: The model.
        behavior: Scores of the model on all `n` sequences.
        exact_behavior: Scores of the exact predictive on the same sequences.
        baseline_behaviors: Scores of each baseline predictor on the same sequences.
        trials: The first `n_recorded` sequences, whose activations were recorded.
        log_answers: Natural log of the model's answer probabilities, renormalized over the answers, on `trials`.
        recorded: Activations of every layer, by site, on `trials`.
        layers: Layers of the sites that only some layers have; the layer axis in `recorded` is that of these.
        reduced: Statistics of `trials` that were computed during the pass, by the name of their `Reduction`.
        reduced_layers: Layers of the statistics that were not computed in all layers; the first axis is that of these.
        streamed: The same pass with `reduced` on more sequences.
        seed: Seed of a probe's own resampling.
        windows: The window observers' scores on all `n` sequences. None if the task has no latent dynamics.
        masks: What the attention of each layer can see, if the run has patterns: see `bayesgeom.models.base.visible`.
            Empty: causal.
    """

    spec: ModelSpec
    behavior: Behavior
    exact_behavior: Behavior
    baseline_behaviors: Mapping[str, Behavior]
    trials: Trials
    log_answers: Float[Tensor, "batch query_pos answer"]
    recorded: Mapping[Site, Shaped[Tensor, "layer *axes"]]
    seed: int
    windows: WindowScores | None = None
    masks: tuple[Bool[Tensor, "from_pos key_pos"], ...] = ()
    layers: Mapping[Site, tuple[int, ...]] = field(default_factory=dict)
    reduced: Mapping[str, Shaped[Tensor, "reduced_layer *reduced"]] = field(default_factory=dict)
    reduced_layers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    streamed: "Run | None" = None

    @property
    def n(self) -> int:
        """Number of sequences in the behavioral scores."""
        return len(self.behavior.kl_bits)

    @property
    def n_recorded(self) -> int:
        """Number of sequences whose activations were recorded."""
        return len(self.trials)

    @property
    def has_posterior(self) -> bool:
        """Whether the exact posterior of these trials is known."""
        return self.trials.has_posterior

    def of_recorded(self) -> "Run":
        """Return the run with scores of the recorded sequences alone, without those of window observers."""

        def cut(behavior: Behavior) -> Behavior:
            return Behavior(**{name: values[: self.n_recorded] for name, values in vars(behavior).items()})

        baselines = {name: cut(behavior) for name, behavior in self.baseline_behaviors.items()}
        exact = cut(self.exact_behavior)
        return replace(
            self, behavior=cut(self.behavior), exact_behavior=exact, baseline_behaviors=baselines, windows=None
        )

    def with_statistics(
        self,
        reduced: Mapping[str, Shaped[Tensor, "reduced_layer *reduced"]],
        layers: Mapping[str, tuple[int, ...]],
        trials: Trials,
        log_answers: Float[Tensor, "streamed query_pos answer"],
    ) -> "Run":
        """Return the run with `streamed`: these statistics of these sequences, in these layers."""
        static = {site: values for site, values in self.recorded.items() if site.is_static}
        run = replace(self, trials=trials, log_answers=log_answers, recorded=static)
        return replace(self, streamed=replace(run, reduced=reduced, reduced_layers=layers))

    def within(self, layers: Sequence[int], sites: Sequence[Site], partial: Sequence[Site] = ()) -> "Run":
        """Return the run of a model that has only these layers, with sites and statistics that all of them have.

        Of `sites`, those in `partial` are left where only some of the layers have them.
        """
        every = tuple(range(self.spec.n_layers))

        def cut(stored: Tensor, available: tuple[int, ...], kept: Sequence[int] = layers) -> Tensor:
            return stored if tuple(kept) == available else stored[[available.index(layer) for layer in kept]]

        recorded, reduced, places = dict[Site, Tensor](), dict[str, Tensor](), dict[Site, tuple[int, ...]]()
        for site in (site for site in sites if site in self.recorded):
            available = self.layers.get(site, every)
            at = tuple(place for place, layer in enumerate(layers) if layer in available)
            if len(at) == len(layers) or (at and site in partial):
                recorded[site] = cut(self.recorded[site], available, [layers[place] for place in at])
                places |= {site: at} if len(at) < len(layers) else {}
        for name, stored in self.reduced.items():
            if set(layers) <= set(available := self.reduced_layers.get(name, every)):
                reduced[name] = cut(stored, available)
        spec, masks = replace(self.spec, n_layers=len(layers)), tuple(self.masks[at] for at in layers if self.masks)
        run = replace(self, spec=spec, recorded=recorded, masks=masks, layers=places, reduced=reduced)
        return replace(run, reduced_layers={}, streamed=None)

    def reference_entropy_bits(self) -> Float[np.ndarray, "batch query_pos"]:
        """Return the entropy that geometry is compared with, for the recorded sequences.

        This is the entropy of the exact predictive. On text without a known posterior, it is the entropy of the model's
        own prediction over the whole vocabulary.
        """
        if self.has_posterior:
            exact = self.trials.at_scored(self.trials.predictive)
            entropy: Tensor = -torch.xlogy(exact, exact).sum(-1) / math.log(2)
            return entropy.cpu().numpy()
        return self.behavior.model_entropy_bits[: self.n_recorded].astype(np.float64)

    def vectors(self, site: Site | str, layer: int) -> Float[Tensor, "batch query_pos d"]:
        """Return the recorded activations of one layer at the scored positions, with heads concatenated.

        Raises:
            MissingSite: The site was not recorded.
        """
        site = site_of(site)
        return at_scored(site, self.at(site)[layer], self.trials, axes=("key_pos",)).flatten(2)

    def rows_of(self, site: Site) -> list[int]:
        """Return for every layer its row in `recorded`, or that of the nearest layer that has the site."""
        every = range(self.spec.n_layers)
        available = self.layers.get(site, every)
        return [min(range(len(available)), key=lambda row: abs(available[row] - layer)) for layer in every]

    def visible(self, layer: int) -> Bool[Tensor, "batch query_pos key_pos"]:
        """Return which positions the mask of a layer lets every scored position see, in the recorded sequences."""
        return self.masks[layer][self.trials.scored_positions()] if self.masks else self.trials.visible()

    def at(self, site: Site | str) -> Shaped[Tensor, "layer *axes"]:
        """Return the recorded activations of every layer.

        Args:
            site: The site, or its name, such as "pattern".

        Raises:
            MissingSite: The site was not recorded.
            UnknownName: There is no site of this name.
        """
        site = site_of(site)
        if site not in self.recorded:
            stored = ", ".join(sorted(s.name for s in self.recorded)) or "(none)"
            raise MissingSite(
                f"site {site.name!r} was not recorded in this run of {self.spec.name}. Recorded sites: {stored}.", site
            )
        return self.recorded[site]
