"""Planted predictors of five tasks, and a table of what the first sentence says of each: `planted_answers.md`.

`python -m tests.whole.planted_answers` writes the table; `test_planted_answers.py` compares it. A function has no
untrained copies, so planted predictors are compared with those of a small transformer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

import bayesgeom
from bayesgeom.core import Trials
from bayesgeom.core.observers import exact_beliefs
from bayesgeom.models.base import Model
from bayesgeom.report.answer import Answer, answer_of, answer_text
from bayesgeom.stats.windows import window_predictives
from bayesgeom.tasks.base import SymbolTask, WindTunnel, trials_at
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.change_point import ChangePoint
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.process import Mess3

TABLE = Path(__file__).with_suffix(".md")
N = 512
TASKS: tuple[WindTunnel, ...] = (
    Mess3(x=0.05, a=0.85, length=16),
    HMM(length=12),
    Dice(n_faces=3, length=16),
    Bijection(n_values=5, n_pairs=12, repeats=True),
    ChangePoint(length=24),
)
Probs = Float64[Tensor, "batch query_pos answer"]
_MOVING = (Mess3, HMM)  # tasks with a hidden state that moves


class NotApplicable(Exception):
    """The task has no such predictor, or it is the exact one."""


def sequences(task: WindTunnel, tokens: Int64[Tensor, "batch pos"]) -> Trials:
    """The sequences of these ids, with the exact predictive."""
    if isinstance(task, HMM):
        one, observers = task.sample(1, seed=0), task.observers(tokens)
        at, predictive = one.scored[0].nonzero()[:, 0], exact_beliefs(observers.filter, len(tokens), task.length)
        of_task = {"answers": one.answers, "token_sets": one.token_sets, "relations": one.relations}
        labels = tokens[:, at]  # which no predictor reads
        return trials_at(at, tokens, predictive=predictive, labels=labels, observers=observers, **of_task)
    if isinstance(task, Bijection):
        keys, values = tokens[:, ::2], tokens[:, 1::2] - task.n_values
        is_unused = torch.ones(len(keys), task.n_values).scatter(1, values, 0)
        is_last = keys[:, :-1] == keys[:, -1:]
        shown = values.gather(1, is_last.long().argmax(dim=1, keepdim=True))
        last = torch.where(is_last.any(dim=1, keepdim=True), shown, is_unused.argmax(dim=1, keepdim=True))
        return task.trials(keys, torch.cat([values, last], dim=1))
    return task.trials(torch.nn.functional.pad(tokens, (0, 1)))


def exact(_: WindTunnel, trials: Trials) -> Probs:
    return trials.at_scored(trials.predictive)


def normalized(weights: Probs) -> Probs:
    return weights / weights.sum(dim=-1, keepdim=True)


def tempered(temperature: float) -> Callable[[WindTunnel, Trials], Probs]:
    return lambda task, trials: normalized(exact(task, trials) ** (1 / temperature))


def uniform(task: WindTunnel, trials: Trials) -> Probs:
    return torch.full_like(exact(task, trials), 1 / len(trials.answers))


def failing(share: float) -> Callable[[WindTunnel, Trials], Probs]:
    """Exact, and uniform on a share of the sequences."""

    def predicted(task: WindTunnel, trials: Trials) -> Probs:
        generator = torch.Generator().manual_seed(0)
        code = (trials.tokens * torch.randint(1_000_003, trials.tokens.shape[1:], generator=generator)).sum(dim=1)
        is_failing = code % 1_000_003 < share * 1_000_003
        return torch.where(is_failing[:, None, None], uniform(task, trials), exact(task, trials))

    return predicted


def named(*names: str) -> Callable[[WindTunnel, Trials], Probs]:
    """The first of these predictors that the task has."""

    def predicted(task: WindTunnel, trials: Trials) -> Probs:
        known = task.baseline_predictives(trials)
        for name in names:
            if name in known:
                return known[name]
        raise NotApplicable

    return predicted


@cache
def training(task: WindTunnel) -> Trials:
    return task.sample(4_096, seed=99)


def position(task: WindTunnel, trials: Trials) -> Probs:
    return exact(task, training(task)).mean(dim=0).expand_as(exact(task, trials))


def window(width: int) -> Callable[[WindTunnel, Trials], Probs]:
    """The exact observer of the last symbols, or pairs."""

    def predicted(task: WindTunnel, trials: Trials) -> Probs:
        if trials.observers is not None:
            return next(islice(window_predictives(trials, "stationary"), width, None))
        if isinstance(task, SymbolTask):
            return task.windowed(trials.tokens, width)
        assert isinstance(task, Bijection)
        keys, values = trials.at_scored(trials.tokens), trials.at_scored(trials.labels) - task.n_values
        parts = [
            exact(task, task.trials(keys[:, max(0, at - width) : at + 1], values[:, max(0, at - width) : at + 1]))
            for at in range(keys.shape[1])
        ]
        return torch.stack([part[:, -1] for part in parts], dim=1)

    return predicted


def counted(order: int) -> Callable[[WindTunnel, Trials], Probs]:
    """Shares of the answers after the last symbols, counted in 4,096 sequences of the task."""

    def coded(trials: Trials, first: int, base: int) -> Int64[Tensor, "batch query_pos"]:
        symbols = torch.nn.functional.pad(trials.at_scored(trials.tokens) - first + 1, (order - 1, 0))
        return (symbols.unfold(1, order, 1) * base ** torch.arange(order)).sum(dim=2)

    def predicted(task: WindTunnel, trials: Trials) -> Probs:
        if isinstance(task, Bijection):
            raise NotApplicable
        seen, answers = training(task), trials.answers
        first = int(seen.at_scored(seen.tokens).min())
        base = int(seen.at_scored(seen.tokens).max()) - first + 2
        labels = seen.at_scored(seen.labels) - answers[0]
        cells = coded(seen, first, base) * len(answers) + labels
        table = torch.bincount(cells.flatten(), minlength=base**order * len(answers)).double()
        return normalized(table.unflatten(0, (-1, len(answers))) + 0.5)[coded(trials, first, base)]

    return predicted


def bag(task: WindTunnel, trials: Trials) -> Probs:
    """As if the hidden state never moved; which values were shown, and not with which key."""
    if isinstance(task, _MOVING):
        own = trials.observers.filter
        flat = own.priors["uniform"][:, None].expand(len(trials), trials.n_scored, -1)
        return own.answers(own.weighed(flat, 0).log().cumsum(dim=1).softmax(dim=-1))
    return named("no_change", "key_membership")(task, trials)


def memorizing(task: WindTunnel, trials: Trials) -> Probs:
    """Labels of 256 memorized sequences, by how many ids before differ."""
    pool, at = training(task).rows(slice(0, 256)), trials.scored[0]
    differ = (trials.tokens[:, None] != pool.tokens).double().cumsum(dim=2)[:, :, at]
    weights = (-3 * differ).softmax(dim=1)
    labels = torch.nn.functional.one_hot(pool.at_scored(pool.labels) - trials.answers[0], len(trials.answers))
    return 0.98 * torch.einsum("bms,msa->bsa", weights, labels.double()) + 0.02 / len(trials.answers)


def plug_in(task: WindTunnel, trials: Trials) -> Probs:
    """The likeliest state, taken for certain up to 2 %."""
    if isinstance(task, _MOVING):
        belief = trials.at_scored(trials.belief)
        likeliest = torch.nn.functional.one_hot(belief.argmax(dim=2), belief.shape[2]).double()
        return trials.observers.filter.answers(0.98 * likeliest + 0.02 / belief.shape[2])
    return named("plug_in", "likeliest_run")(task, trials)


def forgetting(task: WindTunnel, trials: Trials) -> Probs:
    if isinstance(task, _MOVING):
        own = trials.observers.filter
        return own.answers(exact_beliefs(own, len(trials), trials.n_scored, discount=0.9))
    return named("forgetting")(task, trials)


def mixed(share: float, other: Callable[[WindTunnel, Trials], Probs]) -> Callable[[WindTunnel, Trials], Probs]:
    return lambda task, trials: (1 - share) * exact(task, trials) + share * other(task, trials)


PREDICTORS: Mapping[str, Callable[[WindTunnel, Trials], Probs]] = {
    "exact": exact,
    "temperature 0.5": tempered(0.5),
    "temperature 2": tempered(2.0),
    "1 % off the answers": exact,
    "60 % off the answers": exact,
    "99.9 % off the answers": exact,
    "uniform on 0.5 % of sequences": failing(0.005),
    "uniform on 5 % of sequences": failing(0.05),
    "prior": named("prior"),
    "position alone": position,
    "uniform": uniform,
    "window 1": window(1),
    "window 2": window(2),
    "window 4": window(4),
    "count table of order 1": counted(1),
    "count table of order 2": counted(2),
    "count table of order 4": counted(4),
    "bag": bag,
    "answers swapped": lambda task, trials: exact(task, trials).roll(1, dims=-1),
    "memorizing 256 sequences": memorizing,
    "plug-in": plug_in,
    "forgetting": forgetting,
    "20 % uniform": mixed(0.2, uniform),
    "70 % window 2": mixed(0.7, window(2)),
}
OFF = {"1 % off the answers": 0.01, "60 % off the answers": 0.6, "99.9 % off the answers": 0.999}
_TINY = 1e-30


def planted(task: WindTunnel, name: str) -> Model:
    """A predictor as a model: its answers at the scored positions, and an id of its own off the answers."""
    predictor, one = PREDICTORS[name], task.sample(1, seed=0)
    predictor(task, task.sample(2, seed=0))  # which it may not have

    def logits(tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        found = torch.zeros(*tokens.shape, task.d_vocab + 1, dtype=torch.float64)
        if tokens.shape[1] != task.n_pos or int(tokens.max()) >= task.d_vocab or len(tokens) < 8:
            return found  # the model is being attached
        probs, off = torch.full_like(found[:, one.scored[0]], _TINY), OFF.get(name, 0.0)
        probs[..., one.answers] = (1 - off) * predictor(task, sequences(task, tokens)).clamp_min(_TINY)
        probs[..., -1] = max(off, _TINY)
        found[:, one.scored[0]] = probs.log()
        return found

    return bayesgeom.as_model(logits)


class GRU(torch.nn.Module):
    def __init__(self, d_vocab: int) -> None:
        super().__init__()
        self.embed, self.unembed = torch.nn.Embedding(d_vocab, 32), torch.nn.Linear(32, d_vocab)
        self.layer = torch.nn.GRU(32, 32, batch_first=True)

    def forward(self, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        logits: Tensor = self.unembed(self.layer(self.embed(tokens))[0])
        return logits


def untrained(task: WindTunnel) -> dict[str, Model]:
    """A transformer and a GRU that were not trained."""
    sizes = bayesgeom.TransformerConfig(
        d_vocab=task.d_vocab, n_ctx=task.n_pos, n_layers=2, n_heads=2, d_model=32, d_mlp=64
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        gru = bayesgeom.wrap(GRU(task.d_vocab), blocks="layer", rebuild=lambda: GRU(task.d_vocab))
    return {"untrained transformer": bayesgeom.as_model(sizes.build(seed=0)), "untrained GRU": gru}


def answers(task: WindTunnel) -> Iterator[tuple[str, Answer | None]]:
    """Yield the answer of each predictor of a task; None where there is no such predictor."""
    measured = {
        name: bayesgeom.diagnose(model, task, n=N, n_untrained=1, probes=["calibration", "evidence_response"])
        for name, model in untrained(task).items()
    }
    copies = measured["untrained transformer"]["calibration"].gap_closed_by_copies
    for name in PREDICTORS:
        try:
            model = planted(task, name)
        except NotApplicable:
            yield name, None
            continue
        reports = bayesgeom.diagnose(model, task, n=N, probes=["calibration", "evidence_response"]).reports
        calibration = replace(reports["calibration"], gap_closed_by_copies=copies)
        yield name, answer_of({**reports, "calibration": calibration})
    for name, diagnosis in measured.items():
        yield name, diagnosis.answer


def rows(task: WindTunnel) -> list[str]:
    """The heading of a task, a row for each predictor, and the names of those that it does not have."""
    found = dict(answers(task))
    lines = [f"| {name} | {answer.tone} | {answer_text(answer)} |" for name, answer in found.items() if answer]
    missing = ", ".join(name for name, answer in found.items() if answer is None)
    last = [f"| {missing} | – | – |"] if missing else []
    return [f"## {task}", "", "| predictor | color | answer |", "|---|---|---|", *lines, *last]


def page(parts: Iterable[Sequence[str]]) -> str:
    """The file of the rows of all tasks."""
    title = f"# What the answer says of planted predictors (n = {N})"
    return "\n\n".join([title, *map("\n".join, parts)]) + "\n"


if __name__ == "__main__":
    TABLE.write_text(page(map(rows, TASKS)), encoding="utf-8")
