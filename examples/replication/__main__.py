"""`python -m examples.replication COMMAND …`."""

import sys
from typing import Any

import tyro

from bayesgeom.core.errors import BayesGeomError
from examples.replication.comparison import commands

_COMMANDS: dict[str, Any] = {
    "compare": commands.compare,
    "replicate": commands.replicate,
    "train": commands.train,
    "length": commands.length,
}

if __name__ == "__main__":
    try:
        tyro.extras.subcommand_cli_from_dict(_COMMANDS, prog="python -m examples.replication")
    except BayesGeomError as error:
        sys.exit(f"error: {error}")
