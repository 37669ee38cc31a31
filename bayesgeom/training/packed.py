"""Descriptions of packed trainings: `formation.json`, and the named ones. Nothing here loads torch."""

from pathlib import Path
from typing import Any

import numpy as np

from bayesgeom.core import CheckpointFault
from bayesgeom.core.files import is_temporary, read_json, restore_directories, restore_directory
from bayesgeom.models.checkpoint_files import Named, check_hashed, check_numbered, checkpoint_folder

FORMATION, SCHEMA = "formation.json", 2


def formations() -> Named:
    """Return the directories of all packed trainings among the named checkpoints, by name, as `checkpoints` does."""
    folder = checkpoint_folder()
    restore_directories(folder)
    folders = sorted(file.parent for file in folder.glob(f"*/{FORMATION}"))
    return Named({path.name: path for path in folders if not is_temporary(path.name)})


def chosen_among(n: int, keep: int) -> list[int]:
    """Return the indices of at most `keep` of `n` snapshots: the first, the last, and evenly spaced ones."""
    return sorted({int(index) for index in np.linspace(0, n - 1, min(n, keep)).round()})


def read_formation(folder: Path) -> dict[str, Any]:
    """Return the description that `pack` wrote.

    A directory that a killed process had moved away is restored first.

    Raises:
        CheckpointFault: The description is unreadable or too new.
    """
    restore_directory(folder)
    file = folder / FORMATION
    stored = read_packed_json(file)
    schema = stored.get("schema") if isinstance(stored, dict) else None
    if type(schema) is not int or schema > SCHEMA:
        raise CheckpointFault(f"{file} has schema {schema}; this bayesgeom reads up to {SCHEMA}. Upgrade bayesgeom.")
    missing = {"model", "task", "recipe", "snapshots"} - stored.keys()
    if missing:
        raise CheckpointFault(f"{file} lacks {', '.join(sorted(missing))}. Pack the training again.")
    for entry in stored["snapshots"]:
        check_numbered(entry, file)
        name = entry["file"]
        if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
            raise CheckpointFault(
                f"{file} names {name!r:.80} as the file of a snapshot, not a *.safetensors file beside it. Pack the "
                f"training again."
            )
    check_hashed(stored, file)
    return dict(stored)


def read_packed_json(file: Path) -> Any:
    """Return the content of a description.

    Raises:
        CheckpointFault: It is missing or no JSON.
    """
    try:
        return read_json(file)
    except FileNotFoundError as error:
        raise CheckpointFault(f"{file.parent} holds no {file.name}. Name a checkpoint or a packed training.") from error
