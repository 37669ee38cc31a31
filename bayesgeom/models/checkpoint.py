"""Checkpoints: directories of `model.safetensors`, `config.json` and `card.md`, loaded strictly.

Nothing in a checkpoint is executed: weights are safetensors, the rest is JSON and text.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bayesgeom.core import BayesGeomError, CheckpointFault
from bayesgeom.core.files import atomic_directory, check_regular, restore_directory, write_arrays
from bayesgeom.core.text import count_text
from bayesgeom.models.checkpoint_files import (
    CARD,
    CONFIG,
    FINISHED,
    OURS,
    SCHEMA,
    WEIGHTS,
    hashed,
    missing_file,
    read_description,
    versions,
)
from bayesgeom.models.config import ModelConfig, config_from_dict
from bayesgeom.tasks.base import WindTunnel, task_from_config

_MOST_POSITIONS = 10**7  # of a context without weights for each position


@final
@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A loaded checkpoint: the module in evaluation mode, its config, its task, and its recipe."""

    name: str
    module: nn.Module
    config: ModelConfig
    task: WindTunnel
    recipe: Mapping[str, Any]
    step: int
    weights_hash: str


def save_checkpoint(
    path: Path,
    module: nn.Module,
    config: ModelConfig,
    *,
    recipe: Mapping[str, Any],
    step: int,
    card: str,
    entries: Mapping[str, Any] | None = None,
) -> str:
    """Write a checkpoint directory atomically.

    Args:
        path: Directory to write.
        module: The trained module.
        config: Its config.
        recipe: Output of `Recipe.to_dict`. Its task is stored as the task of the checkpoint.
        step: Training step.
        card: Text of `card.md`; `{weights_hash}` is replaced by the hash.
        entries: Further entries of the config: `scores`, which `bayesgeom checkpoints` reads, and `precision` of the
            matrix products in training.

    Returns:
        Hash of the weights.
    """
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    digest = weights_hash(weights)
    description = {
        "schema": SCHEMA,
        "model": config.to_dict(),
        "task": recipe["task"],
        "recipe": dict(recipe),
        "step": step,
        "weights_hash": digest,
        "scores": {},
        "versions": versions(),
        **(entries or {}),
    }
    foreign = config.hf_config()
    # Hugging Face reads the top level and ignores unknown keys.
    whole = hashed({**foreign, OURS: description} if foreign else description)
    with atomic_directory(path) as temporary:
        write_arrays(weights, temporary / WEIGHTS, {"format": "pt"} if foreign else None, framework="pt")
        (temporary / CONFIG).write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        (temporary / CARD).write_text(card.replace("{weights_hash}", digest), encoding="utf-8")
    return digest


def load_checkpoint(path: Path, *, device: str | torch.device = "cpu") -> Checkpoint:
    """Load a checkpoint directory strictly.

    A directory that a killed process had moved away is restored first. The checkpoint is named after its folder, or
    after the run if it is the finished checkpoint of a run.

    Raises:
        CheckpointFault: The checkpoint cannot be used. The message states why.
    """
    restore_directory(path)
    folder = path.absolute()
    name = folder.parent.name if folder.name == FINISHED else folder.name
    return assembled(name, read_description(path), path / WEIGHTS, device=device)


def assembled(
    name: str, description: Mapping[str, Any], file: Path, *, device: str | torch.device = "cpu"
) -> Checkpoint:
    """Return the checkpoint of a description and a file of weights. The module is float32, also for half precision.

    Raises:
        CheckpointFault: The two do not fit each other.
    """
    path = file.parent
    try:
        config = config_from_dict(description["model"])
        task = task_from_config(description["task"])
    except BayesGeomError as error:
        raise CheckpointFault(f"{path / CONFIG}: {error}") from error
    try:
        check_regular(file)
        weights = load_file(file)
    except FileNotFoundError as error:
        raise missing_file(file) from error
    except (SafetensorError, OSError) as error:
        raise CheckpointFault(f"{file} is truncated or not a safetensors file ({error}). Copy it again.") from error
    for entry, tensor in weights.items():
        if n_bad := int((~tensor.isfinite()).sum()):
            raise CheckpointFault(
                f"{file}: {entry} has {count_text(n_bad, 'NaN or infinite weight')}. Use an earlier one."
            )
    digest = weights_hash(weights)
    if digest != description["weights_hash"]:
        raise CheckpointFault(
            f"the weights in {path} have hash {digest}, their config says {description['weights_hash']}: one of the "
            f"two files was replaced or edited. Restore both files."
        )
    return Checkpoint(
        name=name,
        module=_built(config, weights, file).to(device).eval(),
        config=config,
        task=task,
        recipe=description["recipe"],
        step=description["step"],
        weights_hash=digest,
    )


def _built(config: ModelConfig, weights: Mapping[str, Tensor], file: Path) -> nn.Module:
    """Return the module of a config with these weights; raise `CheckpointFault` if the two do not fit each other."""
    n_weights = sum(tensor.numel() for tensor in weights.values())
    for name, size in config.to_dict().items():
        if type(size) is int and size > (max(n_weights, _MOST_POSITIONS) if name == "n_ctx" else n_weights):
            raise CheckpointFault(
                f"{file} has fewer weights than {name} = {size:,} in its {CONFIG}. Restore both files."
            )
    try:
        module = config.build(seed=0)
        module.load_state_dict(weights, strict=True)
    except BayesGeomError:
        raise
    except (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError) as error:
        reason = " ".join(str(error).split())[:400] or type(error).__name__
        raise CheckpointFault(f"{file} does not fit its {CONFIG} ({reason}). Restore both files.") from error
    return module


def weights_hash(weights: Mapping[str, Float[Tensor, "..."]]) -> str:
    """Return the first 16 hex digits of the SHA-256 over names, shapes, dtypes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
