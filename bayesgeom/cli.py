"""The command line: arguments in, tables out. Exit status 0: done; 1: a selftest failed; 2: bad arguments or input."""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence

import tyro

from bayesgeom.commands.base import Command
from bayesgeom.errors import BayesGeomError, InvalidArgument
from bayesgeom.plugins import discover


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; a user's mistake is one line on standard error."""
    try:
        return int(parsed(arguments)())
    except BayesGeomError as error:
        print(f"bayesgeom: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read the output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as stopped:
        print("; ".join(["bayesgeom: interrupted", *vars(stopped).get("__notes__", [])]), file=sys.stderr)
        return 130


def parsed(arguments: Sequence[str] | None) -> Command:
    """The command that was asked for. **Raises** `InvalidArgument` with what tyro says of arguments, on one line."""
    given = sys.argv[1:] if arguments is None else arguments
    # mypy: an abstract class as a value is what discovery is about.
    commands: dict[str, Callable[..., Command]] = {**discover("bayesgeom.commands", Command)}  # type: ignore[type-abstract]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            command: Command = tyro.extras.subcommand_cli_from_dict(
                commands,
                prog="bayesgeom",
                description="Does a sequence model do Bayesian inference, and where?",
                args=given,
            )
    except SystemExit as stopped:
        if stopped.code in (None, 0):  # --help has been printed
            raise
        asked = " ".join(["bayesgeom", *(name for name in given[:1] if name in commands)])
        raise InvalidArgument(f"{_one_line(said.getvalue())}. See {asked} --help.") from None
    return command


def _one_line(box: str) -> str:
    """What tyro's box says, without its frame, its title and the help that it quotes."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    inside = [line.strip("│╰╯ ") for line in plain.splitlines()[1:]]  # the first is the title
    parts = [part.strip(" .") for part in re.split(r"[─-]{5,}", " ".join(filter(None, inside)))]  # where rules stood
    quoted = ("Argument helptext", "For full helptext", "Perhaps you meant")
    said = [part for part in parts if part and not part.startswith(quoted)]
    near = [o for part in parts if part.startswith(quoted[2:]) for o in re.findall(r"(?<!\S)--[a-z]+", part)]
    meant = dict.fromkeys(option for option in near if option != "--help")
    return ". ".join([*said, *([f"Perhaps you meant {' or '.join(meant)}"] if meant else [])])


if __name__ == "__main__":
    sys.exit(main())
