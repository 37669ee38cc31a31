"""What a probe is: a pure function from a finished `Run` to a typed report, with controls that it must pass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from bayesgeom.activations import ModelSpec, Run
from bayesgeom.behaviour import predicted_behaviour
from bayesgeom.report import Report
from bayesgeom.sites import Site
from bayesgeom.trials import UNASKED, Trials

R = TypeVar("R", bound=Report)


@final
@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a probe reads: `sites` it cannot do without, and `optional` ones that it uses where the model has them.

    `posterior`: the exact posterior must be known. `groups`: sequences must be of several kinds.
    """

    sites: tuple[Site, ...] = ()
    optional: tuple[Site, ...] = ()
    posterior: bool = False
    groups: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Control(Generic[R]):
    """A planted run with a known answer. `initialised` are planted runs that stand for the untrained architecture."""

    label: str
    run: Run
    holds: Callable[[R], bool]
    initialised: tuple[Run, ...] = ()


class Probe(ABC, Generic[R]):
    """One diagnostic. Never touches a model: everything it reads was declared in `needs` and is in the run."""

    name: ClassVar[str]
    needs: ClassVar[Needs]

    @abstractmethod
    def measure(self, run: Run, initialised: Sequence[R] = ()) -> R:
        """The report on this run; `initialised` holds this probe's reports on fresh copies of the architecture.

        The null at initialisation comes from those, so that only one run is ever in memory.
        """

    @abstractmethod
    def controls(self) -> Iterator[Control[R]]:
        """Planted runs holding only the declared sites, with what the report must say of each."""


def mean_over_copies(
    found: Sequence[Float[np.ndarray, "*axes"]], like: Float[np.ndarray, "*axes"]
) -> Float[np.ndarray, "*axes"]:
    """Mean of one array over the reports on fresh copies; NaN in the shape of `like` where there are none."""
    return np.asarray(np.mean(found, axis=0)) if found else np.full_like(like, np.nan)


def planted_run(
    trials: Trials,
    recorded: Mapping[Site, Shaped[Tensor, "layer *axes"]],
    *,
    model: Float64[Tensor, "batch query_pos answer"] | None = None,
    n_heads: int = 1,
    seed: int = 0,
) -> Run:
    """A run as if a model had left these activations; its predictions are `model`, or exact where none is given."""
    exact = trials.at_scored(trials.predictive)
    predicted = exact if model is None else model
    widths = {
        axis: size for site, values in recorded.items() for axis, size in zip(site.axes, values.shape[1:], strict=True)
    }
    n_layers = next((len(values) for values in recorded.values()), 1)
    spec = ModelSpec(
        name="planted", architecture="planted", n_layers=n_layers, n_heads=widths.get("head", n_heads),
        n_kv_heads=widths.get("kv_head", n_heads), d_model=widths.get("d_model", 1), d_head=widths.get("d_head", 1),
        d_mlp=1, d_vocab=int(trials.tokens.max()) + 1, n_ctx=None, score_scale=1.0, n_parameters=0, dtype="float32",
        device="cpu", weights_hash="planted",
    )  # fmt: skip
    return Run(
        spec=spec, behaviour=predicted_behaviour(trials, predicted), exact_behaviour=predicted_behaviour(trials, exact),
        null_behaviours={}, trials=trials, log_answers=predicted.log(), recorded=recorded, seed=seed,
    )  # fmt: skip


def planted_trials(
    exact: Float[np.ndarray, "batch query_pos answer"],
    tokens: Shaped[np.ndarray, "batch pos"],
    *,
    relations: Mapping[str, Shaped[np.ndarray, "batch query_pos key_pos"]] | None = None,
    token_sets: Mapping[str, Sequence[int]] | None = None,
) -> Trials:
    """Trials with this exact posterior at the last positions of these tokens; ids of answers follow the tokens'."""
    ids = torch.as_tensor(tokens, dtype=torch.int64)
    posterior = torch.as_tensor(exact, dtype=torch.float64)
    n_scored, first_answer = posterior.shape[1], int(ids.max()) + 1
    scored = torch.zeros_like(ids, dtype=torch.bool)
    scored[:, -n_scored:] = True
    predictive = torch.full((*ids.shape, posterior.shape[2]), torch.nan, dtype=torch.float64)
    predictive[:, -n_scored:] = posterior
    realised = torch.full_like(ids, UNASKED)
    realised[:, -n_scored:] = posterior.argmax(-1) + first_answer
    return Trials(
        tokens=ids,
        scored=scored,
        answers=torch.arange(posterior.shape[2]) + first_answer,
        predictive=predictive,
        belief=predictive,
        realised=realised,
        token_sets={name: torch.as_tensor(members, dtype=torch.int64) for name, members in (token_sets or {}).items()},
        relations={name: torch.as_tensor(related, dtype=torch.bool) for name, related in (relations or {}).items()},
    )
