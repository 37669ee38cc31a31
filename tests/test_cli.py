"""The command line: tables out, and one clear line with exit status 2 for every mistake."""

import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from bayesgeom.cli import COMMANDS, _text_task, main, parsed
from bayesgeom.core import Run, plugins
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.text import number_text
from bayesgeom.diagnosis.plan import all_measurements
from bayesgeom.diagnosis.run import diagnose
from bayesgeom.measurements.key_overlap import KeyOverlap, KeyOverlapReport
from bayesgeom.models.checkpoint import load_checkpoint, save_checkpoint
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.selftest import run as selftests
from bayesgeom.selftest.run import ControlResult, PlantedTable
from bayesgeom.tasks.base import task_kinds
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.prompts import Prompts
from bayesgeom.training import recipes
from tests.dynamics.trainings import a_recipe

TASK = Bijection(n_values=11, n_pairs=5)
CONFIG = TransformerConfig(d_vocab=22, n_ctx=9, n_layers=2, n_heads=3, d_model=21, d_mlp=13)
QUICK = ("--n", "7", "--n-untrained", "0", "--probes", "calibration")
TINY = a_recipe(
    name="tiny-recipe",
    task=Bijection(n_values=5, n_pairs=3),
    warmup=3,
    steps=7,
    batch_size=5,
    late_batch_size=5,
    snapshots=0,
)


def save(path: Path, change: Callable[[Transformer], object] = lambda module: None) -> None:
    module = CONFIG.build(seed=1)
    with torch.no_grad():
        change(module)
    recipe = {"name": path.name, "task": TASK.config()}
    scores = {
        "n": 7,
        "entropy_mae_bits": 0.25,
        "kl_bits": 0.125,
        "baselines": {"entropy_mae_bits": {"uniform": 0.75, "constant": 0.5}},
    }
    save_checkpoint(path, module, CONFIG, recipe=recipe, step=17, card="# tiny\n", entries={"scores": scores})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one named checkpoint and one recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setitem(recipes.RECIPES, TINY.name, TINY)
    monkeypatch.setattr("bayesgeom.training.publish.N_SCORED", 64)
    save(tmp_path / "checkpoints" / "tiny")
    return tmp_path


def entries(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_diagnose_prints_and_saves_the_same_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ("--probes", "calibration", "key_overlap")
    assert main(["diagnose", "tiny", "--n", "19", "--n-untrained", "1", "--out", "runs/tiny", *chosen]) == 0
    out, err = capsys.readouterr()
    saved = Diagnosis.load("runs/tiny")
    assert list(saved) == ["calibration", "key_overlap"]
    assert saved.provenance["arguments"]["n"] == 19 and saved.provenance["arguments"]["n_untrained"] == 1
    summary, _, where = out.rstrip().rpartition("\n")
    assert summary == saved.summary("report.html")
    assert where == f"report: {Path('runs/tiny/report.html')}" and err == ""
    page = (folder / "runs" / "tiny" / "report.html").read_text(encoding="utf-8")
    for _, line in saved.headlines():
        assert line.value_text in page and line.interval in page
    first = [saved[name].headlines()[0] for name in saved]
    assert all(number_text(line.value) in summary and number_text(line.low) in summary for line in first)


def test_what_diagnose_prints_with_a_page_fits_a_screen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "tiny", "--n", "19", "--n-untrained", "0", "--out", "runs/tiny"]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 20


def test_the_answer_is_printed_before_the_rest_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(probe: KeyOverlap, run: Run, untrained: Sequence[KeyOverlapReport] = ()) -> KeyOverlapReport:
        printed.append(capsys.readouterr().out)
        return measure(probe, run, untrained)

    printed, measure, counts = list[str](), KeyOverlap.measure, ("--n", "19", "--n-untrained", "2")
    monkeypatch.setattr(KeyOverlap, "measure", measured)
    assert main(["diagnose", "tiny", *counts, "--out", "run", "--probes", "calibration", "key_overlap"]) == 0
    saved, last = Diagnosis.load("run"), capsys.readouterr().out
    first, _, rest = saved.summary("report.html").partition("\n\n")
    assert printed == [f"{first}\n", "", ""]
    assert " ".join(first.split()).startswith(f"{saved.title} {saved.answer}"), "lines may wrap"
    assert last == f"\n{rest}\nreport: {Path('run/report.html')}\n"
    python = diagnose("tiny", n=19, n_untrained=2, probes=["calibration", "key_overlap"])
    assert python.summary() == saved.summary() and "".join(printed[3:]) == "", "from Python nothing is printed"


def test_diagnose_without_out_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = entries(folder)
    assert main(["diagnose", "tiny", *QUICK]) == 0
    assert entries(folder) == before
    assert capsys.readouterr().out.endswith(
        "\n\nreport: not saved; --out DIRECTORY saves a page with all numbers and figures\n"
    )


def test_parameters_that_are_not_named_are_those_of_the_checkpoints_own_task(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bijection's defaults are 20 values and 19 pairs; the checkpoint was trained on 11 and 5."""
    mine = "Bijection(n_values=11, n_pairs=5, repeats=True"
    for command in (
        ("diagnose", "tiny", *QUICK, "--task", "bijection:repeats=true"),
        ("length", "tiny", "--task", "bijection:repeats=true", "--to", "6", "--untrained-rows", "--n", "2"),
        ("sweep", "bijection:repeats=true", "--vary", "n_pairs=3,5", "--checkpoint", "tiny", "--n", "2"),
    ):
        assert main([*command]) == 0
        assert mine in capsys.readouterr().out, command
    assert main(["diagnose", "tiny", *QUICK, "--task", "bijection"]) == 0
    assert capsys.readouterr().out.startswith(f"tiny on {TASK}")


def plant(folder: Path, what: str) -> None:
    """A broken checkpoint of this name, or a target that cannot be written to."""
    if what == "loud":
        save(folder / what, lambda module: module.ln_final.w.fill_(3e38))
    (folder / "file").write_text("a file")
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter.tex").write_text("years of work")


MISTAKES = {
    "no such checkpoint": (
        "tinny",
        (),
        "there is no checkpoint named 'tinny'. There are: tiny. Perhaps you meant 'tiny'.",
    ),
    "NaN logits": ("loud", (), "loud returned NaN or infinite logits in 7 of 7 sequences"),
    "other ids": ("tiny", ("--task", "bijection:n_values=13,n_pairs=5"), "has 26 ids; tiny was trained on"),
    "too long": ("tiny", ("--task", "bijection:n_values=11,n_pairs=7"), "have 13 tokens; tiny has positions for 9."),
    "no such parameter": (
        "tiny",
        ("--task", "bijection:n_value=11"),
        "has no parameter 'n_value'. It has: n_pairs, n_values",
    ),
    "no sequences": ("tiny", ("--n", "0"), "n, the number of sequences to draw, must be a positive integer, got 0."),
    "no probes": (
        "tiny",
        ("--probes",),
        "probes is empty: leave it out for all, or choose from: ablation, attention_entropy, ",
    ),
    "no such probe": ("tiny", ("--probes", "calibraton"), "value_manifold. Perhaps you meant 'calibration'."),
    "out is a file": ("tiny", ("--out", "file"), "file is a file; name a directory."),
    "out is taken": ("tiny", ("--out", "thesis"), "thesis holds something else than a report (chapter.tex)"),
}


def assert_one_line(capsys: pytest.CaptureFixture[str], message: str) -> None:
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("bayesgeom: ") and message in err


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_one_line(mistake: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, more, message = MISTAKES[mistake]
    plant(folder, checkpoint)
    before = entries(folder)
    out = () if "--out" in more else ("--out", "runs/never")
    assert main(["diagnose", checkpoint, *QUICK, *out, *more]) == 2
    assert_one_line(capsys, message)
    assert entries(folder) - {"runs"} == before, "nothing half-written is left"


BAD_ARGUMENTS = {
    "": f"name a command: {', '.join(COMMANDS)}. See bayesgeom --help.",
    "diagnos": (
        f"there is no command named 'diagnos'. There are: {', '.join(sorted(COMMANDS))}. Perhaps you meant 'diagnose'. "
        "See bayesgeom --help."
    ),
    "patch": "patch is no command: use bayesgeom.patch in Python. See bayesgeom --help.",
    "ablate tiny --mode void": "mode must be zero, mean or resample, got 'void'.",
}


@pytest.mark.parametrize("line", BAD_ARGUMENTS)
def test_bad_arguments_are_one_line_too(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(line.split()) == 2
    assert_one_line(capsys, f"bayesgeom: {BAD_ARGUMENTS[line]}")


INVALID_OPTIONS = {
    "diagnose": "CHECKPOINT",
    "diagnose tiny --n many": "many",
    "diagnose tiny more": "more",
    "diagnose tiny --sed 3": "--seed",
    "ablate tiny --method void": "void",
    "train": "RECIPE",
}


@pytest.mark.parametrize("line", INVALID_OPTIONS)
def test_invalid_options_are_named_by_tyro_before_the_last_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    *box, last, _ = err.split("\n")
    assert (
        out == ""
        and last == f"bayesgeom: the options above are invalid. See bayesgeom {line.split(maxsplit=1)[0]} --help."
    )
    assert INVALID_OPTIONS[line] in "".join(box)


def test_prompts_of_a_file_stay_as_they_are(tmp_path: Path) -> None:
    given = ["One", "Two ", *["Three\t"] * 6]
    (tmp_path / "a.txt").write_text("\n".join(given) + "\n", encoding="utf-16")
    task = _text_task(None, None, tmp_path / "a.txt", chat=False)
    assert isinstance(task, Prompts) and task.texts == tuple(given)


def test_help_lists_the_measurements_and_tasks_that_discovery_finds(capsys: pytest.CaptureFixture[str]) -> None:
    """They are read from files, because importing them takes seconds: a new file is listed by itself."""
    with pytest.raises(SystemExit, match="0"):
        main(["diagnose", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    listed = text.partition("Measure only these of ")[2].partition(". value_manifold:")[0].split(", ")
    assert sorted(listed) == sorted(all_measurements().keys() - {"ablation"})  # that is --ablations
    named, _, presets = text.partition("Another task: ")[2].partition(" or, in words, ")[0].partition("; a process")
    tasks = [*named.split(", "), *re.split(r", | or ", presets.strip("; ").removeprefix("by its name, "))]
    assert sorted(tasks) == sorted(name for name in task_kinds() if not name.endswith("-in-context"))


@pytest.mark.parametrize(("folder", "base"), [("tasks", "WindTunnel"), ("measurements", "Report")])
def test_a_new_file_is_listed_by_its_name(
    folder: str, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "core"
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "own.py").write_text(f'class Own({base}):\n    name: ClassVar[str] = "own-one"\n')
    (tmp_path / folder / "_own.py").write_text(f'class Own({base}):\n    name: ClassVar[str] = "hidden"\n')
    monkeypatch.setattr(plugins, "__file__", str(home / "plugins.py"))
    assert plugins.declared(folder) == ["own-one"]


def test_a_command_of_the_shell_says_when_it_begins_and_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bayesgeom", "diagnose", "tiny", *QUICK])
    assert main() == 0
    first, *phases, last = capsys.readouterr().err.splitlines()
    assert first.startswith("bayesgeom diagnose: tiny --n") and re.fullmatch(
        r"bayesgeom diagnose: finished in [\d.,]+ s", last
    )
    assert phases == ["  loading libraries", "  loading tiny", "  tiny (7 sequences)", "  tiny: probes (1 probe)"]


def test_an_interrupted_command_that_keeps_its_progress_says_where(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bayesgeom.training.environment.is_bfloat16_fast", lambda kind: False)
    monkeypatch.setattr("bayesgeom.training.loop.training_step", interrupted)
    monkeypatch.setattr(importlib.import_module("bayesgeom.ablations.run"), "score_batch", interrupted)
    kept = "bayesgeom: interrupted; the progress is saved in {}; to continue, repeat the {}.\n"
    assert main(["train", TINY.name, "--out", "run"]) == 130
    assert capsys.readouterr() == ("", "bayesgeom: interrupted\n"), "before anything was saved"
    assert main(["ablate", "tiny", "--battery", "mlps", "--n", "5", "--out", "battery"]) == 130
    assert capsys.readouterr() == ("", "bayesgeom: interrupted\n")
    for folder_of, name in (("run", "state.safetensors"), ("battery", "progress.safetensors")):
        (folder / folder_of).mkdir(exist_ok=True)
        (folder / folder_of / name).touch()
    monkeypatch.setattr("bayesgeom.training.loop.restore_state", interrupted)
    monkeypatch.setattr("bayesgeom.training.loop.steps_done", lambda *_: 3)
    assert main(["train", TINY.name, "--out", "run", "--resume"]) == 130
    assert capsys.readouterr().err.endswith(kept.format("run", "command with --resume"))
    monkeypatch.setattr("bayesgeom.ablations._tally.Tally.load", lambda *_: None)
    assert main(["ablate", "tiny", "--battery", "mlps", "--n", "5", "--out", "battery"]) == 130
    assert capsys.readouterr() == ("", kept.format("battery", "same command"))
    assert main(["ablate", "tiny", "--battery", "mlps", "--n", "5"]) == 130
    assert capsys.readouterr() == ("", "bayesgeom: interrupted\n")


def test_a_training_records_its_precision(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", TINY.name, "--steps", "3", "--precision", "float32"]) == 0
    made = Path("runs/train") / TINY.name / "checkpoint"
    assert json.loads((made / "config.json").read_text())["precision"] == "float32"
    assert "\n- precision float32\n" in (made / "card.md").read_text()
    assert main(["train", TINY.name, "--steps", "3", "--resume", "--precision", "bfloat16"]) == 2
    assert "was started in float32 and cannot continue in bfloat16" in capsys.readouterr().err


def test_resuming_with_other_steps_names_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", TINY.name, "--steps", "3"]) == 0
    assert main(["train", TINY.name, "--resume"]) == 2
    assert "'tiny-recipe' (steps: 3 there, 7 requested). Use the recipe and options" in capsys.readouterr().err


def test_a_control_that_fails_fails_the_selftest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = [
        ControlResult(probe="a", control="one", passed=True),
        ControlResult(probe="b", control="two", passed=False),
    ]
    table = PlantedTable(probe="c", title="Planted", head=("network", "KL"), rows=[("one", "0.25")], passed=False)
    monkeypatch.setattr(selftests, "selftest", lambda: verdicts)
    monkeypatch.setattr(selftests, "planted_tables", lambda: [table])
    assert main(["selftest"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[:4] == ["Planted", "network  KL", "one      0.25", ""]
    assert printed[4:] == ["ok      a: one", "FAILED  b: two", "FAILED  c: Planted", "", "1 controls hold, 2 do not"]


def test_what_was_trained_can_be_diagnosed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tiny-recipe", "--steps", "5", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    path = Path("runs/train/tiny-recipe-seed3/checkpoint")  # where replicate looks for it
    assert out.startswith("KL(exact ‖ model) ") and out.rstrip().endswith(f"\n\ncheckpoint: {path}")
    checkpoint = load_checkpoint(folder / path)
    assert (checkpoint.step, checkpoint.recipe["seed"], checkpoint.task) == (5, TINY.seed + 3_000, TINY.task)
    assert main(["diagnose", str(path), *QUICK]) == 0
    assert capsys.readouterr().out.startswith("tiny-recipe-seed3 on Bijection(n_values=5, n_pairs=3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bijection-v21",), "there is no recipe named 'bijection-v21'. There are: bijection-lstm, "),
        (("tiny-recipe", "--seed", "-1"), "seed must be a non-negative integer (0 is the recipe's own), got -1."),
        (("tiny-recipe", "--out", "checkpoints/tiny/card.md"), "checkpoints/tiny/card.md is a file; name a directory."),
        (("tiny-recipe", "--resume"), "nothing to resume: runs/train/tiny-recipe contains no run."),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_mistakes_in_training_are_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    assert_one_line(capsys, message)


def test_an_option_that_may_be_left_out_is_read_as_its_type() -> None:
    options = parsed(["compare", "a", "b", "--n", "64"]).keywords
    assert options["n"] == 64 and options["seed"] is None
    with pytest.raises(InvalidArgument, match="options above are invalid"):
        parsed(["compare", "a", "b", "--n", "several"])
