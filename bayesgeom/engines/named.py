"""Engines by name, as `--on` takes them: local:4, slurm, ray://…, dask://…"""

import contextlib
import importlib
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bayesgeom.core.arguments import checked
from bayesgeom.core.errors import ExecutorFault, InvalidArgument
from bayesgeom.engines.executor import Executor
from bayesgeom.engines.local import LocalExecutor
from bayesgeom.engines.ray import RayExecutor

AUTO = "auto"  # ray://auto: the cluster that runs on this machine
HERE = "local"  # ray://local, dask://local: a cluster of this machine that ends with the command
FORMS = "local:N, slurm, ray, ray://ADDRESS, ray://local, dask://HOST:PORT or dask://local"
ANSWER_S = 60  # seconds in which a Ray cluster of this machine must answer; Ray itself tries a dead one for minutes
_CONNECT = "import ray; ray.init(address='auto', log_to_driver=False)"
_KINDS = ("local", "slurm", "ray", "dask")


@checked()
@contextlib.contextmanager
def engine(on: str, options: str | Path | Mapping[str, Any] | None = None) -> Iterator[Executor]:
    """Connect to an engine for the length of a block, and disconnect after it.

    Args:
        on: `local:N`: N processes of this machine. `slurm`: jobs of SLURM, through submitit. `ray://ADDRESS` and
            `dask://HOST:PORT`: a running cluster; `ray://auto` finds the one of this machine. `ray://local` and
            `dask://local` start a cluster on this machine that ends with the block. `ray` is `ray://auto` if that
            answers, else `ray://local`.
        options: The engine's own options by engine, or the TOML file that holds them: `[slurm]` as
            `submitit.AutoExecutor.update_parameters` takes them, and `folder`, `cluster`; `[ray]` as `ray.init`, and
            `[ray.task]` as `ray.remote`; `[dask]` as `distributed.Client`, or `LocalCluster` for dask://local.

    Yields:
        An executor: pass it as `executor=`.

    Raises:
        InvalidArgument: There is no such engine, it is not installed, or an option is not one of its own.
        ExecutorFault: The cluster cannot be reached within a minute.

    Example:
        >>> with engine("local:1") as executor:
        ...     executor.submit(abs, -3).result()
        3
    """
    kind, address = _parsed(on)
    own = dict(_options(options).get(kind, {}))
    opened = {"local": _local, "slurm": _slurm, "ray": _ray, "dask": _dask}[kind]
    with opened(address, own) as executor:
        yield executor


def _parsed(on: str) -> tuple[str, str]:
    kind, colon, address = on.partition(":")
    has_address = len(address) > 2 and address[:2] == "//"
    is_number = address.isdecimal() and len(address) < 6
    whole = {"local": is_number, "slurm": not colon, "ray": not colon or has_address, "dask": has_address}
    if not whole.get(kind, False):
        raise InvalidArgument(f"there is no engine {on!r}. There are: {FORMS}.")
    return kind, address.removeprefix("//")


def _options(given: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the tables of options by engine.

    Raises:
        InvalidArgument: The file cannot be read, or a table has another name than the engines.
    """
    if given is None:
        return {}
    if isinstance(given, Mapping):
        found = given
    else:
        try:
            found = tomllib.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"the engine's options {given} cannot be read: {error}. Name a TOML file with a table such as [slurm]."
            ) from error
    if unknown := [name for name in found if name not in _KINDS or not isinstance(found[name], Mapping)]:
        raise InvalidArgument(
            f"options of an engine must be in a table of its name, [slurm], [ray] or [dask], got {', '.join(unknown)}."
        )
    return found


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidArgument(f"{extra} needs {name}: pip install 'bayesgeom[{extra}]'.") from error


@contextlib.contextmanager
def _local(address: str, own: dict[str, Any]) -> Iterator[Executor]:
    _refuse(own, "local")
    with LocalExecutor(int(address)) as executor:
        yield executor


@contextlib.contextmanager
def _slurm(_: str, own: dict[str, Any]) -> Iterator[Executor]:
    submitit = _library("submitit", "slurm")
    folder, cluster = own.pop("folder", "runs/slurm"), own.pop("cluster", "slurm")
    with _named("slurm", RuntimeError, ValueError):
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    with _options_of("slurm", NameError, TypeError, ValueError):
        executor.update_parameters(**own)
    if cluster == "slurm" and subprocess.run(["sacct", "-n"], check=False, capture_output=True).returncode:  # noqa: S607  (as submitit does)
        warnings.warn(
            "this SLURM keeps no accounts (sacct fails), from which submitit learns that a job died: it would wait for "
            "such a job. Interrupt the command then, and repeat it.",
            stacklevel=2,
        )
    yield executor


@contextlib.contextmanager
def _ray(address: str, own: dict[str, Any]) -> Iterator[Executor]:
    ray = _library("ray", "ray")
    task = own.pop("task", {})
    if not address:  # --on ray
        address = HERE if _unanswered() else AUTO
    elif address == AUTO and (reason := _unanswered()):
        raise ExecutorFault(
            f"engine ray://auto cannot be reached: {reason}. Use ray://local, or run `ray start --head`."
        )
    where = address if address in (HERE, AUTO) else f"ray://{address}"
    with (
        _named(f"ray://{address}", ConnectionError, RuntimeError, ValueError, ImportError),
        _options_of("ray", TypeError),
    ):
        ray.init(**{"log_to_driver": False, "address": where, **own})
    try:
        yield RayExecutor(**task)
    finally:
        ray.shutdown()


def _unanswered() -> str:
    """Return why no Ray cluster of this machine can be reached, or "".

    Another process asks, which can be stopped: the address of a cluster that died holds `ray.init` for minutes.
    """
    try:
        finished = subprocess.run([sys.executable, "-c", _CONNECT], timeout=ANSWER_S, check=False, capture_output=True)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"no answer within {ANSWER_S} s"
    message = finished.stderr.decode(errors="replace").strip().splitlines()
    return message[-1].rstrip(".") if finished.returncode and message else ""


@contextlib.contextmanager
def _dask(address: str, own: dict[str, Any]) -> Iterator[Executor]:
    distributed = _library("distributed", "dask")
    with contextlib.ExitStack() as stack:
        with _named(f"dask://{address}", OSError, ValueError), _options_of("dask", TypeError):
            if address == HERE:
                cluster = stack.enter_context(distributed.LocalCluster(**{"dashboard_address": None, **own}))
                client = stack.enter_context(distributed.Client(cluster))
            else:
                client = stack.enter_context(distributed.Client(f"tcp://{address}", **{"timeout": "20s", **own}))
        yield client.get_executor()


@contextlib.contextmanager
def _named(engine: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise `ExecutorFault` in place of the exceptions of an engine that cannot be reached."""
    try:
        yield
    except kinds as error:
        message = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ExecutorFault(f"engine {engine} cannot be reached: {message}.") from error


@contextlib.contextmanager
def _options_of(engine: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise `InvalidArgument` in place of the exceptions of an engine that rejects its options."""
    try:
        yield
    except kinds as error:
        raise InvalidArgument(f"options of {engine}: {' '.join(str(error).split()).rstrip('.')}.") from error


def _refuse(own: Mapping[str, Any], engine: str) -> None:
    if own:
        raise InvalidArgument(f"{engine} takes no options; got {', '.join(own)}.")
