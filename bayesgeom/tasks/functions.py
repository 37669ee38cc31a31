"""A task from two functions: one draws sequences, the other returns their exact answer probabilities.

Both are tried when the task is made, and compared with each other: the tokens that were drawn must follow the returned
probabilities. Each later draw is checked, too, as that of any task.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import NO_LABEL, InvalidArgument, TaskMismatch, Trials, checked
from bayesgeom.core.errors import quoted
from bayesgeom.core.plugins import Contained
from bayesgeom.core.run import SLACK
from bayesgeom.tasks.base import FUNCTIONS, ExchangeableTask, WindTunnel, random_order, task_kinds

Draw = Callable[[int, np.random.Generator], Any]
Predict = Callable[[Any], Any]
_TRIED = 16  # sequences that are drawn when the task is made
_CUTS = 5  # places from which later tokens are changed
_MOST_IDS = 10_000_000  # each gets a label of some 100 bytes
_MOST_INPUTS = 256  # ids whose keys are compared
_MOST_ORDERS = 16  # numbers of first tokens that are put in another order
_CLOSE = 1e-5  # difference between probabilities of the same sequence
_LABELS, _MOST_DRAWN = 20_000, 1_000  # drawn tokens that are compared with their probabilities, and their sequences
_MOST_NUMBERS = 4_000_000  # probabilities in memory at a time
_SIGMAS = 6.0  # standard deviations at which a difference is refused
_FLOOR = 2.0**-10  # lower probabilities count as this one, so that a rare token alone decides nothing


@checked()
def from_functions(
    draw: Draw,
    predict: Predict,
    *,
    d_vocab: int | None = None,
    answers: Sequence[int] | None = None,
    answers_follow: bool = True,
    exchangeable: bool = False,
    name: str = FUNCTIONS,
) -> WindTunnel:
    """Return the task of a function that draws sequences and a function that returns the exact probabilities.

    The functions are compared. Where the token after each scored position is one of the answers, its probability must
    not be 0, and over some 20,000 such tokens, of at most about 1,000 sequences, three means must agree within six
    standard deviations: the bits of the token and the entropy; how often each answer comes, and its probability; how
    often the token repeats the one before it, and the probability of that. A smaller error passes.

    Labels are drawn from `predict`. A task made of functions has no pairs to swap and, unless it is `exchangeable`, no
    evidence to replace. No file holds it: to measure on it again, make it of the same two functions.

    Args:
        draw: Called with a number of sequences and a generator, `draw(n, rng)`; returns their token ids, of shape
            (n, length). With a second value it also returns the scored positions: indices, the same in every sequence,
            or truth values by position or by sequence and position. Default: every position.
        predict: Called with the ids as a NumPy array; returns the probabilities of the answers at every position, of
            shape (n, length, answers). Those at a position depend on the tokens up to and including it. Positions that
            are not scored may hold anything.
        d_vocab: Number of token ids, those of answers included. Required.
        answers: Token ids of the answers, in the order of the last axis. Default: all ids.
        answers_follow: Whether an answer is the next token. False for another answer, such as the parity of the tokens
            so far: nothing is compared then.
        exchangeable: Whether the order of the tokens carries no information: `audit` then measures martingale gap and
            order, `evidence_response` draws tokens again. Every token must be an answer, and every position scored.
        name: Name of the task in reports.

    Returns:
        The task, for `diagnose`, `ablate` and every other function that takes one.

    Raises:
        InvalidArgument: One of the functions failed, returned something else, or gave other values for the same input;
            `draw` ignores its generator; `predict` sees later tokens; its probabilities are not those of the tokens
            that `draw` draws; or the order matters to it in a task that is declared exchangeable.

    Example:
        >>> import numpy as np
        >>> def draw(n, rng):  # coins with an unknown bias
        ...     return (rng.random((n, 12)) < rng.random((n, 1))).astype(int)
        >>> def predict(tokens):  # Laplace's rule of succession
        ...     heads = (tokens.cumsum(1) + 1) / (np.arange(tokens.shape[1]) + 3)
        ...     return np.stack([1 - heads, heads], axis=-1)
        >>> from_functions(draw, predict, d_vocab=2, name="coins")
        coins(draw, predict, 12 tokens)
    """
    if d_vocab is None or not 2 <= d_vocab <= _MOST_IDS:
        raise InvalidArgument(f"pass d_vocab=…, the number of token ids, from 2 to {_MOST_IDS:,}; got {d_vocab}.")
    ids = tuple(range(d_vocab) if answers is None else answers)
    task = _task_of(draw, predict, d_vocab, ids, name)
    if answers_follow:
        _check_fit(draw, predict, d_vocab, ids)
    return _exchangeable(task, answers_follow=answers_follow) if exchangeable else task


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class _FunctionTask(ExchangeableTask):
    """The task that `from_functions` returns. Two such tasks of one fingerprint draw and predict the same.

    Attributes:
        n_ids: Number of token ids.
        tokens_each: Tokens in a sequence.
        answers: Token ids of the answers.
        inputs: Ids that occur in sequences.
        functions: Names of both functions.
        fingerprint: Hash of the sequences of one seed, with their exact probabilities.
        is_free: Whether the order of the tokens is declared to be free.
    """

    sentence: ClassVar[str] = (
        "A function draws sequences of {task.tokens_each} tokens; another gives the exact probability of each answer."
    )
    name: str  # type: ignore[misc]  # that of the user
    n_ids: int
    tokens_each: int
    answers: tuple[int, ...]
    inputs: tuple[int, ...]
    functions: tuple[str, str]
    fingerprint: str
    drawing: Draw = field(compare=False)
    predicting: Predict = field(compare=False)
    is_free: bool = False

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.functions)}, {self.tokens_each} tokens)"

    @property
    def d_vocab(self) -> int:
        return self.n_ids

    @property
    def n_pos(self) -> int:
        return self.tokens_each

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        device = generator.device
        seed = int(torch.randint(2**63 - 1, (1,), generator=generator, device=device))
        tokens, scored = _drawn(self.drawing, n, np.random.default_rng(seed), self.n_ids)
        if tokens.shape[1] != self.tokens_each:
            raise InvalidArgument(
                f"draw returned {tokens.shape[1]} tokens a sequence, and {self.tokens_each} when the task was made: "
                f"sequences must have one length."
            )
        return self._trials(tokens, scored, seed, device)

    def _trials(
        self,
        tokens: Int64[np.ndarray, "batch pos"],
        scored: Bool[np.ndarray, "batch pos"],
        seed: int,
        device: torch.device,
        read: Int64[np.ndarray, "batch pos"] | None = None,
    ) -> Trials:
        """Return sequences with the probabilities after them, or after other tokens that `predict` reads instead."""
        exact = _predicted(self.predicting, tokens if read is None else read, scored, len(self.answers))
        exact[~scored] = np.nan
        place = _sampled(exact, np.random.default_rng([seed, 1]))
        posterior = torch.from_numpy(exact).to(device)
        return Trials(
            tokens=torch.from_numpy(tokens).to(device),
            scored=torch.from_numpy(scored).to(device),
            answers=torch.tensor(self.answers, device=device),
            predictive=posterior,
            belief=posterior,
            labels=torch.from_numpy(np.where(scored, np.array(self.answers)[place], NO_LABEL)).to(device),
            token_sets={"inputs": torch.tensor(self.inputs, device=device)},
        )

    @property
    def is_exchangeable(self) -> bool:
        return self.is_free

    @property
    def n_evidence(self) -> int:
        return self.tokens_each if self.is_free else 0

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw tokens again, from their probabilities after the kept ones, which come first: their order is free."""
        kept, others = (mask.nonzero()[:, 0].cpu().numpy() for mask in (keep, ~keep))
        if not len(kept):
            return self.draw(len(trials), generator)
        seed = int(torch.randint(2**63 - 1, (1,), generator=generator, device=generator.device))
        rng, tokens = np.random.default_rng(seed), trials.tokens.cpu().numpy()
        tokens = tokens[:, np.concatenate([kept, others])]
        for at in range(len(kept), self.tokens_each):
            before = np.arange(self.tokens_each) == np.full((len(tokens), 1), at - 1)
            exact = _predicted(self.predicting, tokens, before, len(self.answers))[:, at - 1]
            tokens[:, at] = np.array(self.answers)[_sampled(exact, rng)]
        tokens[:, np.concatenate([kept, others])] = tokens.copy()
        return self._trials(tokens, np.ones(tokens.shape, dtype=bool), seed, trials.tokens.device)

    def reordered(self, trials: Trials, order: Int64[Tensor, "batch evidence"]) -> Trials:
        tokens = trials.tokens.gather(1, order).cpu().numpy()
        return self._trials(tokens, np.ones(tokens.shape, dtype=bool), 0, trials.tokens.device)

    @property
    def n_continued(self) -> int:
        return self.tokens_each - 1 if self.is_free else 0

    def continued(self, trials: Trials, step: int) -> tuple[Trials, Int64[Tensor, "batch row"]]:
        """Return each sequence with every answer as its next token; both queries are the same."""
        (n, length), rows, device = trials.tokens.shape, len(self.answers) + 2, trials.tokens.device
        tokens = trials.tokens.cpu().numpy()[:, None].repeat(rows, axis=1)
        possible, is_possible = tokens.copy(), trials.predictive[:, step].cpu().numpy() > 0
        tokens[:, 2:, step + 1] = self.answers
        # After a token that cannot come, nothing is exact; audits give it no weight.
        possible[:, 2:, step + 1] = np.where(is_possible, self.answers, possible[:, 2:, step + 1])
        flat, seen = (each.reshape(-1, length) for each in (tokens, possible))
        read = np.full((n, rows), step + 1)
        read[:, :2] = step
        scored = np.arange(length) <= np.full((n * rows, 1), step + 1)
        return self._trials(flat, scored, 0, device, seen), torch.from_numpy(read).to(device)

    def discounted(self, trials: Trials, discount: float) -> None:
        """Return None: the likelihood of a single token is not known."""

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Refuse: what two sequences have to share is not known.

        Raises:
            TaskMismatch: Always.
        """
        raise TaskMismatch(
            f"task {self.name!r} is made of two functions, which draw no pairs: a swap needs a task class with "
            f"draw_pair (docs/extending.md). Use kind='remove'."
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        return {"uniform": torch.full_like(trials.at_scored(trials.predictive), 1 / len(self.answers))}

    def token_labels(self) -> Sequence[str]:
        return [str(token) for token in range(self.n_ids)]


def _task_of(draw: Draw, predict: Predict, d_vocab: int, ids: tuple[int, ...], name: str) -> _FunctionTask:
    """Return the task of two functions, after trying each of them."""
    if not all(0 <= answer < d_vocab for answer in ids) or not 2 <= len({*ids}) == len(ids):
        raise InvalidArgument(f"answers must be two or more distinct ids below d_vocab = {d_vocab}, got {quoted(ids)}.")
    if name != FUNCTIONS and name in task_kinds():
        raise InvalidArgument(f"a task is named {name!r} already: choose another name.")
    tokens, scored = _tried(draw, d_vocab)
    exact = _predicted(predict, tokens, scored, len(ids))
    # A prediction must depend on its own sequence, and on nothing else.
    for rows, what in ((slice(None), "when it is called again"), (slice(0, 1), "in another batch")):
        predicted = _predicted(predict, tokens[rows], scored[rows], exact.shape[-1])
        if not (np.abs(predicted - exact[rows])[scored[rows]] <= _CLOSE).all():
            raise InvalidArgument(
                f"predict returns other probabilities for the same sequence {what}: they must follow from its tokens."
            )
    _check_causal(predict, tokens, scored, exact)
    digest = hashlib.sha256(tokens.tobytes() + scored.tobytes() + np.round(exact[scored], 6).tobytes()).hexdigest()
    return _FunctionTask(
        name=name,
        n_ids=d_vocab,
        tokens_each=tokens.shape[1],
        answers=ids,
        inputs=tuple(np.unique(tokens)[:_MOST_INPUTS].tolist()),
        functions=(_name_of(draw), _name_of(predict)),
        fingerprint=digest[:16],
        drawing=draw,
        predicting=predict,
    )


def _exchangeable(task: _FunctionTask, *, answers_follow: bool) -> _FunctionTask:
    """Return the task with exchangeable tokens, after checking that no probability depends on their order."""
    trials = task.sample(_TRIED, seed=0)
    if not (answers_follow and bool(trials.scored.all()) and bool(torch.isin(trials.tokens, trials.answers).all())):
        raise InvalidArgument("exchangeable=True needs tokens that are all answers, and every position scored.")
    generator = torch.Generator().manual_seed(0)
    for n_first in np.unique(np.linspace(task.n_pos, 1, _MOST_ORDERS, dtype=np.int64))[::-1].tolist():
        later = torch.arange(n_first, task.n_pos).expand(len(trials), -1)
        order = torch.cat([random_order(len(trials), n_first, generator), later], dim=1)
        off = (task.reordered(trials, order).predictive - trials.predictive)[:, n_first - 1].abs().amax(dim=-1)
        if not bool((off <= _CLOSE).all()):
            raise InvalidArgument(
                f"predict reads the order of the tokens: with the first {n_first} of sequence {int(off.argmax())} in "
                f"another order, the probabilities after them change by {float(off.max()):.3g}. Leave "
                f"exchangeable=True out."
            )
    return replace(task, is_free=True)


def _sampled(exact: Float64[np.ndarray, "*rest answer"], rng: np.random.Generator) -> Int64[np.ndarray, "*rest"]:
    """Return the place of an answer that is drawn from each distribution."""
    chance = rng.random((*exact.shape[:-1], 1))
    return np.asarray((chance > exact.cumsum(axis=-1)).sum(axis=-1).clip(max=exact.shape[-1] - 1))


def _called(function: Callable[..., Any], what: str, *arguments: Any) -> Any:
    """Return what a function returns; its exceptions raise `InvalidArgument`."""
    result: Any = None
    with Contained() as calling:
        result = function(*arguments)
    if calling.error is not None:
        raise InvalidArgument(f"{what} failed: {calling.fault.rstrip('.')}.") from calling.error
    return result


def _array(value: Any) -> np.ndarray | None:
    """Return numbers as an array; None for anything else."""
    with Contained() as reading:
        array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    return None if reading.fault or array.dtype.kind not in "biuf" else array


def _tried(draw: Draw, d_vocab: int) -> tuple[Int64[np.ndarray, "batch pos"], Bool[np.ndarray, "batch pos"]]:
    """Return a few sequences of a function, after checking that they follow from its generator alone."""
    first, same, other = (_drawn(draw, _TRIED, np.random.default_rng(seed), d_vocab) for seed in (0, 0, 1))
    tokens, scored = first
    if not np.array_equal(tokens, same[0]) or not np.array_equal(scored, same[1]):
        raise InvalidArgument("draw returns other sequences for the same seed: use the generator that it gets, alone.")
    if np.array_equal(tokens, other[0]) and not (tokens == tokens[0]).all():  # a task may have a single sequence
        raise InvalidArgument("draw returns the same sequences for every seed: use the generator that it gets.")
    return tokens, scored


def _drawn(
    draw: Draw, n: int, rng: np.random.Generator, d_vocab: int
) -> tuple[Int64[np.ndarray, "batch pos"], Bool[np.ndarray, "batch pos"]]:
    """Return the tokens that a function draws, and which positions are scored."""
    value = _called(draw, "draw", n, rng)
    given, where = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    tokens = _array(given)
    if tokens is None or tokens.dtype.kind not in "iu" or tokens.ndim != 2 or len(tokens) != n or not tokens.size:
        got = _described(given, tokens)
        raise InvalidArgument(
            f"draw returned {got} for {n} sequences: return token ids, integers of shape ({n}, length)."
        )
    if tokens.min() < 0 or tokens.max() >= d_vocab:
        raise InvalidArgument(
            f"draw returned ids {tokens.min()} … {tokens.max()}; d_vocab = {d_vocab} allows 0 … {d_vocab - 1}."
        )
    return tokens.astype(np.int64), np.ones(tokens.shape, dtype=bool) if where is None else _scored(where, tokens.shape)


def _scored(where: Any, shape: tuple[int, ...]) -> Bool[np.ndarray, "batch pos"]:
    """Return which positions are scored, as indices or truth values state it."""
    listed = _array(where)
    if listed is not None and listed.dtype.kind == "b" and listed.shape in (shape, shape[1:]):
        return np.array(np.broadcast_to(listed, shape))
    is_index = listed is not None and listed.dtype.kind in "iu" and listed.ndim == 1 and listed.size > 0
    if listed is None or not is_index or (abs(listed + 0.5) > shape[1]).any():
        raise InvalidArgument(
            f"draw returned {_described(where, listed)} as scored positions of sequences of {shape[1]} tokens: return "
            f"indices below {shape[1]}, or truth values by position, or by sequence and position."
        )
    scored = np.zeros(shape, dtype=bool)
    scored[:, listed] = True
    return scored


def _predicted(
    predict: Predict, tokens: Int64[np.ndarray, "batch pos"], scored: Bool[np.ndarray, "batch pos"], n_answers: int
) -> Float64[np.ndarray, "batch pos answer"]:
    """Return the probabilities that a function predicts; at scored positions they are distributions."""
    value = _called(predict, "predict", tokens.copy())
    array, shape = _array(value), (*tokens.shape, n_answers)
    if array is None or array.shape != shape:
        raise InvalidArgument(
            f"predict returned {_described(value, array)} for tokens of shape {tokens.shape}: return probabilities of "
            f"shape {shape}, for {n_answers} answers (answers=… lists their ids)."
        )
    exact = array.astype(np.float64)
    wrong = scored & ~((exact.min(axis=-1) >= 0) & (np.abs(exact.sum(axis=-1) - 1) <= SLACK))
    if wrong.any():
        sequence, position = np.argwhere(wrong)[0].tolist()
        row = exact[sequence, position]
        raise InvalidArgument(
            f"predict returned no distribution for position {position} of sequence {sequence}: its least entry is "
            f"{row.min():.6g}, its sum {row.sum():.8g}. Entries must be at least 0 and sum to 1 within {SLACK}."
        )
    return exact


def _check_causal(
    predict: Predict,
    tokens: Int64[np.ndarray, "batch pos"],
    scored: Bool[np.ndarray, "batch pos"],
    exact: Float64[np.ndarray, "batch pos answer"],
) -> None:
    """Check that probabilities stay the same where later tokens are those of another sequence, or are cut off."""
    for last in np.unique(np.linspace(0, tokens.shape[1] - 2, _CUTS).astype(int)).clip(min=0):
        kept = slice(0, last + 1)
        mixed = np.concatenate([tokens[:, kept], np.roll(tokens, 1, axis=0)[:, last + 1 :]], axis=1)
        predicted = None
        for other in (mixed, tokens[:, kept]):  # a mixed sequence may be impossible, and lengths may be fixed
            with Contained() as calling:
                predicted = _array(predict(other.copy()))
            if not calling.fault and predicted is not None and predicted.shape[:2] == other.shape:
                break
            predicted = None
        if predicted is None or predicted.shape[2:] != exact.shape[2:]:
            continue
        off = ~(np.abs(predicted[:, kept] - exact[:, kept]) <= _CLOSE).all(axis=-1) & scored[:, kept]
        if off.any():
            sequence, position = np.argwhere(off)[0].tolist()
            raise InvalidArgument(
                f"predict sees later tokens: with other tokens after position {last}, its probabilities at position "
                f"{position} of sequence {sequence} change. They must follow from tokens 0 … {position} alone."
            )


def _check_fit(draw: Draw, predict: Predict, d_vocab: int, answers: tuple[int, ...]) -> None:
    """Check that the tokens of `draw` have the probabilities of `predict`, where tokens after scored ones are answers.

    Given the tokens before, weights w(answer) times (1 for the token that came, else 0) − p(answer) sum to 0 in
    expectation, for any w that they decide. Sums of these are compared with their variance under `predict` by the
    inequality of Freedman 1975 (Annals of Probability 3, 100-118), which holds for rare tokens, too.
    """
    place = np.full(d_vocab, -1)
    place[list(answers)] = np.arange(len(answers))
    sums, variances, bits, n_labels = np.zeros(len(answers) + 2), np.zeros(len(answers) + 2), np.zeros(2), 0
    repeats, n, drawn = np.zeros(2), _TRIED, 0
    while n_labels < _LABELS and drawn < _MOST_DRAWN:
        tokens, scored = _drawn(draw, n, np.random.default_rng([2, n]), d_vocab)
        at = scored[:, :-1]
        labels, last = place[tokens[:, 1:][at]], place[tokens[:, :-1][at]]
        if not labels.size or (labels < 0).any():
            return
        p = _predicted(predict, tokens, scored, len(answers))[:, :-1][at]
        came = np.take_along_axis(p, labels[:, None], axis=1)[:, 0]
        if not came.all():
            sequence, position = np.argwhere(at)[int(came.argmin())].tolist()
            raise InvalidArgument(
                f"predict gives probability 0 to token {tokens[sequence, position + 1]}, which draw returned after "
                f"{quoted(tokens[sequence, : position + 1].tolist())}: it must allow every sequence of draw.{_FOLLOW}"
            )
        logs = np.log2(p.clip(min=_FLOOR))
        mean_log, again = (p * logs).sum(-1), np.where(last < 0, 0.0, p[np.arange(len(p)), last])
        sums += [
            (np.log2(came.clip(min=_FLOOR)) - mean_log).sum(),
            ((labels == last) - again).sum(),
            *(np.bincount(labels, minlength=len(answers)) - p.sum(0)),
        ]
        spread = (p * logs**2).sum(-1) - mean_log**2
        variances += [spread.sum(), (again * (1 - again)).sum(), *(p * (1 - p)).sum(0)]
        bits += [-(p * np.log2(np.where(p > 0, p, 1))).sum(), -np.log2(came).sum()]
        repeats += [again.sum(), (labels == last).sum()]
        n_labels, drawn = n_labels + len(labels), drawn + n
        n = min(2 * n, max(1, _MOST_NUMBERS // (tokens.shape[1] * len(answers))))
    most = np.r_[-np.log2(_FLOOR), np.ones(len(answers) + 1)]  # of one term
    off = np.abs(sums)
    is_off = off**2 > _SIGMAS**2 * (variances + most * off / 3 + _CLOSE * n_labels)
    if not is_off.any():
        return
    worst = int(is_off.argmax())
    means = bits if worst == 0 else repeats if worst == 1 else np.zeros(2)
    expected, seen = means / n_labels
    what = f"{expected:.3f} bits a token are expected from its probabilities, and {seen:.3f} are found"
    if worst == 1:
        what = f"a token repeats the one before it with probability {expected:.3f}, and it does in {seen:.3f} of cases"
    if worst > 1:
        side = "less" if sums[worst] > 0 else "more"
        what = f"answer {answers[worst - 2]} gets {side} probability than it comes, by {off[worst] / n_labels:.3f}"
    raise InvalidArgument(
        f"predict does not fit the {n_labels:,} tokens that draw returned after scored positions: {what}. Check the "
        f"order of the answers, and that position t includes token t.{_FOLLOW}"
    )


_FOLLOW = " If an answer is not the next token, pass answers_follow=False."


def _described(value: Any, found: np.ndarray | None) -> str:
    return f"a {type(value).__name__}" if found is None else f"{found.dtype} of shape {found.shape}"


def _name_of(function: Callable[..., Any]) -> str:
    return function.__name__ if isinstance(function, FunctionType) else type(function).__name__
