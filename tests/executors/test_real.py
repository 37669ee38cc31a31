"""The real engines on this machine: the same report, a killed worker, and clusters that are not there."""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayesgeom.core.errors import ExecutorFault, InvalidArgument
from bayesgeom.executors import Batch, Executor, connect
from bayesgeom.generalization.sweeps import sweep
from tests.dynamics.trainings import a_recipe
from tests.executors.test_connect import jobs
from tests.executors.test_functions import assert_same
from tests.tiny import tiny_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # the engines' own: deprecations, sockets that they leave to the collector
]
ENGINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ray": ("ray", "ray://local", {"num_cpus": 2, "include_dashboard": False}),
    "dask": ("distributed", "dask://local", {"n_workers": 2, "threads_per_worker": 1}),
    "submitit": ("submitit", "slurm", {"cluster": "local", "timeout_min": 5}),
    "slurm": ("submitit", "slurm", {"timeout_min": 5, "cpus_per_task": 1}),
}


@pytest.fixture(scope="module", params=ENGINES)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Executor]]:
    library, on, options = ENGINES[request.param]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    if request.param == "slurm" and not answers("sinfo"):
        pytest.skip("no SLURM answers here")
    own = {**options, **({"folder": str(tmp_path_factory.mktemp("slurm"))} if on == "slurm" else {})}
    with connect(on, {on.partition(":")[0]: own}) as executor:
        yield request.param, executor


def test_built_in_functions_run_too(running: tuple[str, Executor]) -> None:
    if running[0] in ("ray", "dask"):  # with submitit a job takes seconds
        assert running[1].submit(abs, -3).result() == 3


def answers(command: str) -> bool:
    """Whether there is such a command, and it succeeds."""
    return shutil.which(command) is not None and subprocess.run([command], check=False, timeout=30).returncode == 0


def test_a_sweep_gives_the_same_report(running: tuple[str, Executor], tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "tiny", a_recipe())
    asked: dict[str, Any] = {"task": "bijection:n_values=5,n_pairs=4", "vary": "n_pairs", "values": (2, 3, 4), "n": 32}
    batch = Batch(executor=running[1], folder=tmp_path / "jobs")
    sent = sweep(**asked, model=tmp_path / "tiny", executor=batch)
    assert_same(sent, sweep(**asked, model=tmp_path / "tiny"))


def test_a_killed_worker_loses_its_job_alone(running: tuple[str, Executor], tmp_path: Path) -> None:
    name, executor = running
    batch = Batch(executor=executor, folder=tmp_path / "jobs")
    if name == "slurm" and not answers("sacct"):
        pytest.skip("this SLURM keeps no accounts, from which submitit learns that a job died")
    if name in ("submitit", "slurm"):  # a failed job is not requeued; Ray and Dask run it again themselves
        with pytest.raises(ExecutorFault, match=r"1 of 5 jobs failed: '5': .*The results of the other 4 are in"):
            batch.results(jobs(tmp_path / "mark"))
    assert [len(values) for values in batch.results(jobs(tmp_path / "mark"))] == [2, 3, 5, 7, 11]
    assert (tmp_path / "mark").exists()


def test_clusters_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no srun: SLURM may be installed here
    for library, on, options in (
        ("distributed", "dask://127.0.0.1:9", {"dask": {"timeout": "2s"}}),
        ("ray", "ray://127.0.0.1:9", {"ray": {}}),
        ("submitit", "slurm", {}),
    ):
        if importlib.util.find_spec(library) is None:
            continue
        with pytest.raises(ExecutorFault, match=rf"engine {on} cannot be reached: "), connect(on, options):
            pass


def test_options_that_an_engine_has_not_are_named() -> None:
    pytest.importorskip("submitit")
    given = {"slurm": {"cluster": "local", "colour": "red"}}
    with pytest.raises(InvalidArgument, match=r"options of slurm: .*colour"), connect("slurm", given):
        pass
