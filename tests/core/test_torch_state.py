"""Work in several threads: results, exceptions, and the numbers of threads that are restored."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from threadpoolctl import threadpool_info

import bayesgeom
from bayesgeom.core.run import N_RECORDED
from bayesgeom.core.torch_state import limited_threads, side_by_side
from bayesgeom.report.storage import parts_of


def library_threads() -> set[int]:
    """The numbers of threads of numpy's matrix products."""
    return {own["num_threads"] for own in threadpool_info() if own["user_api"] == "blas"}


@pytest.fixture(params=[1, 3])
def n_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run with one thread and with three; one is what a test process has."""
    with limited_threads(request.param):
        yield request.param


def test_each_work_has_one_thread_and_as_many_run_at_once_as_torch_has(n_threads: int) -> None:
    running, most, lock = set[int](), 0, threading.Lock()

    def work(place: int) -> tuple[int, int, bool]:
        nonlocal most
        with lock:
            running.add(place)
            most = max(most, len(running))
        time.sleep(0.02)
        with lock:
            running.remove(place)
        return place**2, torch.get_num_threads(), torch.is_grad_enabled()

    with torch.no_grad():
        found = dict(side_by_side([partial(work, place) for place in range(7)]))
    assert found == {place: (place**2, 1, False) for place in range(7)}
    assert most == n_threads
    assert torch.get_num_threads() == n_threads and library_threads() == {n_threads}


def test_an_exception_propagates_and_nothing_else_starts(n_threads: int) -> None:
    started = list[int]()

    def work(place: int) -> None:
        started.append(place)
        if place == 0:
            raise KeyError("planted")
        time.sleep(0.02)

    with pytest.raises(KeyError, match="planted"):
        list(side_by_side([partial(work, place) for place in range(11)]))
    assert len(started) <= 2 * n_threads
    assert torch.get_num_threads() == n_threads and library_threads() == {n_threads}


def test_callers_in_two_threads_take_turns() -> None:
    before, inside, ended = library_threads(), threading.Event(), threading.Event()
    found = list[int]()

    def first() -> None:
        inside.set()
        assert ended.wait(10)
        found.append(1)

    def second() -> None:
        found.extend(value for _, value in side_by_side([lambda: 2]))

    with limited_threads(3):
        one = threading.Thread(target=lambda: list(side_by_side([first])))
        two = threading.Thread(target=second)
        one.start()
        assert inside.wait(10)
        two.start()
        time.sleep(0.05)
        assert not found
        ended.set()
        one.join()
        two.join()
    assert found == [1, 2]
    assert library_threads() == before and torch.get_num_threads() == 1


@pytest.mark.slow
def test_a_diagnosis_is_the_same_with_any_number_of_threads_for_its_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of the model keep one thread here: their rounding may depend on the number, that of probes does not."""
    from bayesgeom.diagnosis import measuring

    def diagnosed(do: Callable[..., object]) -> dict[str, object]:
        monkeypatch.setattr(measuring, "side_by_side", do)
        found = bayesgeom.diagnose("mess3-small", n=N_RECORDED + 32, n_untrained=1)
        return {name: parts_of(report) for name, report in found.items()}

    def three_at_a_time(works: list[Callable[[], object]]) -> Iterator[tuple[int, object]]:
        with limited_threads(3):
            yield from side_by_side(works)

    one, three = diagnosed(side_by_side), diagnosed(three_at_a_time)
    assert list(one) == list(three) and len(one) > 4
    for name, (fields, arrays) in one.items():
        assert fields == three[name][0], name
        assert {key: value.tobytes() for key, value in arrays.items()} == {
            key: value.tobytes() for key, value in three[name][1].items()
        }, name
