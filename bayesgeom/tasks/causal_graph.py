"""Causal graph: read observed and intervened rows of binary variables, and predict what an intervention would do.

Each sequence has a hidden directed acyclic graph, uniform over all on `n_variables`, and for every variable a
probability of 1 for each combination of its parents, from Beta(α, α). In an observational row every variable follows
its parents; in a row do(i = v) variable i is set to v. After each row a query asks for P(j = 1 | do(i = v)).

The marginal likelihood of a graph is a product over variables and their parents' combinations. Rows in which a variable
was set say nothing about its own parents:

    P(rows | G) = Π_k Π_c B(α + n_kc1, α + n_kc0) / B(α, α).

Given a graph, the answer is a sum over the combinations of the other variables. In each of them every conditional
probability occurs once, so that its posterior mean can be used. The exact answer averages over graphs. Layout of one
row and its query, for three variables: `see` or `do X2`, X1=0 X2=1 X3=1, `do X3`, X3=1, `ask X1`; the query is the last
token, and its answer is not shown.

References:
    Cooper & Yoo 1999, UAI (marginal likelihood with interventions).
    Heckerman, Geiger & Chickering 1995 (averaging over graphs).
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from bayesgeom.core import InvalidArgument, Relations, Trials
from bayesgeom.tasks.base import EvidenceTask, check_concentration, check_parameters, trials_at

_FEWEST, _MOST = 2, 4  # variables
_Rows = Int64[Tensor, "batch row variable"]
_PerRow = Int64[Tensor, "batch row"]


@final
@dataclass(frozen=True, kw_only=True)
class CausalGraph(EvidenceTask):
    """`n_rows` rows of binary variables, each with a query; the belief is over all directed acyclic graphs.

    Ids: `see`, `do X1` …, values X1=0, X1=1, X2=0, …, `ask X1` …, and the answers 0 and 1. Graphs are in the order of
    `graphs()`. The variable and the value of an intervention, and whether there is one, carry no information.

    Args:
        n_variables: Number of variables, 2 to 4: 3, 25 or 543 graphs.
        n_rows: Rows, each with a query, which is a scored position.
        intervened: Probability that a row is an intervention.
        concentration: α of the conditional probabilities: below 1, parents decide more.

    Raises:
        InvalidArgument: A parameter has the wrong type or is out of range; the message states the range.

    Example:
        >>> from bayesgeom import tasks
        >>> task = tasks.CausalGraph(n_variables=3, n_rows=4)
        >>> task.n_pos, task.sample(2, seed=0).belief.shape[-1]  # 4 tokens a row and 3 a query; 25 graphs
        (28, 25)
    """

    name: ClassVar[str] = "causal-graph"
    sentence: ClassVar[str] = (
        "Rows of {task.n_variables} variables with a hidden causal graph; after each row the model predicts what an "
        "intervention would do."
    )
    n_variables: int = 3
    n_rows: int = 16
    intervened: float = 0.5
    concentration: float = 0.5

    def __post_init__(self) -> None:
        check_parameters(self)
        if not (_FEWEST <= self.n_variables <= _MOST and self.n_rows >= 1):
            raise InvalidArgument(
                f"a causal graph needs n_variables from {_FEWEST} to {_MOST} and n_rows ≥ 1, got {self.n_variables} "
                f"and {self.n_rows}."
            )
        if not 0 <= self.intervened <= 1:
            raise InvalidArgument(f"intervened must be a probability, got {self.intervened}.")
        check_concentration(self.concentration)

    @property
    def d_vocab(self) -> int:
        return 4 * self.n_variables + 3

    @property
    def n_pos(self) -> int:
        return (self.n_variables + 4) * self.n_rows

    def graphs(self) -> Int64[np.ndarray, "graph variable"]:
        """Return the parents of each variable in every graph; bit j of an entry says that j is a parent."""
        return _acyclic(self.n_variables).copy()  # the graphs are kept: an edit would change the posterior

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        return self._drawn(self._given(n, generator), generator)

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        """Draw pairs with the same interventions and queries, under independent graphs."""
        given = self._given(n, generator)
        return self._drawn(given, generator), self._drawn(given, generator)

    def trials(self, rows: _Rows, given: "Given", answers: _PerRow) -> Trials:
        """Build sequences from rows, what was set and asked, and the answers, which are not shown.

        Args:
            rows: Value of each variable in each row.
            given: Interventions and queries.
            answers: Value of the asked variable in each query.
        """
        v = self.n_variables
        ids = torch.arange(v, device=rows.device)
        tokens = torch.cat(
            [
                given.set_variable[:, :, None] + 1,
                v + 1 + 2 * ids + rows,
                given.cause[:, :, None] + 1,
                v + 1 + 2 * given.cause[:, :, None] + given.cause_value[:, :, None],
                3 * v + 1 + given.effect[:, :, None],
            ],
            dim=2,
        )
        answer_ids = torch.arange(2, device=rows.device) + 4 * v + 1
        belief, share = self._observed(rows, given)
        return trials_at(
            slice(v + 3, None, v + 4),
            tokens.flatten(1),
            answers=answer_ids,
            predictive=torch.stack([1 - share, share], dim=2),
            belief=belief,
            labels=answers + 4 * v + 1,
            token_sets={"values": torch.arange(2 * v, device=rows.device) + v + 1},
            relations=Relations(draw=self._relations, of=tokens.flatten(1)),
        )

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        """Return predictors that miss a part of the computation.

        - `uniform`: both answers alike.
        - `marginal`: the share of 1 of the asked variable in all rows, set or not, with pseudo-counts of α.
        - `conditional`: P(j = 1 | i = v) of an observational row, averaged over graphs as the exact observer does.
        - `no_edges`: the exact observer of the graph without edges: the share in such rows, without their causes.
        - `likeliest_graph`: the exact answer under the most probable graph, taken for certain.
        """
        rows, given = self._read(trials)
        belief, asked = trials.at_scored(trials.belief), given.effect[:, :, None]
        ones = rows.cumsum(dim=1).gather(2, asked)[..., 0].double()
        count = torch.arange(1, self.n_rows + 1, device=rows.device)
        sharp = torch.zeros_like(belief).scatter_(2, belief.argmax(dim=2, keepdim=True), 1.0)
        no_edges = torch.zeros_like(belief)
        no_edges[:, :, int((self.graphs() == 0).all(axis=1).argmax())] = 1.0
        return {
            name: torch.stack([1 - share, share], dim=2)
            for name, share in {
                "uniform": torch.full_like(ones, 0.5),
                "marginal": (ones + self.concentration) / (count + 2 * self.concentration),
                "conditional": self._answers(rows, given, belief, sees=True),
                "no_edges": self._answers(rows, given, no_edges),
                "likeliest_graph": self._answers(rows, given, sharp),
            }.items()
        }

    @property
    def n_evidence(self) -> int:
        return self.n_rows

    def replace_evidence(self, trials: Trials, keep: Bool[Tensor, " evidence"], generator: torch.Generator) -> Trials:
        """Draw some rows again, from a graph drawn given the kept rows; interventions and queries stay."""
        rows, given = self._read(trials)
        return self._completed(given, rows, keep, generator)

    def token_labels(self) -> Sequence[str]:
        names = [f"X{i + 1}" for i in range(self.n_variables)]
        values = [f"{name}={value}" for name in names for value in (0, 1)]
        return ["see", *(f"do {name}" for name in names), *values, *(f"ask {name}" for name in names), "0", "1"]

    def _given(self, n: int, generator: torch.Generator) -> "Given":
        """Draw interventions and queries; the asked variable is never the one that is set."""
        size, v, device = (n, self.n_rows), self.n_variables, generator.device

        def below(limit: int) -> _PerRow:
            return torch.randint(limit, size, generator=generator, device=device)

        is_set = torch.rand(size, generator=generator, dtype=torch.float64, device=device) < self.intervened
        cause = below(v)
        return Given(
            set_variable=torch.where(is_set, below(v), -1),
            set_value=below(2),
            cause=cause,
            cause_value=below(2),
            effect=(cause + 1 + below(v - 1)) % v,
        )

    def _drawn(self, given: "Given", generator: torch.Generator) -> Trials:
        """Draw all rows and answers."""
        unread = torch.zeros(*given.cause.shape, self.n_variables, dtype=torch.int64, device=generator.device)
        return self._completed(given, unread, unread[0, :, 0] > 0, generator)

    def _completed(self, given: "Given", rows: _Rows, keep: Bool[Tensor, " row"], generator: torch.Generator) -> Trials:
        """Draw the rows that are not kept, and all answers, from a graph given the kept rows: urns."""
        n, v, row = len(rows), self.n_variables, torch.arange(len(rows), device=rows.device)
        weights = self._log_graphs(rows, given, keep, slice(-1, None))[:, 0].softmax(dim=1)
        graph = torch.multinomial(weights, 1, generator=generator)[:, 0]
        chosen = torch.from_numpy(self.graphs()).to(rows.device)[graph]  # batch, variable
        counts = torch.full((n, v, 2**v, 2), self.concentration, dtype=torch.float64, device=rows.device)
        drawn, answers = rows.clone(), torch.zeros_like(rows[:, :, 0])
        bit, order = 2 ** torch.arange(v, device=rows.device), self._orders(chosen)

        def counted(values: Int64[Tensor, "batch variable"], place: int) -> None:
            combination = (values * bit).sum(dim=1, keepdim=True) & chosen
            for k in range(v):
                is_free = (given.set_variable[:, place] != k).double()
                counts[row, k, combination[:, k], values[:, k]] += is_free

        def drawn_row(setting: Int64[Tensor, " batch"], value: Int64[Tensor, " batch"]) -> Int64[Tensor, "batch var"]:
            values = torch.zeros(n, v, dtype=torch.int64, device=rows.device)
            for step in range(v):
                k = order[:, step]
                combination = (values * bit).sum(dim=1) & chosen[row, k]
                outcome = torch.multinomial(counts[row, k, combination], 1, generator=generator)[:, 0]
                values[row, k] = torch.where(setting == k, value, outcome)
            return values

        for place in keep.nonzero()[:, 0].tolist():
            counted(rows[:, place], place)
        for place in range(self.n_rows):
            if not keep[place]:
                drawn[:, place] = drawn_row(given.set_variable[:, place], given.set_value[:, place])
                counted(drawn[:, place], place)
            asked = drawn_row(given.cause[:, place], given.cause_value[:, place])
            answers[:, place] = asked[row, given.effect[:, place]]
        return self.trials(drawn, given, answers)

    def _orders(self, own: Int64[Tensor, "batch variable"]) -> Int64[Tensor, "batch variable"]:
        """Return an order of the variables in which parents come first."""
        v, depth = self.n_variables, torch.zeros_like(own)
        for _ in range(v):
            for k in range(v):
                above = torch.stack([torch.where((own[:, k] >> j) & 1 == 1, depth[:, j] + 1, 0) for j in range(v)])
                depth[:, k] = above.amax(dim=0)
        return depth.argsort(dim=1, stable=True)

    def _families(
        self, rows: _Rows, given: "Given", keep: Bool[Tensor, " row"]
    ) -> Float64[Tensor, "batch row variable parents combination value"]:
        """Return α plus the counts of each variable's values by combination of each set of parents, row by row."""
        v = self.n_variables
        device, sets = rows.device, torch.arange(2**v, device=rows.device)
        bits = (rows * 2 ** torch.arange(v, device=device)).sum(dim=2)
        combination = torch.nn.functional.one_hot(bits[:, :, None] & sets, 2**v).double()  # batch, row, parents, comb.
        value = torch.nn.functional.one_hot(rows, 2).double()
        is_free = (given.set_variable[:, :, None] != torch.arange(v, device=device)) & keep[:, None]
        seen = torch.einsum("brsc,brkx,brk->brkscx", combination, value, is_free.double())
        return seen.cumsum(dim=1) + self.concentration

    def _log_graphs(
        self, rows: _Rows, given: "Given", keep: Bool[Tensor, " row"], after: slice = slice(None)
    ) -> Float64[Tensor, "batch some_row graph"]:
        """Return the log marginal likelihood of each graph after some rows: the sum of those of its families."""
        counts, alpha = self._families(rows, given, keep), torch.tensor(self.concentration, dtype=torch.float64)
        each = counts.lgamma().sum(dim=-1) - counts.sum(dim=-1).lgamma()
        logs = (each - 2 * alpha.lgamma() + (2 * alpha).lgamma()).sum(dim=-1)  # by variable and set of parents
        parents = torch.from_numpy(self.graphs()).to(rows.device)
        total = logs[:, after, 0, parents[:, 0]]
        for k in range(1, self.n_variables):
            total += logs[:, after, k, parents[:, k]]
        return total

    def _observed(
        self, rows: _Rows, given: "Given"
    ) -> tuple[Float64[Tensor, "batch row graph"], Float64[Tensor, "batch row"]]:
        """Return the belief after each row, and the probability that the answer is 1."""
        keep = torch.ones(self.n_rows, dtype=torch.bool, device=rows.device)
        belief = self._log_graphs(rows, given, keep).softmax(dim=2)
        return belief, self._answers(rows, given, belief)

    def _answers(
        self, rows: _Rows, given: "Given", belief: Float64[Tensor, "batch row graph"], *, sees: bool = False
    ) -> Float64[Tensor, "batch row"]:
        """Return P(effect = 1 | do(cause)) averaged over graphs; P(effect = 1 | cause) of a row that is only seen."""
        v, device = self.n_variables, rows.device
        keep = torch.ones(self.n_rows, dtype=torch.bool, device=device)
        counts = self._families(rows, given, keep)
        means = counts / counts.sum(dim=-1, keepdim=True)  # batch, row, variable, parents, combination, value
        parents = torch.from_numpy(self.graphs()).to(device)
        mass = torch.zeros(*belief.shape[:2], 2, dtype=torch.float64, device=device)
        for combination in range(2**v):
            values = [(combination >> k) & 1 for k in range(v)]
            chance = torch.ones_like(belief)
            for k in range(v):
                factor = means[:, :, k, parents[:, k], combination & parents[:, k], values[k]]
                chance = chance * (factor if sees else torch.where((given.cause == k)[:, :, None], 1.0, factor))
            shown = torch.tensor(values, device=device)
            fits = (shown[given.cause] == given.cause_value).double() * (belief * chance).sum(dim=2)
            mass.scatter_add_(2, shown[given.effect][:, :, None], fits[:, :, None])
        return mass[:, :, 1] / mass.sum(dim=2)

    def _read(self, trials: Trials) -> tuple[_Rows, "Given"]:
        """Return rows, interventions and queries of sequences."""
        v = self.n_variables
        tokens = trials.tokens.unflatten(1, (self.n_rows, v + 4))
        rows = (tokens[:, :, 1 : v + 1] - v - 1) % 2
        set_variable = tokens[:, :, 0] - 1
        return rows, Given(
            set_variable=set_variable,
            set_value=rows.gather(2, set_variable.clamp_min(0)[:, :, None])[:, :, 0],
            cause=tokens[:, :, v + 1] - 1,
            cause_value=(tokens[:, :, v + 2] - v - 1) % 2,
            effect=tokens[:, :, v + 3] - 3 * v - 1,
        )

    def _relations(self, tokens: Int64[Tensor, "batch pos"]) -> dict[str, Bool[Tensor, "batch query_pos key_pos"]]:
        """Mark, for each query, earlier values of the asked variable, those of the cause, and what is set in a row."""
        v = self.n_variables
        place = torch.arange(tokens.shape[1], device=tokens.device)
        part, row = place % (v + 4), place // (v + 4)
        query = place[part == v + 3]
        is_value = ((part >= 1) & (part <= v))[None, None, :] & (row[None, :] <= row[query, None])[None]
        variable = (tokens - v - 1) // 2
        effect, cause = tokens[:, query] - 3 * v - 1, tokens[:, query - 2] - 1
        is_set = (part == 0)[None, None, :] & (row[None, :] <= row[query, None])[None] & (tokens > 0)[:, None, :]
        return {
            "effect_value": is_value & (variable[:, None, :] == effect[:, :, None]),
            "cause_value": is_value & (variable[:, None, :] == cause[:, :, None]),
            "intervention": is_set.expand(len(tokens), len(query), -1),
        }


@final
@dataclass(frozen=True, kw_only=True)
class Given:
    """What carries no information, by row: what was set (−1: nothing) and to what, and the query."""

    set_variable: _PerRow
    set_value: _PerRow
    cause: _PerRow
    cause_value: _PerRow
    effect: _PerRow


@functools.cache
def _acyclic(n: int) -> Int64[np.ndarray, "graph variable"]:
    """Return the parents of each variable, as bits, in every directed acyclic graph."""
    graphs = np.array([*itertools.product(range(2**n), repeat=n)])
    edges = graphs[:, :, None] >> np.arange(n) & 1
    return graphs[~np.linalg.matrix_power(edges, n).any(axis=(1, 2))]  # without a cycle, no path has n edges
