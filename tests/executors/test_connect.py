"""Executors by name: processes of this machine, and what is refused in one line."""

import sys
from pathlib import Path

import pytest

from bayesgeom.cli import main
from bayesgeom.core.errors import ExecutorFault, InvalidArgument
from bayesgeom.executors import Batch, Job, connect
from bayesgeom.report.diagnosis import load_report
from tests.dynamics.trainings import a_recipe
from tests.executors.stand_ins import arange, killed_once
from tests.tiny import tiny_checkpoint


def jobs(mark: Path) -> list[Job]:
    """Five, of which the third kills its process once."""
    sizes = (2, 3, 5, 7, 11)
    plain = [Job(name=f"{n}", function=arange, arguments={"n": n}) for n in sizes]
    deadly = Job(name="5", function=killed_once, arguments={"n": 5, "mark": str(mark)})
    return [*plain[:2], deadly, *plain[3:]]


@pytest.mark.slow
def test_a_killed_process_loses_its_job_alone_and_the_next_call_does_it(tmp_path: Path) -> None:
    def results() -> list[int]:
        with connect("local:1") as executor:
            found = Batch(executor=executor, folder=tmp_path / "jobs").results(jobs(tmp_path / "mark"))
            return [len(values) for values in found]

    with pytest.raises(ExecutorFault, match=r"1 of 5 jobs failed: '5': BrokenProcessPool: .*other 4 are in"):
        results()
    assert results() == [2, 3, 5, 7, 11]


@pytest.mark.parametrize(
    "on", ["kubernetes", "local", "local:", "local:two", "local:0", "slurm:4", "ray:", "ray:x", "dask://"]
)
def test_what_is_no_engine_is_refused(on: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"there is no engine '{on}'\. There are: local:N, slurm, "), connect(on):
        pass


def test_bad_options_are_refused(tmp_path: Path) -> None:
    options = tmp_path / "options.toml"
    for text, reason in (
        ("[local]\nfast = true", r"in a table \[slurm\], .*, got local"),
        ("[kubernetes]\n", r"in a table \[slurm\], .*, got kubernetes"),
        ("partition = 'gpu'", r"in a table \[slurm\], .*, got partition"),
        ("[slurm", r"options\.toml cannot be read: "),
    ):
        options.write_text(text)
        with pytest.raises(InvalidArgument, match=reason), connect("local:1", options):
            pass
    with (
        pytest.raises(InvalidArgument, match=r"absent\.toml cannot be read: .*No such file"),
        connect("local:1", "absent.toml"),
    ):
        pass


def test_an_engine_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, on, extra in (
        ("ray", "ray://here:1", "ray"),
        ("distributed", "dask://here:1", "dask"),
        ("submitit", "slurm", "slurm"),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        with (
            pytest.raises(InvalidArgument, match=rf"{extra} needs {name}: pip install '\.\[{extra}\]'"),
            connect(on),
        ):
            pass


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
    assert "leave out --dtype: jobs and snapshots are of models as they were saved" in capsys.readouterr().err
