"""`capture`: record activations and predictions in files, for `diagnose` and for analyses of one's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Literal, final

import torch

from bayesgeom.core import (
    ALL_SITES,
    LOGIT_LENS,
    N_RECORDED,
    Ask,
    InvalidArgument,
    MissingSite,
    Site,
    Trials,
    check_types,
    checked,
    phase,
    unknown_name,
)
from bayesgeom.diagnosis.plan import all_probes, check_untrained, is_wide
from bayesgeom.models.base import Model, kernels_of, numerics
from bayesgeom.models.captured.model import UNTRAINED, Manifest, rows_per_shard, write
from bayesgeom.models.resolve import ModelLike, TaskLike, model_for, task_of
from bayesgeom.tasks.base import Branch, WindTunnel, at_most, block_size, derived_seed, task_from_config

Dtype = Literal["float32", "float16", "bfloat16"]


@final
@dataclass(frozen=True, kw_only=True)
class Selection:
    """What a capture records.

    Args:
        sites: Names of sites, as in `model.sites`. None: all that a probe reads. Empty: predictions only.
        layers: Layers to record. None: all that have the site.
        dtype: Data type of the recorded activations: float32, float16 or bfloat16.

    Raises:
        InvalidArgument: An argument has the wrong type, or dtype is another one.

    Example:
        >>> Selection(sites=["k", "v"], layers=[0, 2], dtype="bfloat16").dtype
        'bfloat16'
    """

    sites: str | Sequence[str] | None = None
    layers: Sequence[int] | None = None
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        check_types(self)
        _check_sites(self.sites)


@checked("model", "task")
def capture(
    model: ModelLike,
    task: TaskLike | None = None,
    *,
    out: str | PathLike[str],
    sites: str | Sequence[str] | Selection | None = None,
    n: int = 512,
    seed: int = 0,
    n_untrained: int = 0,
) -> Path:
    """Record sites and predictions of a model in safetensors files, one shard at a time.

    A capture that was stopped continues when it is called again with the same arguments, and gives the same files.
    `diagnose(out)` reads it without the model. Memory does not grow with n.

    Args:
        model: Any argument of `as_model`.
        task: A task, its text, or a list of prompts. Default: the model's own task.
        out: Directory to write: new, empty, or an unfinished capture with the same arguments.
        sites: Names of sites, or a `Selection` of sites, layers and data type. Default: all sites that a probe reads.
        n: Number of sequences.
        seed: Seed of the sequences, as that of `diagnose`.
        n_untrained: Number of untrained networks to capture as baselines, on at most 192 sequences each. May change.

    Returns:
        The directory; docs/captures.md describes its files.

    Raises:
        InvalidArgument: n is below 1, the model has no such layers, or no untrained network can be built.
        NonFinite: An activation is larger than the largest number of the data type.
        MissingSite: The model does not provide a site.
        OutputFault: The directory holds something else, or cannot be written.
        CheckpointFault: A finished shard was damaged.

    Example:
        >>> import bayesgeom, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     where = bayesgeom.capture("mess3-small", out=folder, n=8, sites=["resid_post"])
        ...     found = bayesgeom.diagnose(where, probes="belief_readout", n_untrained=0)
        >>> found["belief_readout"].n
        8
    """
    check_untrained(n_untrained)
    selection = sites if isinstance(sites, Selection) else Selection(sites=sites)
    subject, folder = model_for(model, task), Path(out)
    subject.require_asks({Ask.RERUN}, by="capture")
    chosen = task_of(subject, task)
    n = at_most(chosen, n)
    copies = [derived_seed(seed, Branch.UNTRAINED, index) for index in range(n_untrained)]
    manifest = _manifest(subject, chosen, selection, n=n, seed=seed)
    for copy_seed in copies[:1]:
        subject.untrained_copy(copy_seed)  # before anything is written, so that no work is lost
    _write(subject, chosen, replace(manifest, untrained=copies), folder)
    for index, copy_seed in enumerate(copies):
        copy = subject.untrained_copy(copy_seed)
        part = _manifest(copy, chosen, selection, n=min(n, N_RECORDED), seed=seed)
        _write(copy, chosen, part, folder / UNTRAINED.format(index))
    return folder


def _manifest(model: Model, task: WindTunnel, selection: Selection, *, n: int, seed: int) -> Manifest:
    task_from_config(task.config())  # as who reads the capture does, to fail before any work is done
    one, sites = task.sample(1, seed=seed), _sites(model, selection.sites)
    model.check_fits(one)
    if not sites and selection.sites is None:  # an empty list asks for predictions alone
        raise MissingSite(f"{model.spec.name} provides no site to capture; `diagnose` measures its predictions.")
    recorded = {site: _layers(model, site, selection.layers) for site in sites if not site.is_static}
    whole = {site: model.layers_of(site) for site in recorded}
    return Manifest(
        spec=model.spec.to_dict(),
        task=task.config(),
        layers={site.name: layers for site, layers in recorded.items()},
        static={site.name: model.layers_of(site) for site in sites if site.is_static},
        dtype=selection.dtype,
        n=n,
        seed=seed,
        rows=rows_per_shard(model.spec, whole, one, most=block_size(task.n_pos)),
        foreign_hooks=model.foreign_hooks(),
        attention_kernels=kernels_of(model, sites),
        versions={**numerics(), "threads": str(torch.get_num_threads())},
    )


def _sites(model: Model, named: str | Sequence[str] | None) -> list[Site]:
    """Return the named sites, or those that probes read."""
    names = [named] if isinstance(named, str) else named
    if names is None:
        needs = [probe.needs for probe in all_probes().values()]
        reads = dict.fromkeys(site for need in needs for site in (*need.sites, *need.optional))
        return [site for site in reads if model.layers_of(site) and not is_wide(model, site)]
    known = _check_sites(named)
    for name in names:
        if not model.layers_of(known[name]):
            model.require([known[name]], by="this capture")
    return [known[name] for name in dict.fromkeys(names)]


def _check_sites(named: str | Sequence[str] | None) -> dict[str, Site]:
    """Return all sites by name; raise `UnknownName` if one of these is none."""
    known = {site.name: site for site in (*ALL_SITES, LOGIT_LENS)}
    for name in [named] if isinstance(named, str) else named or ():
        if name not in known:
            raise unknown_name("site", name, known)
    return known


def _layers(model: Model, site: Site, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Return the requested layers that have the site."""
    n_layers = model.spec.n_layers
    if wrong := [layer for layer in layers or () if not 0 <= layer < n_layers]:
        raise InvalidArgument(f"layers must be from 0 to {n_layers - 1}, got {wrong[0]}.")
    return tuple(layer for layer in model.layers_of(site) if layers is None or layer in layers)


def _write(model: Model, task: WindTunnel, manifest: Manifest, folder: Path) -> None:
    blocks: Iterator[Trials] = task.stream(
        manifest.n, seed=derived_seed(manifest.seed, Branch.TRIALS), device=model.spec.device
    )
    with phase(f"{model.spec.name}: capture", manifest.n, "sequence") as shown:
        for n in write(model, task, blocks, manifest, folder):
            shown.update(n)
