"""Packed trainings for shipping: some snapshots with one description, in half precision if that loses nothing.

`formation.json` describes the run; its folder has one safetensors file per snapshot. A snapshot is stored in half
precision if its KL on held-out sequences keeps its first three digits. Weights are loaded as float32.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
from torch import nn

from bayesgeom.core import CheckpointFault, InvalidArgument, OutputFault
from bayesgeom.core.files import atomic_directory, atomic_file, write_arrays
from bayesgeom.core.text import count_text
from bayesgeom.core.torch_state import with_torch_defaults
from bayesgeom.models.checkpoint import Checkpoint, assembled, load_checkpoint, weights_hash
from bayesgeom.models.checkpoint_files import (
    CARD,
    CONFIG,
    CONFIG_HASH,
    OURS,
    WEIGHTS,
    hashed,
    read_description,
    versions,
)
from bayesgeom.tasks.base import derived_seed
from bayesgeom.training.loop import SNAPSHOTS, scored_kl_bits
from bayesgeom.training.packed import FORMATION, SCHEMA, chosen_among, read_formation, read_packed_json

KEEP, HELD_OUT, DIGITS = 12, 512, 3
_HELD_OUT_BRANCH = 3  # of the recipe's seed; 0 to 2 are its training, validation and scoring
Half = Literal["float16", "bfloat16", "float32"]
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@final
@dataclass(frozen=True, kw_only=True)
class Packed:
    """One stored snapshot: its file, its precision, and its KL on held-out sequences before and after conversion."""

    step: int
    file: str
    dtype: str
    weights_hash: str
    kl_bits: float
    kl_bits_stored: float


@with_torch_defaults
def pack(run: str | Path, out: str | Path, *, keep: int = KEEP, dtype: Half = "float16") -> tuple[Packed, ...]:
    """Write some of a run's snapshots, including the first and the last, into a directory.

    Args:
        run: Directory of the run.
        out: Directory to write.
        keep: Number of snapshots, at least 2.
        dtype: Half precision to use where it loses nothing, or "float32".

    Raises:
        InvalidArgument: The run has fewer than two snapshots, or `keep` or `dtype` is invalid.
        OutputFault: The directory, which is replaced, holds something else than a packed training.
    """
    source, target = Path(run), Path(out)
    names = sorted(path.name for path in target.iterdir()) if target.is_dir() else []
    known = (CARD, FORMATION, ".DS_Store")
    if foreign := [name for name in names if name not in known and not name.endswith(".safetensors")]:
        raise OutputFault(
            f"{target} holds files that are not a packed training ({', '.join(foreign[:3])}); name an empty or a new "
            f"directory."
        )
    if keep < 2 or dtype not in _DTYPES:
        raise InvalidArgument(
            f"keep must be at least 2 and dtype one of {', '.join(_DTYPES)}; got {keep} and {dtype!r}."
        )
    paths = snapshot_paths(source)
    if len(paths) < 2:
        raise InvalidArgument(
            f"{source} has {count_text(len(paths), 'snapshot')}; at least 2 are needed to show a training."
        )
    chosen = [paths[index] for index in chosen_among(len(paths), keep)]
    description = read_description(chosen[-1])
    with atomic_directory(target) as temporary:
        packed = tuple(_packed(path, temporary, _DTYPES[dtype]) for path in chosen)
        described = {key: description[key] for key in ("model", "task", "recipe")}
        whole = {"schema": SCHEMA, **described, "snapshots": [asdict(p) for p in packed], "versions": versions()}
        (temporary / FORMATION).write_text(json.dumps(hashed(whole), indent=1) + "\n", encoding="utf-8")
        (temporary / CARD).write_text(_card(description, packed), encoding="utf-8")
    return packed


def snapshot_paths(run: Path) -> list[Path]:
    """Return a run's snapshots in order of step.

    Snapshots are written atomically, under a temporary name that starts with a dot. Such remains are skipped.

    Raises:
        InvalidArgument: There are no snapshots.
        CheckpointFault: A snapshot lacks a file.
    """
    named = sorted((run / SNAPSHOTS).iterdir()) if (run / SNAPSHOTS).is_dir() else []
    folders = [path for path in named if path.is_dir() and not path.name.startswith(".")]
    for path in folders:
        if missing := [name for name in (CONFIG, WEIGHTS) if not (path / name).is_file()]:
            raise CheckpointFault(
                f"{path} lacks {' and '.join(missing)}: files were removed after it was written. Restore it, or "
                f"delete the directory to continue without this snapshot."
            )
    if not folders:
        raise InvalidArgument(
            f"{run} contains no {SNAPSHOTS}: pass a directory that bayesgeom train wrote (with --keep above 0), a "
            f"packed training, or checkpoint directories."
        )
    return folders


def load_packed(file: Path, *, device: str | torch.device = "cpu") -> Checkpoint:
    """Load one snapshot of a packed training, in float32.

    Raises:
        CheckpointFault: It cannot be used.
    """
    description = read_formation(file.parent)
    snapshot = next((entry for entry in description["snapshots"] if entry["file"] == file.name), None)
    if snapshot is None:
        listed = ", ".join(entry["file"] for entry in description["snapshots"][:8])
        raise CheckpointFault(f"{file.parent / FORMATION} does not list the snapshot {file.name}. It lists: {listed}.")
    return assembled(file.stem, {**description, **snapshot}, file, device=device)


def seal(folder: str | Path) -> str:
    """Update the stored hash of the description of a checkpoint or a packed training.

    Weights have hashes of their own, which are checked when they are loaded.

    Args:
        folder: Directory of the checkpoint or of the packed training.

    Returns:
        The hash.

    Raises:
        CheckpointFault: The description cannot be read.
    """
    path = Path(folder)
    file = path / (FORMATION if (path / FORMATION).is_file() else CONFIG)
    whole = read_packed_json(file)
    description = whole.get(OURS, whole)
    description["schema"] = SCHEMA
    sealed = hashed(whole)
    text = json.dumps(sealed, indent=1 if file.name == FORMATION else 2) + "\n"
    with atomic_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return str(sealed.get(OURS, sealed)[CONFIG_HASH])


def is_unchanged(before: float, after: float) -> bool:
    """Return whether two numbers agree to `DIGITS` significant digits of the first."""
    if before == after:
        return True
    return abs(before - after) <= 0.5 * 10.0 ** (math.floor(math.log10(abs(before))) - DIGITS + 1) if before else False


def _packed(path: Path, folder: Path, dtype: torch.dtype) -> Packed:
    """Write one snapshot in `dtype` if that keeps its score, else in float32."""
    checkpoint = load_checkpoint(path)
    module, seed = checkpoint.module, derived_seed(int(checkpoint.recipe["seed"]), _HELD_OUT_BRANCH)
    whole = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    small = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in whole.items()}
    before = _kl(module, checkpoint, seed)
    module.load_state_dict(small)
    after = _kl(module, checkpoint, seed)
    is_kept = is_unchanged(before, after)
    stored, kl, name = (small, after, dtype) if is_kept else (whole, before, torch.float32)
    file = f"{path.name}.safetensors"
    write_arrays({key: tensor.contiguous() for key, tensor in stored.items()}, folder / file, framework="pt")
    return Packed(
        step=checkpoint.step,
        file=file,
        dtype=str(name).removeprefix("torch."),
        weights_hash=weights_hash(stored),
        kl_bits=before,
        kl_bits_stored=kl,
    )


@torch.no_grad()
def _kl(module: nn.Module, checkpoint: Checkpoint, seed: int) -> float:
    """Mean KL over held-out sequences."""
    blocks = checkpoint.task.stream(HELD_OUT, seed=seed)
    return float(torch.cat([scored_kl_bits(module, trials) for trials in blocks]).mean())


def _card(description: Mapping[str, Any], packed: Sequence[Packed]) -> str:
    rows = "\n".join(f"| {p.step:,} | {p.dtype} | {p.kl_bits:.4g} | {p.kl_bits_stored:.4g} |" for p in packed)
    return f"""# {description["recipe"]["name"]}, {count_text(len(packed), "snapshot")} of its training

`bayesgeom dynamics` shows how its geometry formed. Weights alone are stored, in half precision where the KL on
{HELD_OUT} held-out sequences keeps its first {DIGITS} digits; they are read as float32.

| step | stored as | KL (bits) | KL as stored (bits) |
|---|---|---|---|
{rows}
"""
