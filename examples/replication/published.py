"""`published`: three claims of 2026 on small trainings, each with its dull explanation, into `results/published/`.

A row of a table is one network at one step of its training. Runs are kept in a directory, so that an interrupted
command continues; rows that the table has are not measured again.

References:
    Shai et al. 2026, arXiv:2602.02385 (factoring). Chlon et al. 2026, arXiv:2507.11768 v3 (order).
    Abdullah X 2026, arXiv:2605.20824 (forcing).
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from jaxtyping import Float64
from torch import Tensor, nn

from bayesgeom.core import Trials
from bayesgeom.core.files import atomic_file
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.report import LagReport
from bayesgeom.interventions.run import intervene
from bayesgeom.models.checkpoint import load_checkpoint
from bayesgeom.models.checkpoint_files import checkpoints
from bayesgeom.models.replay.carried import CARRIED
from bayesgeom.stats.bootstrap import mean_interval
from bayesgeom.stats.information import kl_bits
from bayesgeom.stats.windows import window_predictives
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.tasks import Dice, Mess3, Process, Product, StickyMarkov
from bayesgeom.tasks.base import random_order
from bayesgeom.training.loop import RECIPE, SNAPSHOTS, train
from bayesgeom.training.recipes import RECIPES, Recipe

TABLES = Path(__file__).parent / "results" / "published"
FACTOR = "mess3:x=0.02,a=0.85"  # twice: a window of 3 is then six times as far from exact as the factored observer
DEPENDENCES, WIDEST = (0.1, 0.2, 0.5), 6
ORDERED = ("learned", "rotary", "alibi", "none", "lstm")  # of transformers, the positional encoding
LENGTHS, N_ORDERS = (8, 16, 32), 8
CHAINS = {"mess3": Mess3(x=0.05, a=0.85, length=24), "sticky": StickyMarkov(length=24)}
LAGS, SWAPS, N_SWAPPED = (0, 1, 2, 4, 8), Design("swap", n_fit=512), 256
STEPS, N_SCORED = {"factoring": 600, "order": 400, "forcing": 600}, 192
_SCORED_SEED = 1_000_003
SECONDS = "seconds"  # file of a run with the processor time of its training

Row = dict[str, Any]
Answers = Float64[Tensor, "batch query_pos answer"]


def published(
    claim: Annotated[Literal["factoring", "order", "forcing"], tyro.conf.Positional],
    /,
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    runs: Path = Path("runs/published"),
    table: Path | None = None,
) -> None:
    """Train the networks of a claim, measure each at its snapshots, and write the table.

    Args:
        claim: `factoring`: products of dependent factors. `order`: a coin, with five ways to know positions.
            `forcing`: chains whose belief is swapped.
        seeds: Seeds of the trainings.
        runs: Directory of the runs.
        table: The table. Default: that of the study.
    """
    import pandas as pd

    path = table or TABLES / f"{claim}.csv"
    found = pd.read_csv(path) if path.is_file() else pd.DataFrame(columns=["network"])
    for own in (own for seed in seeds for own in recipes(claim, seed)):
        if own.name in set(found.network):
            continue
        seconds, snapshots = trained(own, runs / own.name)
        rows = pd.DataFrame([*MEASURED[claim](own, snapshots)]).assign(seconds=seconds)
        found = pd.concat([found, rows]) if len(found) else rows
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            found.to_csv(temporary, index=False, float_format="%.4g")


def recipes(claim: str, seed: int) -> Iterator[Recipe]:
    """Yield the trainings of a claim with one seed."""
    if claim == "order":
        for positions in ORDERED:
            yield _recipe(
                f"coin-{positions}", Dice(length=LENGTHS[-1]), positions, seed, steps=STEPS[claim], snapshots=7
            )
        yield from (RECIPES[f"dice-{kind}"] for kind in ("lstm", "transformer") if seed == 0)
    elif claim == "forcing":
        for kind, (name, task) in itertools.product(("lstm", "transformer"), CHAINS.items()):
            yield _recipe(f"{name}-{kind}", task, kind, seed, steps=STEPS[claim], snapshots=0)
        for kind in ("lstm", "transformer"):
            shipped = RECIPES[f"rrxor-{kind}"]
            yield replace(shipped.reseeded(seed), snapshots=0) if seed else shipped
    else:
        for dependence in DEPENDENCES:
            task = Product(FACTOR, FACTOR, length=16, dependence=dependence)
            for kind in ("lstm", "transformer"):
                yield _recipe(f"product-{dependence:g}-{kind}", task, kind, seed, steps=STEPS[claim], snapshots=10)


def _recipe(name: str, task: Any, kind: str, seed: int, *, steps: int, snapshots: int) -> Recipe:
    sizes: dict[str, Any] = {"architecture": "lstm"}
    if kind != "lstm":
        positions = "rotary" if kind == "transformer" else kind
        sizes = {"architecture": "transformer", "n_heads": 4, "d_mlp": 256, "positions": positions}
    return Recipe(
        name=f"{name}-seed{seed}",
        task=task,
        sizes={**sizes, "n_layers": 2, "d_model": 64, "tied": False},
        optimizer="adamw",
        lr=3e-3,
        warmup=100,
        steps=steps,
        seed=1_000 * seed,
        float32_share=0.0,
        snapshots=snapshots,
    )


def trained(recipe: Recipe, out: Path) -> tuple[float, dict[int, nn.Module]]:
    """Return the processor seconds of a training, which is finished first, and the network at each snapshot.

    Of a shipped checkpoint the seconds are not known, and it is not trained again.
    """
    if recipe.name in (shipped := checkpoints()):
        return float("nan"), {recipe.steps: load_checkpoint(shipped[recipe.name]).module}
    begun = time.process_time()
    train(recipe, out, resume=(out / RECIPE).is_file(), precision="float32")
    if not (out / SECONDS).is_file():
        (out / SECONDS).write_text(f"{time.process_time() - begun:.1f}\n", encoding="utf-8")
    paths = {int(path.name.removeprefix("step-")): path for path in sorted((out / SNAPSHOTS).iterdir())}
    return float((out / SECONDS).read_text("utf-8")), {at: load_checkpoint(own).module for at, own in paths.items()}


@torch.no_grad()
def log_answers(module: nn.Module, trials: Trials) -> Answers:
    """Return the natural log-probabilities of the answers at the scored positions, without other ids."""
    return trials.at_scored(module(trials.tokens)[..., trials.answers].double().log_softmax(-1))


def factoring(recipe: Recipe, snapshots: dict[int, nn.Module]) -> Iterator[Row]:
    """Yield, by step, the distance of a network to both families of observers of a product."""
    task = recipe.task
    assert isinstance(task, Product), "the claim is about products"
    trials = task.sample(N_SCORED, seed=_SCORED_SEED)
    joint, factored = observers(task, trials)
    shown = {"to_joint": joint[-1], "to_factored": factored[-1], **{f"to_w{w}": joint[w] for w in (1, 2, 3)}}
    for step, module in snapshots.items():
        log_own = log_answers(module, trials)
        own = log_own.exp()
        to = {name: float(kl_bits(own, probs.log()).mean()) for name, probs in shown.items()}
        named = {**_named(recipe, step), "epsilon": task.dependence, "architecture": recipe.sizes["architecture"]}
        kl, gap = (float(kl_bits(joint[-1], logs).mean()) for logs in (log_own, joint[0].log()))
        yield {**named, "kl": kl, "gap": gap, **to, **compared(own, joint, factored)}


def _named(recipe: Recipe, step: int) -> Row:
    return {"network": recipe.name, "seed": recipe.seed // 1_000, "step": step}


def observers(task: Product, trials: Trials) -> tuple[list[Answers], list[Answers]]:
    """Return the joint observers of the last 0 to 6 pairs and of all, and the products of those of the factors.

    The observers of a factor see its symbols alone, of which the share `dependence` is random.
    """
    symbols = torch.cat([trials.tokens, trials.labels[:, -1:]], dim=1)
    size = task.factors[1].d_vocab
    alone = list[list[Answers]]()
    for factor, own in zip(task.factors, (symbols // size, symbols % size), strict=True):
        labeled = factor.labeled()
        noisy = (1 - task.dependence) * labeled + task.dependence * labeled.mean(dim=0)
        alone.append(_windows(Process(noisy, length=task.length).trials(own)))
    return _windows(trials), [(a[..., :, None] * b[..., None, :]).flatten(2) for a, b in zip(*alone, strict=True)]


def _windows(trials: Trials) -> list[Answers]:
    return [
        *itertools.islice(window_predictives(trials, "stationary"), WIDEST + 1),
        trials.at_scored(trials.predictive),
    ]


def compared(own: Answers, joint: Sequence[Answers], factored: Sequence[Answers]) -> Row:
    """Return how much nearer the nearest mixture of factored observers is than that of joint ones, in bits.

    Both families have observers of every width, so that a short memory or too flat predictions favor neither.
    The dull explanation is a predictor that adds up what each pair alone says of the next one, at its own weight: with
    flat weights it is nearer to factored observers, and it knows nothing of factors.

    `apart` is the difference that the factored mixture itself would have, and `share` the weight of factored observers
    in the nearest mixture of both families. `margin` is how much nearer the factored mixture is than the sum.
    """
    (_, near_joint), (_, near_factored) = mixed(own, joint), mixed(own, factored)
    weights, _ = mixed(own, [*joint, *factored[1:]])
    families = {"joint": near_joint, "factored": near_factored, "added": added(own, joint)}
    left = {name: kl_bits(own, probs.log()).mean(dim=1) for name, probs in families.items()}
    difference, margin = left["joint"] - left["factored"], left["added"] - left["factored"]
    lower, upper = mean_interval(difference.numpy(), seed=0)
    margin_lower, margin_upper = mean_interval(margin.numpy(), seed=0)
    numbers: Row = {f"left_{name}": values.mean() for name, values in left.items()}
    numbers |= {"difference": difference.mean(), "lower": lower, "upper": upper}
    numbers["apart"] = kl_bits(near_factored, near_joint.log()).mean()
    numbers |= {"margin": margin.mean(), "margin_lower": margin_lower, "margin_upper": margin_upper}
    return {name: float(number) for name, number in {**numbers, "share": weights[len(joint) :].sum()}.items()}


def mixed(own: Answers, parts: Sequence[Answers]) -> tuple[Float64[Tensor, " part"], Answers]:
    """Return the weights of the mixture of parts that minimizes KL(own ‖ mixture), and the mixture."""
    stacked = torch.stack([*parts])
    found, near = nearest(own, len(parts), lambda at: torch.einsum("k,knpa->npa", at.softmax(dim=0), stacked).log())
    return found.softmax(dim=0), near


def added(own: Answers, joint: Sequence[Answers]) -> Answers:
    """Return the nearest predictor whose log-odds are a sum over pairs of what each alone says, weighted by its age."""
    start, alone, length = joint[0].log(), joint[1].log() - joint[0].log(), own.shape[1]
    by_age = torch.stack([nn.functional.pad(alone[:, : length - age], (0, 0, age, 0)) for age in range(length)])
    return nearest(own, length, lambda at: (start + torch.einsum("k,knpa->npa", at, by_age)).log_softmax(dim=-1))[1]


def nearest(
    own: Answers, n: int, logs: Callable[[Float64[Tensor, " parameter"]], Answers]
) -> tuple[Float64[Tensor, " parameter"], Answers]:
    """Return the parameters, from 0, at which KL(own ‖ predictor) is least, and that predictor."""
    at = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([at], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        distance = kl_bits(own, logs(at)).mean()
        distance.backward()
        return distance

    optimizer.step(loss)
    return at.detach(), logs(at).detach().exp()


def order(recipe: Recipe, snapshots: dict[int, nn.Module]) -> Iterator[Row]:
    """Yield, by step and number of flips, the KL of the last prediction, and what averaging it over orders removes.

    `kl_of_all` is the mean KL of all predictions of the sequences.
    """
    task, generator = recipe.task, torch.Generator().manual_seed(_SCORED_SEED)
    assert isinstance(task, Dice), "the claim is about a coin"
    for length in (own for own in LENGTHS if own <= task.length):
        trials = replace(task, length=length).sample(N_SCORED, seed=_SCORED_SEED)
        exact = (every := trials.at_scored(trials.predictive))[:, -1]
        orders = [random_order(N_SCORED, length, generator) for _ in range(N_ORDERS)]
        gap = float(kl_bits(exact, torch.full_like(exact, 0.5).log()).mean())
        for step, module in snapshots.items():
            logs = torch.stack([log_answers(module, task.reordered(trials, own))[:, -1] for own in orders])
            kl, mean = kl_bits(exact.expand_as(logs), logs).mean(dim=0), logs.exp().mean(dim=0).log()
            gain = kl - kl_bits(exact, mean)
            ends = mean_interval(gain.numpy(), seed=0, bounds=(0.0, float("inf")))
            positions = recipe.name.split("-seed")[0].removeprefix("coin-")
            named = {**_named(recipe, step), "positions": positions, "flips": length, "gap": gap}
            numbers: Row = {"kl": kl.mean(), "gain": gain.mean(), "lower": ends.lo, "upper": ends.hi}
            numbers["spread"] = kl_bits(logs.exp(), mean.expand_as(logs)).mean()
            numbers["kl_of_all"] = kl_bits(every, log_answers(module, trials)).mean()
            yield {**named, **{name: float(own) for name, own in numbers.items()}}


def forcing(recipe: Recipe, snapshots: dict[int, nn.Module]) -> Iterator[Row]:
    """Yield, by layer and lag, how far a swap of the belief moves answers to the filter continued from the donor's.

    It swaps the residual stream of a transformer at all positions up to one, and the state that an LSTM carries on.
    Next to the mean of each level, `…_bar` is what the verdict compares with: the largest draw, or the bound of
    untrained networks.
    """
    is_lstm = recipe.sizes["architecture"] == "lstm"
    place = InterventionSite(CARRIED, score_after=True) if is_lstm else InterventionSite()
    module = snapshots[max(snapshots)]
    found = intervene(module, recipe.task, "leace:belief", sites=place, n=N_SWAPPED, kind=replace(SWAPS, lags=LAGS))
    assert isinstance(found, LagReport), "lags were given"
    movement, kl = found.lag_movement, found.forced_kl_bits
    numbers = {
        "movement": movement.value,
        "lower": movement.ends[0],
        "upper": movement.ends[1],
        "whole": movement.ceiling,
    }
    for level in movement.compared:
        name = level.name.split()[0]
        numbers |= {name: level.value} | ({} if level.high is None else {f"{name}_bar": level.bar("higher")})
    numbers |= {"kl_before": kl.compared[0].value, "kl_after": kl.value}
    by_name = {name: np.broadcast_to(np.asarray(own), movement.value.shape) for name, own in numbers.items()}
    for layer, (at, lag) in itertools.product(range(len(movement.value)), enumerate(LAGS)):
        named = {**_named(recipe, max(snapshots)), "layer": layer, "lag": lag}
        judged = {"controls": int(found.controls_found[layer]), "verdict": found.verdict_by_layer[layer]}
        yield {**named, **{name: float(own[layer, at]) for name, own in by_name.items()}, **judged}


MEASURED: dict[str, Callable[[Recipe, dict[int, nn.Module]], Iterator[Row]]] = {
    "factoring": factoring,
    "order": order,
    "forcing": forcing,
}
