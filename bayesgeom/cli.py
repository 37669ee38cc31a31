"""Parse the command line and run a command.

Exit status: 0 for success, 1 for a failed selftest, 2 for invalid arguments or input.
"""

import codecs
import contextlib
import inspect
import io
import logging
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import entry_points, version
from pathlib import Path
from types import FunctionType
from typing import Any

import tyro

from bayesgeom import commands
from bayesgeom.checks.text import is_encodable, shown
from bayesgeom.commands import Out, described, flush, note, tell, writing_output
from bayesgeom.core.columns import WIDTH
from bayesgeom.core.errors import BayesGeomError, InvalidArgument, unknown_name
from bayesgeom.core.plugins import values
from bayesgeom.core.progress import elapsed_shown
from bayesgeom.models.allocator import is_requested, keep_freed_memory

GROUPS = {
    "Measure one model": "diagnose ablate intervene length relabel sweep gradients capture",
    "Compare models and snapshots": "compare dynamics",
    "Train and exchange models": "train checkpoints pack export",
    "Check the installation": "selftest",
}
COMMANDS: dict[str, Callable[..., Any]] = {
    name: vars(commands)[name] for group in GROUPS.values() for name in group.split()
}
# The groups of entry points by which other packages extend a command.
_OPEN = {"diagnose": "probes tasks", "ablate": "ablations", "intervene": "subspaces", "train": "recipes models"}
_HELP = """usage: bayesgeom COMMAND [options]

Measure whether a sequence model does Bayesian inference, and where in the network.

Example:
  bayesgeom diagnose bijection-v20 --out runs/first   # then open runs/first/report.html
{commands}

bayesgeom COMMAND --help lists the options of a command. bayesgeom --version prints the version."""
# transformers imports torchao where it is installed. torchao then warns that its kernels for CUDA cannot be loaded, and
# torch about how it registers its enumerations. A kernel that is missing when it is called still ends in an error.
_FOREIGN = ("torchao", "torch.utils._pytree")
_REWORDED = {  # messages of Python and tyro, and how to say them
    r"invalid literal for int\(\) with base 10: (.*)": r"expected a whole number, got \1",
    r"could not convert string to float: (.*)": r"expected a number, got \1",
    r"invalid choice ('.*') for argument '(.*)'\. Expected one of \((.*)\)": r"\2 must be one of \3; got \1",
    r"Missing value for argument '(?:source\.)?(.*)'\. Expected .*": r"\1 needs a value",
}
_PLAIN = "bayesgeom.plain"
_ALIKE = {"─": "-", "–": "-", "—": "-", "−": "-", "→": ">", "‖": "|", "·": ".", "…": ".", "×": "x", "≤": "<", "≥": ">"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. An invalid input prints one line to standard error."""
    if is_requested():
        keep_freed_memory()
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with _any_encoding(), _flushed():
            if given == ["--version"]:
                tell(f"bayesgeom {version('bayesgeom')}")
                return 0
            with writing_output():  # long help is written before it is flushed
                command = parsed(given)
            with _reporting(given) if arguments is None else contextlib.nullcontext():
                return command()
    except BayesGeomError as error:
        notes = _notes(error)
        note("; ".join([f"bayesgeom: {error}".rstrip("." if notes else ""), *notes]))
        return 2
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed the pipe
        return 0
    except OSError as error:  # a name that is too long, a directory without permission
        name = "" if error.filename is None else f"{shown(error.filename)} cannot be used: "
        note(f"bayesgeom: {name}{error.strerror or error}.")
        return 2
    except KeyboardInterrupt as stopped:
        note("; ".join(["bayesgeom: interrupted", *_notes(stopped)]))
        return 130
    finally:
        _drop_unwritable()


@contextlib.contextmanager
def _reporting(given: Sequence[str]) -> Iterator[None]:
    """One line on standard error before a command of the shell and one after it; elapsed time on a terminal.

    Heavy libraries load within the command, so the first line appears at once. An error is a last line, too.
    """
    begun, what = time.monotonic(), f"bayesgeom {given[0]}"
    note(textwrap.shorten(f"{what}: {' '.join(given[1:])}".rstrip(": "), 100, placeholder=" …") + " …")
    for logger in _FOREIGN:
        logging.getLogger(logger).setLevel(logging.ERROR)
    with elapsed_shown(what):
        yield
    note(f"{what}: finished in {time.monotonic() - begun:.3g} s")


def _notes(error: BaseException) -> list[str]:
    return list(vars(error).get("__notes__", []))


@contextlib.contextmanager
def _any_encoding() -> Iterator[None]:
    """Let standard output replace characters that it cannot encode by plain ones, so that tables stay aligned."""
    stream = sys.stdout
    # Python chooses "surrogateescape" in the C locale, which handles file names but no other characters.
    if not isinstance(stream, io.TextIOWrapper) or (before := stream.errors) not in ("strict", "surrogateescape"):
        yield
        return
    codecs.register_error(_PLAIN, _plain)
    stream.reconfigure(errors=_PLAIN)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # it flushes; a broken output is reported where it was written
            stream.reconfigure(errors=before)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ALIKE.get(character, "?") for character in error.object[error.start : error.end]), error.end


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Flush standard output before the process ends, when a failure can still be reported. Help raises SystemExit."""
    try:
        yield
    except SystemExit:
        flush()
        raise
    flush()


def _drop_unwritable() -> None:
    """Discard output that cannot be written; otherwise the interpreter would retry and complain at exit."""
    try:
        flush()
    except OSError:
        # Without /dev/null the interpreter complains once more about the fault that was reported.
        with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def parsed(given: Sequence[str]) -> "partial[int]":
    """Return the requested call of `bayesgeom.commands.run`, with the options as its keywords.

    Raises:
        InvalidArgument: tyro rejects the arguments; its message is reduced to one line.
    """
    for place, text in enumerate(given, 1):
        if not is_encodable(text):
            raise InvalidArgument(f"argument {place} holds characters that no command line can: {shown(text)}.")
    name = given[0] if given else ""
    if name in ("--help", "-h"):
        tell(_HELP.format(commands="\n".join(_overview())))
        raise SystemExit(0)
    known = COMMANDS if name in COMMANDS else {**COMMANDS, **_of_other_packages()}
    if name not in known:
        problem = unknown_name("command", name, known) if name else f"name a command: {', '.join(known)}."
        raise InvalidArgument(f"{problem} See bayesgeom --help.")
    if not {"--help", "-h"}.isdisjoint(given):
        tell(*_description(name, known[name]))
    written, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(min(WIDTH, shutil.get_terminal_size().columns))  # tyro reads no other setting
    try:
        with contextlib.redirect_stderr(written):
            return tyro.cli(
                _call_of(known[name]), prog=f"bayesgeom {name}", args=given[1:], config=(tyro.conf.DisallowNone,)
            )
    except SystemExit as stopped:
        if stopped.code in (None, 0):  # after --help
            raise
        raise InvalidArgument(f"{_one_line(written.getvalue())}. See bayesgeom {name} --help.") from None
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)


def _of_other_packages() -> dict[str, Callable[..., Any]]:
    return {**values("bayesgeom.commands", FunctionType, taken=COMMANDS)}


def _overview() -> Iterator[str]:
    """A line for each command, by group."""
    others = _of_other_packages()
    width = max(map(len, [*COMMANDS, *others]))
    for group, names in {**GROUPS, **({"Of other packages": " ".join(others)} if others else {})}.items():
        yield f"\n{group}:"
        for name in names.split():
            first = (inspect.getdoc({**COMMANDS, **others}[name]) or "").partition("\n\n")[0]
            yield f"  {name:{width}}  {textwrap.shorten(first, WIDTH - width - 4, placeholder=' …')}"


def _description(name: str, command: Callable[..., Any]) -> Iterator[str]:
    """The paragraphs of a command's docstring, and the names by which other packages extend it."""
    for paragraph in (inspect.getdoc(command) or "").partition("\n\nArgs:")[0].split("\n\n"):
        yield f"{' '.join(paragraph.split())}\n"
    for group in _OPEN.get(name, "").split():
        if names := sorted(entry_points(group=f"bayesgeom.{group}").names):
            yield f"Of other packages: {group} {', '.join(names)}\n"


def _call_of(command: Callable[..., Any]) -> Callable[..., "partial[int]"]:
    """Return the function that tyro calls with the options: it returns the call of the command.

    A command that returns a report takes `--out`, too.
    """
    parameters = dict(inspect.signature(command).parameters)
    if command.__annotations__["return"] is not int:
        parameters["out"] = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Out)

    def call(**options: Any) -> "partial[int]":
        return partial(commands.run, command, **options)

    call.__doc__ = command.__doc__
    call.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    vars(call)["__signature__"] = inspect.Signature(
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters.values()]
    )
    return described(call)


def _one_line(box: str) -> str:
    """Return the message in tyro's box, without frame, title and quoted help."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    inside = [line.strip("│╰╯ ") for line in plain.splitlines()[1:]]  # the first is the title
    parts = [part.strip(" .") for part in re.split(r"[─-]{5,}", " ".join(filter(None, inside)))]  # horizontal rules
    quoted = ("Argument helptext", "For full helptext", "Perhaps you meant")
    written = [part for part in parts if part and not part.startswith(quoted)]
    near = [o for part in parts if part.startswith(quoted[2:]) for o in re.findall(r"(?<!\S)--[a-z]+", part)]
    for theirs, ours in _REWORDED.items():
        written = [re.sub(theirs, ours, part) for part in written]
    meant = dict.fromkeys(option for option in near if option != "--help")
    return ". ".join([*written, *([f"Perhaps you meant {' or '.join(meant)}"] if meant else [])])


if __name__ == "__main__":
    sys.exit(main())
