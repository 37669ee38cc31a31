"""`worlds`: the networks of the new worlds, each read with six instruments; the numbers go into `results/worlds.csv`.

A row of the table is one number: its network, the instrument and the quantity, its 95 % interval, the strongest
baseline, and a verdict or the reason why there is none. The instruments are the package's own: the answer of
`diagnose`, evidence response, posterior lens, belief read-out, intervention and audit.

A second read-out looks for the strongest dull explanation of the first. The same kind of map is fitted to features
that need no inference: position, the counts and shares of the tokens so far, and the last tokens. It also reads
statistics of the belief where the hypotheses are too many to read one by one, such as the run length.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Self, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

import bayesgeom
from bayesgeom.core import LOGIT_LENS, RESID_POST, STATE, Trials, concatenate, phase
from bayesgeom.core.files import atomic_file
from bayesgeom.interventions.design import Design
from bayesgeom.measurements.belief_readout import BeliefReadoutReport
from bayesgeom.measurements.posterior_lens import PosteriorLensReport
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import scored_task_of
from bayesgeom.report.findings import rounded
from bayesgeom.report.render import markdown
from bayesgeom.report.tables import Headline, extreme_of, headline_of
from bayesgeom.stats.bootstrap import r2_interval
from bayesgeom.stats.bounds import extreme_interval
from bayesgeom.stats.regression import ridge
from bayesgeom.subspaces.base import About, Fit, Sample, Setting, Subspace, span
from bayesgeom.tasks.base import WindTunnel, derived_seed
from bayesgeom.tasks.markov import MarkovProcess

TABLE = Path(__file__).parent / "results" / "worlds.csv"
WORLDS = (
    "dice",
    "dirichlet-markov",
    "change-point",
    "causal-graph",
    "linear-regression",
    "linear-gaussian",
    "rrxor",
    "product",
)
NETWORKS = tuple(f"{world}-{architecture}" for world in WORLDS for architecture in ("transformer", "lstm"))
N, N_SWAPPED, N_AUDITED, N_FIT = 512, 128, 128, 512
MOST_READ = 16  # hypotheses: with more, the subspace of the belief is most of a small network's width
N_LAST = 4  # tokens that the dull features name one by one
_READ = 9  # branch of the seed
_TINY = 1e-9  # standard deviation of a statistic that is constant
_RIDGE = 1e-6  # thousands of points allow less than the package's read-out has, which leaves out narrow directions

Features = Float64[Tensor, "sequence position feature"]


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table; the columns are the fields."""

    network: str
    weights_hash: str
    instrument: str
    quantity: str
    value: float
    low: float
    high: float
    baseline: str
    level: float
    verdict: str

    @classmethod
    def of(cls, line: Headline, *, network: str, weights_hash: str, instrument: str) -> Self:
        """Return a headline as a row; without a verdict, the reason why there is none."""
        why = "; ".join(filter(None, (line.verdict, line.why))) or line.reason.label * bool(line.reason)
        return cls(
            network=network,
            weights_hash=weights_hash,
            instrument=instrument,
            quantity=line.label,
            value=line.value,
            low=line.low,
            high=line.high,
            baseline=line.baseline_name,
            level=line.baseline,
            verdict=why,
        )


def worlds(networks: tuple[str, ...] = (), /, *, seed: int = 0, table: Path = TABLE, again: bool = False) -> None:
    """Read networks of the new worlds with six instruments, and add the numbers to a table.

    A network takes one to two minutes of one CPU core. It is left out if the table has it with the same weights.

    Args:
        networks: Names of checkpoints, or directories of runs. Default: every shipped network of a new world.
        seed: Seed of sequences, controls and intervals.
        table: The table.
        again: Whether networks that are in the table are read again.
    """
    import pandas as pd

    shipped = bayesgeom.checkpoints()
    for number, name in enumerate(chosen := networks or [own for own in NETWORKS if own in shipped], start=1):
        model = bayesgeom.load(name)
        known = pd.read_csv(table) if table.is_file() else pd.DataFrame(columns=[own.name for own in fields(Row)])
        network, weights = _network(name), model.spec.weights_hash
        if not again and weights in set(known.weights_hash[known.network == network]):
            continue
        with phase(f"{network} ({number} of {len(chosen)})"):
            rows = pd.DataFrame([*reading(model, network, seed=seed)])
        every = pd.concat([known[known.network != network], rows]) if len(known) else rows
        with atomic_file(table) as path:
            every.sort_values("network", kind="stable").to_csv(path, index=False, float_format="%.5g")
        print(f"{network}: {len(rows)} numbers")


def reading(model: Model, network: str, *, seed: int = 0) -> Iterator[Row]:
    """Yield the rows of one network."""
    task = scored_task_of(model, None)
    parts: dict[str, Callable[..., Iterator[Headline]]] = {
        "diagnose": answer_and_layers,
        "response": response,
        "read-out": read_out,
        "intervene": swapped,
        "audit": audited,
    }
    for instrument, part in parts.items():
        for line in part(model, task, seed):
            yield Row.of(line, network=network, weights_hash=model.spec.weights_hash, instrument=instrument)


def answer_and_layers(model: Model, task: WindTunnel, seed: int) -> Iterator[Headline]:
    """Yield the answer's share of the gap, KL, the lens by layer, and R² of the belief by site and layer."""
    probes = ["calibration", "belief_readout", *["posterior_lens"] * bool(model.layers_of(LOGIT_LENS))]
    found = bayesgeom.diagnose(model, task, probes=probes, n=N, seed=seed, n_untrained=2)
    answer, calibration = found.answer, found["calibration"]
    assert answer is not None, "calibration was measured"
    yield headline_of(calibration, "gap_closed", (0,), verdict=str(answer.verdict))
    yield headline_of(calibration, "kl_bits")
    lens, belief = found.get("posterior_lens"), found["belief_readout"]
    assert isinstance(belief, BeliefReadoutReport), "every network has a residual stream"
    if isinstance(lens, PosteriorLensReport):
        yield lens.headlines()[0]
        for at, stage in enumerate(lens.stages):
            yield headline_of(lens, "kl_bits", (at,), f"KL(exact ‖ logit lens), {stage}")
    for at, site in enumerate(belief.sites):
        yield extreme_of(belief, "r2", "largest", f"R² of the belief, best layer of {site}: {{}}", (at,))
    yield headline_of(belief, "next_token_r2")


def response(model: Model, task: WindTunnel, seed: int) -> Iterator[Headline]:
    """Yield the slope for the oldest evidence up to age ten, and for all evidence."""
    found = bayesgeom.evidence_response(model, task, n=256, seed=seed)
    lines = found.headlines()
    yield lines[0]
    yield from (line for line in lines[1:] if line.label.endswith("all evidence"))


def audited(model: Model, task: WindTunnel, seed: int) -> Iterator[Headline]:
    """Yield the numbers of the audit."""
    yield from bayesgeom.audit(model, task, n=N_AUDITED, seed=seed).headlines()


def swapped(model: Model, task: WindTunnel, seed: int) -> Iterator[Headline]:
    """Yield the swap of the belief, or of its statistics, in every layer; then what it shifts in the strongest one."""
    one = task.sample(1, seed=0)
    is_summed_up = one.belief.shape[-1] > MOST_READ and len(statistics(task, one)) > 0
    fit = StatisticsFit(task) if is_summed_up else bayesgeom.subspaces.leace("belief")
    design = Design("swap", n_fit=N_FIT)
    found = bayesgeom.intervene(model, task, fit, kind=design, n=N_SWAPPED, seed=seed)
    yield from found.headlines()[: model.spec.n_layers + 4]


@final
@dataclass(frozen=True)
class StatisticsFit(Fit):
    """The span of the covariance with the statistics of a task's belief.

    The span of the covariance with a belief over many hypotheses would be most of a small network's width.
    """

    task: WindTunnel

    @property
    def label(self) -> str:
        return f"covariance ({', '.join(statistics(self.task, self.task.sample(1, seed=0)))})"

    @property
    def about(self) -> About:
        return About(at_scored=True)

    def check(self, setting: Setting) -> None:
        """Accept every setting."""

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        values = torch.cat([*statistics(self.task, sample.run.trials).values()], dim=2).flatten(0, 1)
        target = (values - values.mean(dim=0)) / values.std(dim=0).clamp_min(_TINY)
        return {layer: span(self.label, sample.points(layer).cpu().T @ target) for layer in layers}


def read_out(model: Model, task: WindTunnel, seed: int) -> Iterator[Headline]:
    """Yield R² of linear maps to the belief and to its statistics: from layers, and from what needs no inference."""
    trials = concatenate([*task.stream(N, seed=derived_seed(seed, _READ), device=model.spec.device)])
    targets = {"belief": trials.at_scored(trials.belief).cpu(), **statistics(task, trials)}
    exact = trials.at_scored(trials.predictive).double().cpu()
    layers, untrained = (activations(own, trials) for own in (model, model.untrained_copy(seed)))
    known = {"exact next-token distribution": exact, "position, counts and last tokens": dull_features(trials)}
    for name, target in targets.items():
        for source, points in (known | layers).items():
            yield r2_of(points, target, f"R² of {name} from {source}", seed=seed)
        label = f"R² of {name} from an untrained network"
        yield max((r2_of(points, target, label, seed=seed) for points in untrained.values()), key=lambda own: own.value)


def activations(model: Model, trials: Trials) -> dict[str, Features]:
    """Return the residual stream after each layer, and the state of a recurrent layer, at the scored positions."""
    sites = [site for site in (RESID_POST, STATE) if site in model.sites]
    run = model.run([trials], record=sites, n_recorded=len(trials))
    return {f"{site.name} {at}": own.double().cpu() for site in sites for at, own in enumerate(run.at(site))}


def dull_features(trials: Trials) -> Features:
    """Return position, counts and shares of the tokens so far, and the last tokens, at each scored position."""
    tokens = trials.tokens.cpu()
    shown = torch.nn.functional.one_hot(tokens).double()
    before = torch.nn.functional.pad(shown, (0, 0, N_LAST - 1, 0))
    last = [before[:, back : back + tokens.shape[1]] for back in range(N_LAST)]
    counts = shown.cumsum(dim=1)
    shares = counts / counts.sum(dim=2, keepdim=True)
    place = torch.eye(tokens.shape[1], dtype=torch.float64).expand(len(tokens), -1, -1)
    return trials.at_scored(torch.cat([place, counts, shares, *last], dim=2).to(trials.tokens.device)).cpu()


def statistics(task: WindTunnel, trials: Trials) -> Mapping[str, Features]:
    """Return what summarizes a belief over many hypotheses, all that the counts say of a chain, or factors' beliefs."""
    belief = trials.at_scored(trials.belief).double().cpu()
    found = {name.replace("_", " "): trials.at_scored(own)[..., None].cpu() for name, own in trials.statistics.items()}
    match task:
        case bayesgeom.tasks.CausalGraph():
            parents = torch.from_numpy(task.graphs())
            edges = torch.cat([(parents >> cause & 1).double() for cause in range(task.n_variables)], dim=1)
            return {"probability of each edge": belief @ edges[:, edges.any(dim=0)]}
        case bayesgeom.tasks.DirichletMarkov():
            return {"transition matrix": mean_matrix(task, trials.tokens.cpu())}
        case bayesgeom.tasks.Product(a=MarkovProcess() as first):
            joint = belief.unflatten(2, (len(first.start()), -1))
            factors = {"belief of factor a": joint.sum(dim=3), "belief of factor b": joint.sum(dim=2)}
            x, y = (own - own.mean(dim=(0, 1)) for own in (torch.cat([*factors.values()], dim=2), belief))
            return {**factors, "belief beyond a linear map of both": y - x @ linear_map(x, y)}
    return found


def mean_matrix(task: bayesgeom.tasks.DirichletMarkov, tokens: Int64[Tensor, "sequence position"]) -> Features:
    """Return the posterior mean of every transition of a chain that is new, at each position."""
    k = task.n_symbols
    pairs = torch.nn.functional.one_hot(tokens[:, :-1] * k + tokens[:, 1:], k * k).double().cumsum(dim=1)
    counts = torch.nn.functional.pad(pairs, (0, 0, 1, 0)).unflatten(2, (k, k)) + task.concentration
    shares: Features = (counts / counts.sum(dim=3, keepdim=True)).flatten(2)
    return shares


def r2_of(points: Float[Tensor, "sequence position _d"], target: Features, label: str, *, seed: int) -> Headline:
    """Return the R² of a ridge map, fitted on the first half of the sequences, on the second half.

    Example:
        >>> x = torch.randn(20, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> round(r2_of(x, 2 * x + 1, "itself", seed=0).value, 6)
        1.0
    """
    half = len(points) // 2
    x, y = (own.double() - own[:half].double().mean(dim=(0, 1)) for own in (points, target))
    weights = linear_map(x[:half], y[:half])
    error, spread = (own[half:].square().sum(dim=(1, 2)).numpy() for own in (y - x @ weights, y))
    interval = r2_interval(error[:, None], spread[:, None], seed=seed)
    low, high = float(interval.lo[0]), float(interval.hi[0])
    return Headline(metric="r2", label=label, value=1 - float(error.sum() / spread.sum()), low=low, high=high)


def _network(name: str) -> str:
    """Return the name of a checkpoint, or of the run that holds a snapshot."""
    path = Path(name)
    return path.parents[1].name if path.name.startswith("step-") else path.name


def linear_map(x: Features, y: Features) -> Float64[Tensor, "feature target"]:
    """Return the weights of a ridge map between centered features."""
    points, targets = x.flatten(0, 1), y.flatten(0, 1)
    return ridge(points.T @ points, points.T @ targets, strength=_RIDGE)


READ = {  # world: the statistic of a belief over more than `MOST_READ` hypotheses that the page shows; else the belief
    "change-point": "run length",
    "causal-graph": "probability of each edge",
    "linear-regression": "mean",
    "linear-gaussian": "mean",
}
READ_FROM = ("resid_post", "state")  # sites
COLUMNS: Mapping[str, tuple[str, ...]] = {  # of the page: the quantities that a cell may show, by how they begin
    "answer": ("share of the gap closed",),
    "KL, bits": ("KL(exact ‖ model)",),
    "older evidence": ("slope, evidence older", "slope, all"),
    "layers until there": ("layers until",),
    "R² of the belief": ("R² of {} from the best layer",),
    "R² without inference": ("R² of {} from position",),
    "swap": ("layer ",),
    "order": ("order spread",),
}


def overview(table: Path = TABLE) -> str:
    """Return the table of the page: a row for each network, each number with interval, strongest baseline, verdict.

    Both columns of R² are of one read-out and of one quantity: see `READ`.
    """
    import pandas as pd

    every = pd.read_csv(table, keep_default_na=False, na_values={"value": "", "low": "", "high": "", "level": ""})
    rows = list[tuple[str, ...]]()
    for network in sorted(set(every.network), key=lambda own: (NETWORKS.index(own) if own in NETWORKS else -1, own)):
        own = [Row(**line) for line in every[every.network == network].to_dict("records")]
        name = read_of(network)
        own += best_read(own, name)
        cells = [_cell(own, [start.format(name) for start in starts]) for starts in COLUMNS.values()]
        rows.append((f"`{network}`", *cells))
    named = ", ".join(f"{name} ({world})" for world, name in READ.items())
    text = (
        "Both columns of R² are of one read-out, at the best site and layer; the level is that of an untrained copy at "
        f"its best. Where the belief is over more than {MOST_READ} hypotheses, both are of a statistic of it instead: "
        f"{named}."
    )
    return f"{markdown(('network', *COLUMNS), rows)}\n\n{text}"


def read_of(network: str) -> str:
    """Return what the page shows the R² of, for a network.

    Example:
        >>> read_of("change-point-lstm"), read_of("dice-lstm")
        ('run length', 'belief')
    """
    return next((name for world, name in READ.items() if network.startswith(f"{world}-")), "belief")


def best_read(rows: Sequence[Row], name: str) -> list[Row]:
    """Return the largest R² of what is read over sites and layers, with the level of an untrained copy; [] without any.

    The interval allows for the choice: see `bayesgeom.stats.bounds`.
    """
    start = f"R² of {name} from "
    found = {
        row.quantity.removeprefix(start): row
        for row in rows
        if row.instrument == "read-out" and row.quantity.startswith(start)
    }
    layers = [row for source, row in found.items() if source.startswith(READ_FROM)]
    if not layers:
        return []
    value, low, high = (np.array([getattr(row, end) for row in layers]) for end in ("value", "low", "high"))
    lo, hi, _ = extreme_interval(value, low, high, "largest", n=N - N // 2)
    level = found["an untrained network"].value
    best = layers[int(value.argmax())]
    named = f"{start}the best layer"
    return [replace(best, quantity=named, low=lo, high=hi, baseline="untrained network", level=level)]


def _cell(rows: Sequence[Row], starts: Sequence[str]) -> str:
    """Return the first number whose quantity begins like this, with interval, strongest baseline and verdict."""
    own = next((row for start in starts for row in rows if row.quantity.startswith(start)), None)
    if own is None or math.isnan(own.value):
        return own.verdict.rpartition("; ")[2] if own else "–"
    interval = "" if math.isnan(own.low) else f" [{rounded(own.low)} … {rounded(own.high)}]"
    level = f"; {own.baseline} {rounded(own.level)}" if own.baseline not in ("", "exact", "all layers") else ""
    verdict = f"; **{own.verdict.partition('; ')[0]}**" if own.verdict not in ("", "yes", "no", "conservative") else ""
    return f"{rounded(own.value)}{interval}{level}{verdict}"


PARTS: Mapping[str, Callable[[], str]] = {"worlds": overview}
