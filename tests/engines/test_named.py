"""Engines by name: processes of this machine, and what is refused in one line."""

import sys
from pathlib import Path

import pytest

from bayesgeom.cli import main
from bayesgeom.core.errors import ExecutorFault, InvalidArgument
from bayesgeom.engines import named
from bayesgeom.engines.executor import Batch, Job
from bayesgeom.engines.local import LocalExecutor
from bayesgeom.engines.named import engine
from bayesgeom.results.diagnosis import load_report
from tests.dynamics.trainings import a_recipe
from tests.tiny import tiny_checkpoint


def jobs(mark: Path) -> list[Job]:
    """Five, of which the third kills its process once."""
    sizes = (2, 3, 5, 7, 11)
    plain = [Job(name=f"{n}", function="tests.engines.stand_ins:arange", arguments={"n": n}) for n in sizes]
    deadly = Job(name="5", function="tests.engines.stand_ins:killed_once", arguments={"n": 5, "mark": str(mark)})
    return [*plain[:2], deadly, *plain[3:]]


@pytest.mark.slow
def test_a_killed_worker_costs_its_own_job_and_the_next_call_does_it(tmp_path: Path) -> None:
    with LocalExecutor(2) as executor:
        batch = Batch(executor=executor, folder=tmp_path / "jobs")
        with pytest.raises(ExecutorFault, match=r"1 of 5 jobs failed: '5': BrokenProcessPool: .*other 4 are in"):
            batch.results(jobs(tmp_path / "mark"))
        assert [len(values) for values in batch.results(jobs(tmp_path / "mark"))] == [2, 3, 5, 7, 11]


@pytest.mark.parametrize("on", ["kubernetes", "local", "local:", "local:two", "slurm:4", "ray:", "ray:x", "dask://"])
def test_what_is_no_engine_is_refused(on: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"there is no engine '{on}'\. There are: local:N, slurm, "), engine(on):
        pass


def test_bad_options_are_refused(tmp_path: Path) -> None:
    options = tmp_path / "options.toml"
    for text, reason in (
        ("[local]\nfast = true", "local takes no options; got fast"),
        ("[kubernetes]\n", r"in a table of its name, .*, got kubernetes"),
        ("partition = 'gpu'", r"in a table of its name, .*, got partition"),
        ("[slurm", r"options\.toml cannot be read: "),
    ):
        options.write_text(text)
        with pytest.raises(InvalidArgument, match=reason), engine("local:1", options):
            pass
    with (
        pytest.raises(InvalidArgument, match=r"absent\.toml cannot be read: .*No such file"),
        engine("local:1", "absent.toml"),
    ):
        pass
    with pytest.raises(InvalidArgument, match=r"at least 1 process, such as local:2, got 0"), engine("local:0"):
        pass


def test_an_engine_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, on, extra in (
        ("ray", "ray://here:1", "ray"),
        ("distributed", "dask://here:1", "dask"),
        ("submitit", "slurm", "slurm"),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        with (
            pytest.raises(InvalidArgument, match=rf"{extra} needs {name}: pip install 'bayesgeom\[{extra}\]'"),
            engine(on),
        ):
            pass


RAY = """
import pathlib, sys, time

def init(address, **_):
    pathlib.Path({mark!r}).write_text(address)
    if address == "auto" and {silent}:
        time.sleep(60)
    if address == "auto":
        raise ConnectionError("Could not find any running Ray instance.")

def shutdown():
    pass
"""


@pytest.mark.parametrize("silent", [False, True])
def test_no_ray_on_this_machine_is_refused_within_a_time_or_started(
    silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray.py").write_text(RAY.format(mark=str(tmp_path / "mark"), silent=silent))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", sys)  # so that what is there now comes back
    del sys.modules["ray"]
    monkeypatch.setattr(named, "ANSWER_S", 0.5 if silent else 60)
    reason = r"no answer within 0\.5 s" if silent else "ConnectionError: Could not find any running Ray instance"
    with (
        pytest.raises(ExecutorFault, match=rf"engine ray://auto cannot be reached: {reason}\. Use ray://local, "),
        engine("ray://auto"),
    ):
        pass
    for on in ("ray", "ray://local"):
        with engine(on):
            assert (tmp_path / "mark").read_text() == "local", "else Ray takes the address of a dead cluster"


@pytest.mark.slow
def test_the_command_line_gives_the_same_report_on_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_checkpoint(tmp_path / "tiny", a_recipe())
    asked = ["sweep", "bijection:n_values=5,n_pairs=4", "--vary", "n_pairs=3,4", "--n", "16"]
    asked += ["--checkpoint", str(tmp_path / "tiny")]
    where = ["--on", "local:2", "--jobs", str(tmp_path / "jobs")]
    assert main([*asked, "--out", str(tmp_path / "alone")]) == 0
    assert main([*asked, *where, "--out", str(tmp_path / "sent")]) == 0
    capsys.readouterr()
    one, other = (load_report(tmp_path / name) for name in ("alone", "sent"))
    assert str(one) == str(other) and len(list((tmp_path / "jobs").iterdir())) == 2
    assert main([*asked, "--on", "mars"]) == 2
    assert "there is no engine 'mars'" in capsys.readouterr().err
    assert main([*asked, "--on-options", "x.toml"]) == 2
    assert "name it with --on" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path / "tiny"), "--dtype", "float64", "--on", "local:2"]) == 2
    assert "with --on, workers load a model as it was saved: leave out --dtype" in capsys.readouterr().err
