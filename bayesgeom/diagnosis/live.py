"""The live page: a small transformer and the exact posterior of its task run in the browser, while the reader edits.

The page holds the weights in float16 and the task's exact filter as matrices; `report/assets/live.js` computes.
"""

import base64
import gzip
import json
from importlib.resources import files
from typing import Any

import torch
from jinja2 import Environment, PackageLoader
from safetensors.torch import save
from torch import Tensor

from bayesgeom.core import InvalidArgument, Trials
from bayesgeom.models.base import Model
from bayesgeom.models.native.positions import sinusoids
from bayesgeom.models.native.transformer import MultiHeadAttention, Transformer
from bayesgeom.models.resolve import TaskLike, task_of
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.markov import MarkovProcess

N_SEQUENCES, N_TOKENS = 8, 24  # that are stored, and that can be edited in each
MOST_PARAMETERS = 4_000_000  # 8 MB in the page
_CONDITION = 100.0  # up to which a prediction of the network is drawn as the belief that implies it


def live_html(model: Model, task: TaskLike | None = None, *, seed: int = 0, is_part: bool = False) -> str:
    """Return a page on which the reader edits the evidence, as one self-contained document that opens offline.

    Args:
        model: A transformer of the package with at most 4 million parameters.
        task: A process, `HMM` or `Bijection`. None: the task on which the model was trained.
        seed: Seed of the sequences to begin with.
        is_part: Whether to return only the part for the body of another page.

    Raises:
        InvalidArgument: Model or task is of another kind.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom.diagnosis.live import live_html
        >>> live_html(bayesgeom.load("mess3-small"))[:15]
        '<!doctype html>'
    """
    chosen, module = task_of(model, task), model.module
    is_small = isinstance(module, Transformer) and model.spec.n_parameters <= MOST_PARAMETERS
    if not (isinstance(module, Transformer) and is_small and isinstance(chosen, MarkovProcess | HMM | Bijection)):
        raise InvalidArgument(
            f"a live page takes a transformer of this package with at most {MOST_PARAMETERS:,} parameters, on a "
            f"process (mess3, sticky-markov, rrxor, product, …), hmm or bijection; got {model.spec.name} on "
            f"{chosen.name}."
        )
    trials = chosen.sample(N_SEQUENCES, seed=seed, device=model.spec.device)
    model.run([trials])  # checks ids and lengths
    about = _of_task(chosen, trials) | {"name": model.spec.name, "parameters": model.spec.n_parameters}
    weights = _weights(module, len(about["sequences"][0]))
    about["network"] = {
        "layers": module.config.n_layers,
        "heads": module.config.n_heads,
        "width": module.config.d_model,
        "mlp": module.config.d_mlp,
        "rotary": module.config.positions == "rotary",
    }
    data = gzip.compress(save(weights, {"about": json.dumps(about)}), compresslevel=9, mtime=0)
    assets = files("bayesgeom.report").joinpath("assets")
    styles, script = (assets.joinpath(name).read_text(encoding="utf-8") for name in ("live.css", "live.js"))
    environment = Environment(loader=PackageLoader("bayesgeom.report", "assets"), autoescape=True)
    return environment.get_template("live.html.jinja").render(
        name="" if is_part else model.spec.name,
        sentence=chosen.sentence.format(task=chosen),
        css=styles,
        js=script,
        data=base64.b64encode(data).decode("ascii"),
    )


def _weights(module: Transformer, n_pos: int) -> dict[str, Tensor]:
    """Return the weights in float16; positions and biases of the scores as tables of `n_pos` positions or distances."""
    embedding = module.embed.weight
    weights = {name: values for name, values in module.state_dict().items() if ".prior." not in name}
    if module.config.positions == "sinusoidal":
        weights["pos_embed.weight"] = sinusoids(n_pos, module.config.d_model, embedding)
    with torch.no_grad():
        layers = [part for part in module.modules() if isinstance(part, MultiHeadAttention)]
        biases = [bias for layer in layers if (bias := layer.score_bias(n_pos, embedding)) is not None]
    if biases:
        weights["bias"] = torch.stack(biases)[:, :, -1].flip(-1)
    return {name: values.detach().half().cpu().contiguous() for name, values in weights.items()}


def _of_task(task: MarkovProcess | HMM | Bijection, trials: Trials) -> dict[str, Any]:
    """Return the sequences, the tokens to edit, and the filter, for JSON."""
    every = trials.scored_positions()[0].tolist()
    places = list(range(every[-1] + 1) if isinstance(task, Bijection) else every)[:N_TOKENS]
    scored = [place for place in every if place in places]
    about = {
        "task": task.name if isinstance(task, HMM | Bijection) else "process",
        "labels": list(task.token_labels()),
        "answers": trials.answers.tolist(),
        "sequences": trials.tokens[:, : scored[-1] + 1].tolist(),
        "places": [place for place in places if place <= scored[-1]],
        "scored": scored,
    }
    if isinstance(task, Bijection):
        return about | {"values": task.n_values, "repeats": task.repeats}
    if isinstance(task, HMM):
        first_symbol, chains = int(trials.token_sets["inputs"][0]), _chains(task, trials)
        shows = torch.eye(task.n_states, dtype=torch.float64)
    else:
        labeled, first_symbol = task.labeled(), 0
        chains = [{"first": (task.start() @ labeled).tolist(), "labeled": labeled.tolist()}]
        shows = labeled.sum(dim=2).mT
    is_triangle = len(shows) == 3 == shows.shape[1] and float(torch.linalg.cond(shows)) <= _CONDITION
    implied = torch.linalg.inv(shows).tolist() if is_triangle else None
    return about | {"symbols": first_symbol, "filter": chains, "shows": shows.tolist(), "implied": implied}


def _chains(task: HMM, trials: Trials) -> list[dict[str, list[Any]]]:
    """Return the filter of each sequence as matrices, which are its values at every state.

    `first[x]` is the belief after symbol x alone; `labeled[x]` takes a belief to that after symbol x. Neither is
    normalized.
    """
    n, chains = len(trials), [dict[str, list[Any]](first=[], labeled=[]) for _ in range(len(trials))]
    states = torch.eye(task.n_states, dtype=torch.float64, device=trials.tokens.device)
    for symbol in trials.token_sets["inputs"].tolist():
        exact = task.filter_of(trials.tokens.masked_fill(trials.scored, symbol))
        first = exact.weighed(exact.priors["initial"].expand(n, -1)[:, None], 0)[:, 0]
        labeled = torch.stack([exact.moved(state.expand(n, 1, -1), 0)[:, 0] for state in states], dim=1)
        for chain, start, matrix in zip(chains, first.tolist(), labeled.tolist(), strict=True):
            chain["first"].append(start)
            chain["labeled"].append(matrix)
    return chains
