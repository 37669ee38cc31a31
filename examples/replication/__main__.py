"""`python -m examples.replication COMMAND …`, in a clone."""

import importlib
import sys
from collections.abc import Sequence

import tyro

from bayesgeom.core.errors import BayesGeomError

COMMANDS = {  # name: "module:function", or a dataclass that is called
    "list": "claims.commands:list_claims",
    "table": "claims.commands:table",
    "reproduce": "claims.commands:reproduce_claims",
    "judge": "claims.commands:judge",
    "record": "claims.commands:record_claims",
    "compare": "comparison.commands:compare",
    "replicate": "comparison.commands:replicate",
    "train": "comparison.commands:train",
    "length": "comparison.commands:length",
    "sweep": "sweeps:sweep",
    "capacity": "sweeps:capacity",
    "rescue": "rescue:rescue",
    "em": "measurements:em",
    "settling": "measurements:settling",
    "audit": "measurements:audit",
    "elimination": "measurements:elimination",
    "pass-thresholds": "measurements:pass_thresholds",
    "write-strength": "measurements:write_strength",
    "value-readings": "measurements:value_readings",
    "worlds": "worlds:worlds",
    "published": "published:published",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status: 0, 1 if something was not reproduced, 2 for a wrong input."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = given[0] if given else "--help"
    if name in ("-h", "--help"):
        print(f"usage: python -m examples.replication COMMAND [options]\n\nCommands: {', '.join(COMMANDS)}")
        return 0
    if name not in COMMANDS:
        print(f"replication: there is no command {name!r}. There are: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[name].partition(":")
    target = getattr(importlib.import_module(f"examples.replication.{module}"), function)
    try:
        result = tyro.cli(target, prog=f"python -m examples.replication {name}", args=given[1:])
        return int((result() if callable(result) else result) or 0)
    except SystemExit as stopped:  # tyro has written its message, or the help
        return int(stopped.code or 0)
    except BayesGeomError as error:
        print(f"replication: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
