"""Parse the command line and run a command.

Exit status: 0 for success, 1 for a failed selftest or reproduction, 2 for invalid arguments or input.
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
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import final

import tyro

from bayesgeom.commands.base import Command, flush, note, tell, writing_output
from bayesgeom.commands.optional import registry
from bayesgeom.core.columns import WIDTH
from bayesgeom.core.errors import BayesGeomError, InvalidArgument, unknown_name
from bayesgeom.core.plugins import discover
from bayesgeom.core.progress import elapsed_shown
from bayesgeom.core.text import is_encodable, shown
from bayesgeom.models.allocator import is_requested, keep_freed_memory

_PLAIN = "bayesgeom.plain"
_HELP = """usage: bayesgeom COMMAND [options]

Measure whether a sequence model does Bayesian inference, and where in the network.

Example:
  bayesgeom diagnose bijection-v20 --out runs/first   # then open runs/first/report.html

Commands, in the order of use:
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
_ALIKE = {"─": "-", "–": "-", "—": "-", "−": "-", "→": ">", "‖": "|", "·": ".", "…": ".", "×": "x", "≤": "<", "≥": ">"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. An invalid input prints one line to standard error."""
    if is_requested():
        keep_freed_memory()
    try:
        with _any_encoding(), _flushed():
            if (sys.argv[1:] if arguments is None else list(arguments)) == ["--version"]:
                tell(f"bayesgeom {version('bayesgeom')}")
                return 0
            with writing_output():  # long help is written before it is flushed
                command = parsed(arguments)
            with _reporting(command.name, sys.argv[2:] if arguments is None else None):
                return int(command())
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
def _reporting(name: str, given: Sequence[str] | None) -> Iterator[None]:
    """One line on standard error before a command of the shell and one after it; elapsed time on a terminal.

    Heavy libraries load within the command, so the first line appears at once. An error is a last line, too. Where
    `given` is None, the command was called from Python, and nothing is reported.
    """
    if given is None:
        yield
        return
    begun, what = time.monotonic(), f"bayesgeom {name}"
    note(textwrap.shorten(f"{what}: {' '.join(given)}".rstrip(": "), 100, placeholder=" …") + " …")
    for logger in _FOREIGN:
        logging.getLogger(logger).setLevel(logging.ERROR)
    with elapsed_shown(what):
        yield
    note(f"{what}: finished in {time.monotonic() - begun:.3g} s")


def _notes(error: BaseException) -> list[str]:
    return list(vars(error).get("__notes__", []))


@contextlib.contextmanager
def _any_encoding() -> Iterator[None]:
    """Let standard output replace characters that it cannot encode, instead of ending the command."""
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
    """Return one plain character for each character that cannot be encoded, so that tables stay aligned."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    return "".join(_ALIKE.get(character, "?") for character in part), error.end


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


def parsed(arguments: Sequence[str] | None) -> Command:
    """Return the requested command.

    Raises:
        InvalidArgument: tyro rejects the arguments; its message is reduced to one line.
    """
    given = sys.argv[1:] if arguments is None else arguments
    for place, text in enumerate(given, 1):
        if not is_encodable(text):
            raise InvalidArgument(f"argument {place} holds characters that no command line can: {shown(text)}.")
    # mypy forbids an abstract class as a value, but discovery needs one.
    found = discover("bayesgeom.commands", Command)  # type: ignore[type-abstract]
    commands = dict(sorted(found.items(), key=lambda entry: (entry[1].order, entry[0])))
    name = given[0] if given else ""
    if name in ("--help", "-h"):
        tell(_HELP.format(commands="\n".join(_listed(commands))))
        raise SystemExit(0)
    if name not in commands:
        problem = unknown_name("command", name, commands) if name else f"name a command: {', '.join(commands)}."
        raise InvalidArgument(f"{problem} See bayesgeom --help.")
    written, printed = io.StringIO(), _Help()
    try:
        # tyro 1.0.0 ignores an argument `registry`
        with contextlib.redirect_stderr(written), contextlib.redirect_stdout(printed), _columns(), registry():
            # The options of the other commands are not read: that takes longer than all else.
            command: Command = tyro.cli(commands[name], prog=f"bayesgeom {name}", args=given[1:])
    except SystemExit as stopped:
        if stopped.code in (None, 0):  # after --help
            _tell_help(printed.getvalue())
            _tell_choices(commands[name])
            raise
        hint = f"See bayesgeom {name} --help. {commands[name].hint}".strip()
        raise InvalidArgument(f"{_one_line(written.getvalue())}. {hint}") from None
    return command


def _listed(commands: Mapping[str, type[Command]]) -> Iterator[str]:
    """One line per command: its name and the first sentence of its help."""
    width = max(map(len, commands))
    for name, command in commands.items():
        first = " ".join((inspect.getdoc(command) or "").partition("\n\n")[0].split())
        yield f"  {name:{width}}  {textwrap.shorten(first, WIDTH - width - 4, placeholder=' …')}"


@final
class _Help(io.StringIO):
    """Text for standard output that can still be wrapped: tyro wraps options, but no descriptions of commands."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has an attribute; in Python it cannot be set
        """That of standard output, by which tyro chooses the lines of its boxes."""
        return "" if sys.__stdout__ is None else sys.__stdout__.encoding

    def isatty(self) -> bool:
        """Whether standard output is a terminal, for which tyro writes colors."""
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


@contextlib.contextmanager
def _columns() -> Iterator[None]:
    """Let tyro print help of at most 100 columns, on wider terminals, too: it reads no other setting."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(min(WIDTH, shutil.get_terminal_size().columns))
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _tell_help(text: str) -> None:
    """Print the help of a command; long lines of its description wrap."""
    for line in text.splitlines():
        print(_filled(line, 0) if len(line) > WIDTH and "\x1b" not in line else line)


def _tell_choices(command: type[Command]) -> None:
    """Print the allowed values of this command's options, plug-ins included, below its help."""
    for title, choices in command.choices().items():
        width = max(map(len, choices), default=0)
        rows = (f"  {name:{width}}  {text}".rstrip() for name, text in choices.items())
        tell(
            f"\n{_filled(title, 2)}",
            *(_filled(row, width + 4) for row in rows),
        )


def _filled(text: str, indent: int) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


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
