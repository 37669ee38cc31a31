"""Batches of sequences drawn from a task, with the exact posterior at every scored position."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from bayesgeom.core.batching import even_slices
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.stats.observers import WindowObservers

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
    """

    tokens: Int64[Tensor, "batch pos"]
    scored: Bool[Tensor, "batch pos"]
    answers: Int64[Tensor, " answer"]
    predictive: Float64[Tensor, "batch pos answer"]
    belief: Float64[Tensor, "batch pos hypothesis"]
    labels: Int64[Tensor, "batch pos"]
    token_sets: Mapping[str, Int64[Tensor, " token"]]
    relations: Relations | Mapping[str, Bool[Tensor, "batch query_pos key_pos"]]
    groups: Int64[Tensor, " batch"] | None = None
    group_names: tuple[str, ...] = ()
    observers: WindowObservers | None = None

    def __post_init__(self) -> None:
        counts = self.scored.sum(dim=1)
        if len(counts) == 0 or not bool((counts == counts[0]).all()) or int(counts[0]) == 0:
            found = f"the counts are {counts.tolist()[:8]}"
            raise InvalidArgument(f"every sequence must score the same, non-zero number of positions; {found}.")

    def __repr__(self) -> str:
        n, n_pos = self.tokens.shape
        return f"Trials({n:,} sequences of {n_pos} tokens, {self.n_scored} scored, {len(self.answers)} answers)"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def has_posterior(self) -> bool:
        """Whether an exact posterior is known."""
        return len(self.answers) > 0

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
        ids: Tensor = torch.cat([none, *self.token_sets.values()]).unique()
        return ids

    def rows(self, index: slice | Int64[Tensor, " row"]) -> "Trials":
        """Return the chosen sequences."""
        cut = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("tokens", "scored", "predictive", "belief", "labels"):
            cut[name] = cut[name][index]
        cut["groups"] = None if self.groups is None else self.groups[index]
        cut["observers"] = None if self.observers is None else self.observers.rows(index)
        own = self.relations
        cut["relations"] = own.rows(index) if isinstance(own, Relations) else {k: v[index] for k, v in own.items()}
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
    return Trials(
        tokens=torch.cat([part.tokens for part in parts]),
        scored=torch.cat([part.scored for part in parts]),
        answers=first.answers,
        predictive=torch.cat([part.predictive for part in parts]),
        belief=torch.cat([part.belief for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        token_sets=first.token_sets,
        relations=relations,
        groups=torch.cat(groups) if groups else None,
        group_names=first.group_names,
        observers=observers[0].and_of(observers[1:]) if len(observers) == len(parts) else None,
    )


def renamed(trials: Trials, names: Int64[Tensor, "batch answer"]) -> Trials:
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
    largest = max(int(trials.tokens.max()), int(trials.answers.max()))
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


def checked(trials: Trials, *, task: str) -> Trials:
    """Return a task's sequences after checking shapes, dtypes, distributions, labels and relations.

    Relations that are not computed yet are checked when they are.

    Raises:
        InvalidArgument: A check failed. The message names the field, and the first invalid sequence and position.
    """
    _check_layout(trials, task)
    if trials.has_posterior:
        _check_rows(trials, "predictive", task)
        if trials.belief is not trials.predictive and trials.belief.shape[-1]:
            _check_rows(trials, "belief", task)
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


def _check_layout(trials: Trials, task: str) -> None:
    n, n_pos = trials.scored.shape
    layout = {
        "tokens": (torch.int64, (n, n_pos)),
        "scored": (torch.bool, (n, n_pos)),
        "labels": (torch.int64, (n, n_pos)),
        "answers": (torch.int64, (len(trials.answers),)),
        "predictive": (torch.float64, (n, n_pos, len(trials.answers))),
        "belief": (torch.float64, (n, n_pos, trials.belief.shape[-1])),
    }
    for name, (dtype, shape) in layout.items():
        found = vars(trials)[name]
        if found.dtype != dtype or found.shape != shape:
            raise InvalidArgument(
                f"task {task!r}: {name} must be {dtype} of shape {shape}, with the sequences, positions and "
                f"answers of the other fields; it is {found.dtype} of shape {tuple(found.shape)}."
            )


def _check_rows(trials: Trials, name: str, task: str) -> None:
    rows = trials.at_scored(vars(trials)[name])
    wrong = ~((rows.amin(-1) >= 0) & ((rows.sum(-1) - 1).abs() <= SLACK))  # true of NaN and infinity
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
            found = (related & later)[sequence, query].nonzero()[0].item()
            raise InvalidArgument(
                f"relation {name!r} {where} marks position {found} as evidence, which comes later: a causal model "
                f"cannot see it. Remove positions after the scored one."
            )


def _first(
    wrong: Bool[Tensor, "batch query_pos"], query_positions: Int64[Tensor, "batch query_pos"]
) -> tuple[int, int, str]:
    """The first invalid sequence and query, and their description."""
    sequence, query = wrong.nonzero()[0].tolist()
    return sequence, query, f"of sequence {sequence} at position {int(query_positions[sequence, query])}"
