"""Trials: sequences drawn from a task, with the exact posterior at every scored position."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Bool, Float64, Int64, Shaped
from torch import Tensor

from bayesgeom.core.batching import even_slices
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.observers import WindowObservers

UNASKED = -100  # torch's own `ignore_index`: `labels` where nothing is asked
SLACK = 1e-6  # by which the sum of probabilities may miss 1


@final
@dataclass(frozen=True, kw_only=True, eq=False)
# No type parameters: shape checks would look into what has them, and so draw.
class Relations(Mapping):  # type: ignore[type-arg]
    """Named relations that are drawn when one is first read.

    They grow with the square of the length, and what is scored alone never reads them. `draw` makes them of one tensor
    with a row per sequence, so that sequences are chosen and joined before. Where `asked_at`, the scored positions, is
    known, what is drawn must not reach beyond them.
    """

    draw: Callable[[Shaped[Tensor, "batch *rest"]], Mapping[str, Bool[Tensor, "batch query_pos key_pos"]]]
    of: Shaped[Tensor, "batch *rest"]
    asked_at: Int64[Tensor, "batch query_pos"] | None = None

    def __getitem__(self, name: str) -> Bool[Tensor, "batch query_pos key_pos"]:
        return self._drawn[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._drawn)

    def __len__(self) -> int:
        return len(self._drawn)

    def rows(self, index: slice | Int64[Tensor, " row"]) -> "Relations":
        """Those of the chosen sequences."""
        asked_at = None if self.asked_at is None else self.asked_at[index]
        return Relations(draw=self.draw, of=self.of[index], asked_at=asked_at)

    def and_of(self, others: Sequence["Relations"]) -> "Relations":
        """Those of these sequences and of others of the same task and length."""
        parts = [self, *others]
        asked_at = [part.asked_at for part in parts if part.asked_at is not None]
        return Relations(
            draw=self.draw,
            of=torch.cat([part.of for part in parts]),
            asked_at=torch.cat(asked_at) if len(asked_at) == len(parts) else None,
        )

    @cached_property
    def _drawn(self) -> Mapping[str, Bool[Tensor, "batch query_pos key_pos"]]:
        drawn = self.draw(self.of)
        if self.asked_at is not None:
            _check_causal(drawn, self.asked_at)
        return drawn


@final
@dataclass(frozen=True, kw_only=True)
class Trials:
    """A batch of sequences and what an exact Bayesian observer says at each scored position.

    Every sequence scores the same number of positions, so that whatever is read there is rectangular.
    `predictive` and `belief` are NaN where nothing is asked. Text whose posterior nobody knows has no `answers`, and a
    `predictive` and a `belief` of width 0: `has_posterior` is false, and entropy can only be the model's own.

    Sequences may differ in length: shorter ones are padded on the right, where a causal model's scored positions cannot
    see, so that no mask is needed.

    - `answers`: the ids on which `predictive` lives, in its order.
    - `labels`: the id that the world answered with, `UNASKED` elsewhere.
    - `token_sets`: named ids whose keys may form the hypothesis frame.
    - `relations`: named boolean maps; true where an earlier position is evidence, in that sense, for the query.
    - `groups`: where sequences are of several kinds, the kind of each, as an index into `group_names`.
    - `observers`: the filter behind the posterior, where the hidden state moves from step to step: what window
      observers are made of.
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
            raise InvalidArgument(
                f"every sequence must score the same, non-zero number of positions; the counts are "
                f"{counts.tolist()[:8]}."
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def has_posterior(self) -> bool:
        """Whether an exact posterior is known."""
        return len(self.answers) > 0

    @property
    def n_scored(self) -> int:
        """Scored positions per sequence."""
        return int(self.scored[0].sum())

    def at_scored(self, values: Shaped[Tensor, "batch pos *rest"]) -> Shaped[Tensor, "batch query_pos *rest"]:
        """The rows of `values` at the scored positions of each sequence; a view of them where that can be."""
        if (evenly := self._even_positions()) is not None:
            return values[:, evenly]
        return values[self.scored].reshape(len(self), self.n_scored, *values.shape[2:])

    def _even_positions(self) -> slice | None:
        """The scored positions, where they are the same in every sequence and evenly spaced."""
        if not len(self) or not torch.equal(self.scored, self.scored[:1].expand_as(self.scored)):
            return None
        first, *rest = self.scored[0].nonzero()[:, 0].tolist() or [0]
        step = rest[0] - first if rest else 1
        is_even = rest == list(range(first + step, first + step * (len(rest) + 1), step))
        return slice(first, first + step * len(rest) + 1, step) if is_even and self.n_scored else None

    def scored_positions(self) -> Int64[Tensor, "batch query_pos"]:
        """Index of each scored position in its sequence."""
        pos = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return self.at_scored(pos.expand(len(self), -1))

    def token_ids(self) -> Int64[Tensor, " token"]:
        """The ids of all token sets together, sorted: the `token` axis of sites that are read from the weights."""
        none = torch.zeros(0, dtype=torch.int64, device=self.tokens.device)
        ids: Tensor = torch.cat([none, *self.token_sets.values()]).unique()
        return ids

    def rows(self, index: slice | Int64[Tensor, " row"]) -> "Trials":
        """The chosen sequences."""
        cut = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("tokens", "scored", "predictive", "belief", "labels"):
            cut[name] = cut[name][index]
        cut["groups"] = None if self.groups is None else self.groups[index]
        cut["observers"] = None if self.observers is None else self.observers.rows(index)
        own = self.relations
        if isinstance(own, Relations):
            cut["relations"] = own.rows(index)
        else:
            cut["relations"] = {name: related[index] for name, related in own.items()}
        return Trials(**cut)

    def batches(self, *, at_most: int | None = None, at_least: int = 1) -> Iterator["Trials"]:
        """Yield runs of consecutive sequences of even sizes; `at_most` and `at_least` as in `even_slices`."""
        for part in even_slices(len(self), at_most=at_most, at_least=at_least):
            yield self.rows(part)


def concatenate(parts: list[Trials]) -> Trials:
    """One batch out of several of the same task and length."""
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
    """The same trials with answer a of sequence b called `names[b, a]`, wherever it stands: a consistent renaming.

    The exact posterior is carried along. For trials whose beliefs are over the answers.
    """
    if trials.belief.shape[-1] != len(trials.answers):
        raise InvalidArgument("only beliefs over the answers can be renamed with them.")
    largest = max(int(trials.tokens.max()), int(trials.answers.max()))
    called = torch.arange(largest + 1, device=trials.tokens.device).repeat(len(trials), 1)
    called[:, trials.answers] = trials.answers[names]
    asked = trials.labels != UNASKED

    def carried(values: Float64[Tensor, "batch pos answer"]) -> Float64[Tensor, "batch pos answer"]:
        to = names[:, None, :].expand_as(values)
        return torch.empty_like(values).scatter_(2, to, values)

    return replace(
        trials,
        tokens=called.gather(1, trials.tokens),
        labels=torch.where(asked, called.gather(1, trials.labels * asked), UNASKED),
        predictive=carried(trials.predictive),
        belief=carried(trials.belief),
    )


def checked(trials: Trials, *, task: str) -> Trials:
    """What a task drew, seen to be what tasks promise. Relations that are yet to be drawn are checked when they are.

    **Raises** `InvalidArgument` with the field, and the first sequence and position at fault.
    """
    _check_layout(trials, task)
    if trials.has_posterior:
        _check_rows(trials, "predictive", task)
        if trials.belief is not trials.predictive and trials.belief.shape[-1]:
            _check_rows(trials, "belief", task)
        asked = trials.at_scored(trials.labels)
        strange = (asked != UNASKED) & ~torch.isin(asked, trials.answers)
        if bool(strange.any()):
            sequence, query, where = _first(strange, trials.scored_positions())
            raise InvalidArgument(
                f"task {task!r}: label {where} is {int(asked[sequence, query])}, which is none of the answers. Give "
                f"the id of the answer there, or UNASKED ({UNASKED})."
            )
    if isinstance(trials.relations, Relations):
        return replace(trials, relations=replace(trials.relations, asked_at=trials.scored_positions()))
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
                f"task {task!r}: {name} has to be {dtype} of shape {shape}, with the sequences, positions and "
                f"answers of the other fields; it is {found.dtype} of shape {tuple(found.shape)}."
            )


def _check_rows(trials: Trials, name: str, task: str) -> None:
    rows = trials.at_scored(vars(trials)[name])
    wrong = ~((rows.amin(-1) >= 0) & ((rows.sum(-1) - 1).abs() <= SLACK))  # true of NaN and infinity
    if bool(wrong.any()):
        sequence, query, where = _first(wrong, trials.scored_positions())
        row = rows[sequence, query]
        raise InvalidArgument(
            f"task {task!r}: {name} {where} is no distribution: its least entry is {float(row.min()):.6g}, its sum "
            f"{float(row.sum()):.8g}. Where a position is scored, entries are at least 0 and sum to 1 within {SLACK}."
        )


def _check_causal(relations: Mapping[str, Tensor], asked_at: Int64[Tensor, "batch query_pos"]) -> None:
    for name, related in relations.items():
        if related.dtype != torch.bool or related.shape[:-1] != asked_at.shape:
            raise InvalidArgument(
                f"relation {name!r} has to be boolean with a row for every scored position, of shape "
                f"{(*asked_at.shape, 'positions')}; it is {related.dtype} of shape {tuple(related.shape)}."
            )
        later = torch.arange(related.shape[-1], device=asked_at.device) > asked_at[..., None]
        ahead = (related & later).any(-1)
        if bool(ahead.any()):
            sequence, query, where = _first(ahead, asked_at)
            found = (related & later)[sequence, query].nonzero()[0].item()
            raise InvalidArgument(
                f"relation {name!r} {where} takes position {found} for evidence, which comes later: no causal model "
                f"sees it. Leave out positions after the one that is asked."
            )


def _first(wrong: Bool[Tensor, "batch query_pos"], asked_at: Int64[Tensor, "batch query_pos"]) -> tuple[int, int, str]:
    """The first sequence and query at fault, and where that is."""
    sequence, query = wrong.nonzero()[0].tolist()
    return sequence, query, f"of sequence {sequence} at position {int(asked_at[sequence, query])}"
