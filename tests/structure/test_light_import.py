"""`import bayesgeom` is instant: heavy libraries load when something needs them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bayesgeom.cli import COMMANDS
from tests.structure.source import ROOT

HEAVY = (
    "torch",
    "transformer_lens",
    "transformers",
    "plotly",
    "pandas",
    "sklearn",
    "scipy",
    "pyarrow",
    "torchao",
)

LOADED = f"\nimport json, sys\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"


def heavy_after(code: str) -> list[str]:
    """The heavy libraries that are loaded in a fresh interpreter once `code` has run."""
    done = subprocess.run([sys.executable, "-c", code + LOADED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded: list[str] = json.loads(done.stdout)
    return loaded


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert heavy_after("import bayesgeom") == []


def test_listing_what_the_package_offers_loads_nothing_heavy() -> None:
    assert heavy_after("import bayesgeom; dir(bayesgeom)") == []


COMMAND = """
import contextlib, io
from bayesgeom.cli import main
quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
with quiet[0], quiet[1], contextlib.suppress(SystemExit):  # help ends in SystemExit
    assert main({arguments!r}) in (0, 2)
"""


HELP = ("--help", *(f"{name} --help" for name in COMMANDS))
DESCRIPTIONS = ("checkpoints", "train", "diagnose", "--version")


@pytest.fixture(scope="module")
def after_commands() -> dict[str, set[str]]:
    """The heavy libraries that are loaded once each command has run, one after another in one interpreter."""
    steps = [f"{COMMAND.format(arguments=line.split())}{LOADED}" for line in (*HELP, *DESCRIPTIONS)]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(steps)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [set(json.loads(line)) for line in done.stdout.splitlines()]
    return dict(zip((*HELP, *DESCRIPTIONS), found, strict=True))


@pytest.mark.parametrize("line", DESCRIPTIONS)
def test_a_command_that_only_reads_descriptions_does_not_load_torch(
    line: str, after_commands: dict[str, set[str]]
) -> None:
    assert after_commands[line] <= {"plotly"}


@pytest.mark.parametrize("line", HELP)
def test_help_loads_nothing_heavy(line: str, after_commands: dict[str, set[str]]) -> None:
    assert after_commands[line] == set()


OUR_IMPORTS = {
    "a callable": "task = bayesgeom.tasks.Mess3(); model = lambda ids: torch.zeros(*ids.shape, 3)",
    "a native model": 'task, model = None, "mess3-small"',
    "a model built by transformers": 'task, model = None, "bijection-v20-llama"',
}
MEASURED = """
import bayesgeom, torch
from bayesgeom.monitor import trainer_callback
{lines}
bayesgeom.diagnose(model, task, n=4, n_untrained=0, probes=["calibration"])
trainer_callback("bijection")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("lines", OUR_IMPORTS.values(), ids=OUR_IMPORTS)
def test_libraries_that_we_import_print_nothing(lines: str) -> None:
    code = MEASURED.format(lines=lines)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


EXTRAS = ("anywidget", "distributed", "gguf", "httpx", "peft", "ray", "submitit", "torchao", "xarray")
WITHOUT = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # an import of what is None fails
import bayesgeom
from bayesgeom.cli import main
from bayesgeom.models.served.client import Client
diagnosis = bayesgeom.diagnose("mess3-small", n=16, n_untrained=0)
diagnosis.save(sys.argv[1])
for use in (diagnosis.to_xarray, diagnosis["calibration"].to_xarray, Client(url="http://127.0.0.1:9/v1").models):
    try:
        use()
    except bayesgeom.BayesGeomError as error:
        print(error)
main(["--help"])
"""


@pytest.mark.exhaustive
def test_extras_are_not_needed_and_each_is_named_where_it_is(tmp_path: Path) -> None:
    given = [sys.executable, "-c", WITHOUT, str(tmp_path / "run")]
    done = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (tmp_path / "run" / "report.html").is_file(), done.stderr
    assert [re.findall(r"\w+: pip install .*", line) for line in done.stdout.splitlines()[:3]] == [
        ["xarray: pip install '.[xarray]' in the clone."],
        ["xarray: pip install '.[xarray]' in the clone."],
        ["httpx: pip install '.[serve]' in the clone."],
    ]
    assert "usage: bayesgeom" in done.stdout


MISTYPED = {
    ("diagnose", "./nowhere"): ("there is no directory", set[str]()),
    ("diagnose", "mess3-small", "--texts", "nowhere"): ("there is no file 'nowhere'", set[str]()),
    ("diagnose", "mess3-small", "--task", "evidnce"): ("there is no task named 'evidnce'", {"torch", "scipy"}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("given", MISTYPED)
def test_a_wrong_name_is_refused_before_what_it_does_not_need_loads(given: tuple[str, ...]) -> None:
    message, needed = MISTYPED[given]
    code = f"from bayesgeom.cli import main\nassert main({list(given)!r}) == 2{LOADED}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert message in done.stderr and set(json.loads(done.stdout)) <= needed, done.stderr
