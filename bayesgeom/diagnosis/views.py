"""Views of a run: what one probe reads of it, and what a capture holds of it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from bayesgeom.core.errors import InvalidArgument, TaskMismatch
from bayesgeom.core.files import apart
from bayesgeom.core.run import Run, Site
from bayesgeom.models.captured.model import CapturedModel
from bayesgeom.tasks.base import WindTunnel


def within(run: Run, layers: Sequence[int], sites: Sequence[Site]) -> Run:
    """Return the run of a model that has only these layers, with the sites and statistics that exist in all of them."""
    every = tuple(range(run.spec.n_layers))

    def cut(stored: Tensor, own: tuple[int, ...]) -> Tensor:
        return stored if tuple(layers) == own else stored[[own.index(layer) for layer in layers]]

    recorded, reduced = dict[Site, Tensor](), dict[str, Tensor]()
    for site in sites:
        if site in run.recorded and set(layers) <= set(own := run.layers.get(site, every)):
            recorded[site] = cut(run.recorded[site], own)
    for name, stored in run.reduced.items():
        if set(layers) <= set(own := run.reduced_layers.get(name, every)):
            reduced[name] = cut(stored, own)
    spec = replace(run.spec, n_layers=len(layers))
    return replace(run, spec=spec, recorded=recorded, layers={}, reduced=reduced, reduced_layers={}, streamed=None)


def captured_provenance(model: CapturedModel) -> dict[str, Any]:
    """Return what provenance takes from the capture: the model on its device, foreign hooks, and the versions then."""
    stored = model.manifest
    hooks = {"foreign_hooks": list(stored.foreign_hooks)} if stored.foreign_hooks else {}
    capture = {"seed": stored.seed, "n": stored.n, "dtype": stored.dtype, "versions": dict(stored.versions)}
    return {"model": stored.model_spec.to_dict(), **hooks, "capture": capture}


def captured_arguments(model: CapturedModel, task: WindTunnel, *, n: int, seed: int) -> tuple[int, int]:
    """Return number and seed of the sequences to read from a capture: at most all of them, and its own seed.

    Raises:
        TaskMismatch: It was captured on another task.
        InvalidArgument: Another seed than that of the capture was requested.
    """
    stored = model.manifest
    if difference := apart(json.loads(json.dumps(stored.task)), json.loads(json.dumps(task.config()))):
        raise TaskMismatch(
            f"{model.folder} was captured on {model.task}, and cannot be measured on another task ({difference}). "
            f"Capture that task, or omit the task."
        )
    if seed not in (0, stored.seed):
        raise InvalidArgument(
            f"{model.folder} was captured with seed {stored.seed}, got {seed}. Omit the seed, or capture again."
        )
    return min(n, stored.n), stored.seed
