"""The folder of named checkpoints, and what is in it. Nothing here loads torch."""

import os
from pathlib import Path

from bayesgeom.core.errors import CheckpointFault
from bayesgeom.core.files import is_temporary, put_all_back
from bayesgeom.models.description import CONFIG

FOLDER_VARIABLE = "BAYESGEOM_CHECKPOINTS"
_PACKAGE = Path(__file__).resolve().parents[1]


def checkpoint_folder() -> Path:
    """Return the folder of named checkpoints: $BAYESGEOM_CHECKPOINTS, or the folder of the shipped ones.

    In a source checkout, which has a pyproject.toml, the shipped checkpoints are next to the package. In a package
    installed from a wheel they are inside it.
    """
    if FOLDER_VARIABLE in os.environ:
        return Path(os.environ[FOLDER_VARIABLE])
    is_checkout = (_PACKAGE.parent / "pyproject.toml").is_file()
    return _PACKAGE.parent / "checkpoints" if is_checkout else _PACKAGE / "_checkpoints"


def checkpoints() -> dict[str, Path]:
    """Return the directories of all named checkpoints.

    Unreadable directories are included; loading one reports the error. A directory that a killed process had moved away
    is restored first.

    Returns:
        Directory of each checkpoint, by name.

    Raises:
        CheckpointFault: The folder itself cannot be listed.

    Example:
        >>> import bayesgeom
        >>> "bijection-v20" in bayesgeom.checkpoints()
        True
    """
    folder = checkpoint_folder()
    put_all_back(folder)
    try:
        found = sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise CheckpointFault(
            f"the checkpoint folder {folder} cannot be listed: {error.strerror or error}. Make it readable, or set "
            f"${FOLDER_VARIABLE} to another one."
        ) from error
    return {path.name: path for path in found if not is_temporary(path.name) and _holds_config(path)}


def _holds_config(path: Path) -> bool:
    """Whether there is a config, of any kind; true if that cannot be determined."""
    try:
        if not path.is_dir():
            return False
        (path / CONFIG).lstat()
    except FileNotFoundError:
        return False
    except OSError:  # no permission to look
        return True
    return True
