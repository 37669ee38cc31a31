"""The exceptions of bayesgeom: one base class and its subclasses.

Each message states what was requested, what is available, and how to fix it.
"""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from bayesgeom.core.text import on_one_line


class BayesGeomError(Exception):
    """Base class of all bayesgeom errors; the command line prints them as one line.

    Example:
        >>> import bayesgeom
        >>> try:
        ...     bayesgeom.load("no-such-checkpoint")
        ... except bayesgeom.BayesGeomError as error:
        ...     print(type(error).__name__)
        UnknownName
    """

    def __init__(self, message: str = "") -> None:
        """Keep the message on one line: a name in it, of a file or of a damaged report, can hold any character."""
        super().__init__(on_one_line(message))


class InvalidArgument(BayesGeomError, ValueError):
    """An argument with an invalid value, such as n ≤ 0 or an odd `d_head` with rotary positions."""


class UnknownName(BayesGeomError, KeyError):
    """An unknown name of a task, probe, checkpoint, recipe or architecture; the message lists the known names."""

    __str__ = Exception.__str__  # KeyError's own would put the message in quotes


class CheckpointFault(BayesGeomError):
    """An unusable checkpoint: truncated, wrong tensors or shapes, NaN weights, or a newer schema."""


class TaskMismatch(BayesGeomError, ValueError):
    """Tokens that do not fit the model: a different vocabulary, a context that is too long, or ids out of range."""


class MissingSite(BayesGeomError, LookupError):
    """A site that the model does not provide, or whose identity check failed when the model was attached."""


class NoCopy(InvalidArgument):
    """A model whose architecture cannot be instantiated again, so that no untrained baseline is available."""


class HookFault(BayesGeomError, RuntimeError):
    """A hook that did not fire exactly once per pass or saw an unexpected shape, or an edit without effect."""


class NonFinite(BayesGeomError, ArithmeticError):
    """NaN or infinite logits or losses, with which the computation cannot continue."""


class OutputFault(BayesGeomError, OSError):
    """A path that cannot be written, or cannot be read back as a report."""


class ExecutorFault(BayesGeomError, RuntimeError):
    """An engine that cannot be reached, a job whose worker died, a worker with other versions."""


class ServerFault(BayesGeomError, ConnectionError):
    """An inference server that cannot be reached, or replies without the numbers that are measured.

    Attributes:
        status: The HTTP status of the last reply; None without a reply, and for a reply of status 200.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def unknown_name(kind: str, requested: str, known: Collection[str]) -> UnknownName:
    """Return the error for a name that does not exist. It lists the known names and suggests a similar one."""
    return UnknownName(
        f"there is no {kind} named {requested!r}. There are: {_all(known)}.{suggested(requested, known)}"
    )


def check_known(of: str, given: Iterable[str], known: Collection[str]) -> None:
    """Check that every given parameter name is a parameter of `of`.

    Raises:
        InvalidArgument: A name is unknown. The message lists the known names and suggests a similar one.
    """
    for name in given:
        if name not in known:
            raise InvalidArgument(f"{of} has no parameter {name!r}. It has: {_all(known)}.{suggested(name, known)}")


def suggested(requested: str, known: Collection[str]) -> str:
    """Return a sentence with the known name that is most similar to an unknown one, after a space; "" if none is.

    Example:
        >>> suggested("calibraton", ["calibration", "key_overlap"])
        " Perhaps you meant 'calibration'."
    """
    names = {name.lower(): name for name in known}
    return "".join(f" Perhaps you meant {names[own]!r}." for own in get_close_matches(requested.lower(), names, n=1))


def _all(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "(none)"
