"""Everything that bayesgeom raises on purpose: one base and its few named children.

Each message says what was asked, what there is, and what to do.
"""

from collections.abc import Collection, Iterable


class BayesGeomError(Exception):
    """Base of every error that bayesgeom raises on purpose; the command line prints it as one line.

    Example:
        >>> import bayesgeom
        >>> try:
        ...     bayesgeom.load("no-such-checkpoint")
        ... except bayesgeom.BayesGeomError as error:
        ...     print(type(error).__name__)
        UnknownName
    """


class InvalidArgument(BayesGeomError, ValueError):
    """A value outside what a function takes: n ≤ 0, odd `d_head` with rotary positions, …"""


class UnknownName(BayesGeomError, KeyError):
    """A task, probe, checkpoint, recipe or architecture that does not exist; the message lists those that do."""

    __str__ = Exception.__str__  # KeyError's own would put the message in quotes


class CheckpointFault(BayesGeomError):
    """A checkpoint that cannot be trusted: truncated, wrong tensors or shapes, NaN weights, newer schema."""


class TaskMismatch(BayesGeomError, ValueError):
    """Tokens that do not fit the model: another vocabulary, too long a context, ids out of range."""


class MissingSite(BayesGeomError, LookupError):
    """A site that the model does not expose, or whose attach-time identity failed."""


class NoCopy(InvalidArgument):
    """A model whose architecture cannot be built anew here, so that no untrained copy can be compared with."""


class HookFault(BayesGeomError, RuntimeError):
    """A hook that did not fire exactly once per pass, fired with another shape, or an edit without effect."""


class NonFinite(BayesGeomError, ArithmeticError):
    """NaN or infinite numbers where the computation cannot go on: logits, losses."""


class OutputFault(BayesGeomError, OSError):
    """A place that cannot be written to or read back as a report."""


class ExecutorFault(BayesGeomError, RuntimeError):
    """An engine that cannot be reached, a job whose worker died, a worker with other versions."""


def unknown_name(kind: str, asked: str, known: Iterable[str]) -> UnknownName:
    """The one wording for a name that does not exist."""
    listed = ", ".join(sorted(known)) or "(none)"
    return UnknownName(f"there is no {kind} named {asked!r}. There are: {listed}.")


def check_known(of: str, given: Iterable[str], known: Collection[str]) -> None:
    """**Raises** `InvalidArgument` for a parameter that `of` has not, with those that it has."""
    for name in given:
        if name not in known:
            listed = ", ".join(sorted(known)) or "(none)"
            raise InvalidArgument(f"{of} has no parameter {name!r}. It has: {listed}.")
