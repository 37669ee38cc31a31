"""Jobs: small, idempotent, in order, and refused by name; a job that fails costs itself alone."""

import errno
import fcntl
import json
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch

from bayesgeom import executors
from bayesgeom.core.errors import ExecutorFault, InvalidArgument
from bayesgeom.executors import RESULT, Batch, Job
from bayesgeom.models import base
from tests.executors.stand_ins import AtOnce, Backward, arange, marked
from tests.executors.stand_ins import threads as threads_of_torch


def job(n: int, **more: Any) -> Job:
    return Job(name=f"range {n}", function=arange, arguments={"n": n, **more})


def test_results_come_in_the_order_of_the_jobs_whichever_ends_first(tmp_path: Path) -> None:
    forward = Batch(executor=AtOnce(), folder=tmp_path / "a").results([job(n) for n in (5, 2, 7)])
    backward = Batch(executor=Backward(3), folder=tmp_path / "b").results([job(n) for n in (5, 2, 7)])
    assert [len(values) for values in forward] == [5, 2, 7]
    assert all(np.array_equal(one, other) for one, other in zip(forward, backward, strict=True))


def test_a_job_that_is_done_is_not_done_again_and_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again = AtOnce(), AtOnce()
    Batch(executor=first, folder=tmp_path / "a").results([job(3), job(5)])
    Batch(executor=again, folder=tmp_path / "a").results([job(3), job(7)])
    assert (first.n, again.n) == (2, 1)
    Batch(executor=AtOnce(), folder=tmp_path / "b").results([job(5)])
    one, other = (next(tmp_path.glob(f"{name}/range-5-*/{RESULT}")).read_bytes() for name in "ab")
    assert one == other


def test_two_commands_at_once_do_a_job_once(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    own = Job(name="marked", function=marked, arguments={"mark": str(mark), "seconds": 0.2})
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2) as drivers:
        batches = [Batch(executor=pool, folder=tmp_path / "jobs") for _ in range(2)]
        assert list(drivers.map(lambda batch: batch.results([own]), batches)) == [[1.0], [1.0]]
    assert mark.read_text() == "|"


def test_a_file_system_without_locks_runs_jobs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    assert [len(values) for values in Batch(executor=AtOnce(), folder=tmp_path).results([job(3)])] == [3]


def test_a_failed_job_costs_itself_alone(tmp_path: Path) -> None:
    batch = Batch(executor=AtOnce(), folder=tmp_path)
    with pytest.raises(ExecutorFault, match=r"1 of 3 jobs failed: 'range 2': InvalidArgument: on demand\. The results"):
        batch.results([job(5), job(2, fault="on demand"), job(7)])
    assert len(list(tmp_path.glob(f"*/{RESULT}"))) == 2


def future_of(returned: object = None, error: BaseException | None = None) -> "Future[Any]":
    future: Future[Any] = Future()
    if error is None:
        future.set_result(returned)
    else:
        future.set_exception(error)
    return future


def cancelled() -> "Future[Any]":
    future: Future[Any] = Future()
    future.cancel()
    return future


class QuotaExceeded(Exception):
    """An error that only its engine knows."""


def refused() -> Any:
    raise QuotaExceeded("Traceback\n  no more jobs today")


@pytest.mark.parametrize(
    ("submit", "reason"),
    [
        (cancelled, "CancelledError"),
        (refused, "QuotaExceeded: no more jobs today"),
        (lambda: None, "submit returned None instead of a future"),
        (lambda: "done", "submit returned 'done' instead of a future"),
        (future_of, "its worker wrote no result that this process can read; name a folder that both see"),
        (lambda: future_of(7), "its worker wrote no result that this process can read; name a folder that both see"),
        (lambda: future_of(error=KeyboardInterrupt()), "KeyboardInterrupt"),  # of the worker, not of this process
        (lambda: future_of(error=SystemExit(3)), "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_job_that_its_executor_loses_costs_itself_alone(
    submit: Callable[[], Any], reason: str, place: int, tmp_path: Path
) -> None:
    @final
    class Loses:
        n = 0

        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
            self.n += 1
            return submit() if self.n == place + 1 else AtOnce().submit(fn, *args)

    jobs = [job(5), job(2), job(7)]
    with pytest.raises(ExecutorFault, match=rf"1 of 3 jobs failed: '{jobs[place].name}': {reason}\. .* other 2 are in"):
        Batch(executor=Loses(), folder=tmp_path).results(jobs)
    assert len(list(tmp_path.glob(f"*/{RESULT}"))) == 2
    following = AtOnce()
    assert [len(values) for values in Batch(executor=following, folder=tmp_path).results(jobs)] == [5, 2, 7]
    assert following.n == 1


def test_a_result_that_was_written_counts_whatever_the_executor_returns(tmp_path: Path) -> None:
    @final
    class Forgets:
        def submit(self, fn: Callable[..., Any], /, *args: Any) -> "Future[Any]":
            return future_of(None if fn(*args) == "" else "failed")

    assert [len(values) for values in Batch(executor=Forgets(), folder=tmp_path).results([job(3)])] == [3]


def test_what_cannot_be_sent_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    taker = AtOnce()
    with pytest.raises(InvalidArgument, match=r"job 'range 3' cannot be sent to a worker: .*function is not JSON"):
        Batch(executor=taker, folder=tmp_path).results([job(2), job(3, fault=lambda: None)])
    assert taker.n == 0


@pytest.mark.parametrize("wrong", [None, 3, "local:2", AtOnce, object()])
def test_an_executor_without_submit_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match=r"executor has no submit\(fn, \*args\)"):
        Batch.of(wrong)


def test_a_worker_of_another_version_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, real = Batch(executor=AtOnce(), folder=tmp_path), executors.numerics()
    found = iter([real, {**real, "torch": "1.0"}])
    monkeypatch.setattr(executors, "numerics", lambda: next(found))
    with pytest.raises(ExecutorFault, match=r"driver and worker differ: torch \S+ there, 1\.0 here"):
        batch.results([job(2)])


def test_results_under_other_settings_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = AtOnce()
    for setting in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(setting)
        try:
            Batch(executor=taker, folder=tmp_path).results([job(2)])
        finally:
            torch.set_float32_matmul_precision("highest")
    assert taker.n == 2, "once under each setting"
    monkeypatch.setattr(base, "own_version", lambda: "99")
    Batch(executor=taker, folder=tmp_path).results([job(2)])
    assert taker.n == 3


def test_a_worker_that_writes_elsewhere_is_found_out(tmp_path: Path) -> None:
    @final
    class Elsewhere:
        def submit(self, fn: Callable[..., Any], /, text: str) -> "Future[Any]":
            there = {**json.loads(text), "file": str(tmp_path / "elsewhere" / RESULT)}
            return AtOnce().submit(fn, json.dumps(there))

    with pytest.raises(ExecutorFault, match=r"wrote no result that this process can read; name a folder that both see"):
        Batch(executor=Elsewhere(), folder=tmp_path / "here").results([job(2)])


def test_a_pool_that_is_shut_down_is_named(tmp_path: Path) -> None:
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    pool.shutdown()
    with pytest.raises(
        ExecutorFault, match=r"2 of 2 jobs failed: 'range 2': RuntimeError: cannot schedule new futures"
    ):
        Batch(executor=pool, folder=tmp_path).results([job(2), job(3)])


def test_a_job_computes_with_the_stated_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    for threads in (1, 2):
        batch = Batch(executor=AtOnce(), folder=tmp_path, threads=threads)
        assert batch.results([Job(name="t", function=threads_of_torch, arguments={})]) == [threads]
    assert torch.get_num_threads() == before
