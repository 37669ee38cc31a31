"""Extensions of another package work like the package's own: in contract tests, --help, diagnose, pages and files."""

import importlib
import json
import re
import shutil
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.ablations.batteries import Ablation, Component, mode_named
from bayesgeom.ablations.report import AblationReport
from bayesgeom.cli import main
from bayesgeom.core.errors import InvalidArgument, OutputFault, UnknownName
from bayesgeom.core.run import ATTN_OUT
from bayesgeom.models.checkpoint import save_checkpoint
from bayesgeom.models.config import ModelConfig, architectures, config_from_dict
from bayesgeom.models.resolve import of_module
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.page import page_of
from bayesgeom.subspaces.fits import fit_from_text
from bayesgeom.tasks.base import task_from_text
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.training.recipes import plugin_recipes, recipe
from tests.laws import laws
from tests.measurements import test_contract as probe_contract
from tests.report import test_report as report_contract
from tests.reports import as_in_another_process
from tests.tasks import test_contract as task_contract
from tests.test_cli import save
from tests.third_party.installed import PACKAGE, entry_points, install

PROBE_LAWS = {
    **laws(probe_contract, probe_contract.every_probe, probe_contract.every_measurement),
    **laws(report_contract, report_contract.every_report),
}
TASK_LAWS = laws(task_contract, task_contract.every_task, task_contract.every_task_by_default)
EXEMPT = {"test_every_probe_has_its_page": "docs/probes/ describes the probes of this package only"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, one checkpoint named tiny, and the example package installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESGEOM_CHECKPOINTS", str(tmp_path / "checkpoints"))
    save(tmp_path / "checkpoints" / "tiny")
    install(tmp_path / "site", monkeypatch)
    monkeypatch.setattr("bayesgeom.training.publish.N_SCORED", 64)
    return tmp_path


def example(module: str, name: str) -> Any:
    return vars(importlib.import_module(f"{PACKAGE}.{module}"))[name]


def page_in(folder: Path) -> str:
    """Visible part of a saved page; the JSON of its provenance and the scripts are left out."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    return re.sub(r"<(script|pre)\b.*?</\1>", "", page, flags=re.DOTALL)


def test_there_is_one_extension_of_every_kind() -> None:
    kinds = ("probes", "tasks", "ablations", "subspaces", "charts", "commands", "models", "recipes")
    assert set(entry_points()) == {f"bayesgeom.{kind}" for kind in kinds}
    assert all(len(offered) == 1 for offered in entry_points().values())


@pytest.mark.parametrize("law", sorted(PROBE_LAWS.keys() - EXEMPT.keys()))
def test_the_probe_keeps_the_contract(law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_contract, "diagnosed", partial(probe_contract.diagnosed, "attention_sink"))
    files = {"tmp_path": tmp_path} if "tmp_path" in signature(PROBE_LAWS[law]).parameters else {}
    PROBE_LAWS[law]("attention_sink", **files)
    assert list(probe_contract.diagnosed()) == ["attention_sink"]


@pytest.mark.parametrize("law", sorted(TASK_LAWS))
def test_the_task_keeps_the_contract(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(task_contract.TASKS, "coins", task_from_text("coins"))
    TASK_LAWS[law]("coins")


def test_the_laws_are_those_of_the_contract_modules() -> None:
    """Every test of a contract module is a law, or states that it is not about one probe or task."""
    others = {
        "test_there_are_probes",
        "test_what_has_no_controls_is_known",
        "test_a_measurement_without_controls_and_one_that_cannot_fail_are_found",
        "test_a_task_whose_sequences_say_otherwise_is_refused",
        "test_the_tasks_of_the_papers_are_among_them",
    }
    tests = {name for module in (probe_contract, task_contract) for name in vars(module) if name.startswith("test_")}
    assert tests - others <= PROBE_LAWS.keys() | TASK_LAWS.keys() and others <= tests
    assert EXEMPT.keys() <= PROBE_LAWS.keys() and len(PROBE_LAWS) >= 15 and len(TASK_LAWS) >= 12


def test_the_tasks_posterior_is_that_of_enumeration() -> None:
    coins = example("coins", "Coins")
    trials = coins(n_coins=3, n_flips=5).sample(7, seed=0)
    for tokens, belief in zip(trials.tokens, trials.belief, strict=True):
        weights = np.ones(3)
        for position, token in enumerate(tokens):
            weights *= 1 if position == 0 else [b if token == 2 else 1 - b for b in (0.25, 0.5, 0.75)]
            np.testing.assert_allclose(belief[position], weights / weights.sum(), atol=1e-12)


def test_diagnose_measures_saves_and_loads_the_probe_and_draws_the_chart(folder: Path) -> None:
    diagnosis = bayesgeom.diagnose("tiny", n=11, n_untrained=1)
    assert "attention_sink" in diagnosis
    diagnosis.save(folder / "run")
    restored = bayesgeom.load_report(folder / "run")
    assert isinstance(restored, Diagnosis) and list(restored) == list(diagnosis)
    probe_contract.assert_equal_reports(restored["attention_sink"], diagnosis["attention_sink"])
    page = page_in(folder / "run")
    assert 'id="attention_sink-1"' in page and 'id="attention_sink-2"' in page
    assert "Attention sink of every head" in page


def test_without_the_package_the_rest_of_a_diagnosis_loads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bayesgeom.diagnose("tiny", n=11, n_untrained=0, probes=["calibration", "attention_sink"]).save(folder / "run")
    bayesgeom.diagnose("tiny", n=11, n_untrained=0, probes=["attention_sink"]).save(folder / "alone")
    shutil.rmtree(next((folder / "site").glob("*.dist-info")))
    importlib.invalidate_caches()
    assert list(Diagnosis.load(folder / "alone")) == ["attention_sink"], "this process has imported its class"
    as_in_another_process(monkeypatch)
    restored = bayesgeom.load_report(folder / "run")
    assert isinstance(restored, Diagnosis) and list(restored) == ["calibration"]
    assert restored.skipped["attention_sink"] == "report of an unknown kind; install or import what defines it"
    with pytest.raises(UnknownName, match=r"install or import what defines it"):
        restored["attention_sink"]
    for load in (bayesgeom.load_report, Diagnosis.load):
        with pytest.raises(OutputFault, match=r"unknown kinds: attention_sink\. Install the package that made them"):
            load(folder / "alone")


def test_a_chart_that_fails_costs_its_own_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    report = bayesgeom.diagnose("tiny", n=7, n_untrained=0, probes=["attention_sink"])["attention_sink"]
    monkeypatch.setattr(example("sink_map", "SinkMap"), "draw", lambda self, report: 1 / 0)
    page = page_of("tiny", {report.name: report}, {}, {})
    assert "Chart 'sink_map' cannot be drawn: ZeroDivisionError" in page.replace("&#39;", "'")


def test_the_command_runs_and_saves(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sinks", "tiny", "--n", "9", "--out", "run"]) == 0
    assert "first token, beyond" in capsys.readouterr().out
    assert list(Diagnosis.load(folder / "run")) == ["attention_sink"]
    assert "<h3>Attention sink of every head</h3>" in page_in(folder / "run")


def test_the_ablation_mode_lies_between_none_and_mean(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mode_named("halfway") is not None
    battery = [Ablation((Component(1, "attention"),)), Ablation((Component(0, "head", 1),))]
    half, mean = (bayesgeom.ablate("tiny", battery=battery, mode=mode, n=23) for mode in ("halfway", "mean"))
    assert half.mode == "halfway" and (half.kl_increase_bits.value != mean.kl_increase_bits.value).all()
    named = bayesgeom.ablate("tiny", battery=[Ablation(own.components, mode="halfway") for own in battery], n=23)
    np.testing.assert_array_equal(half.kl_increase_bits.value, named.kl_increase_bits.value)
    half.save(folder / "half")
    assert AblationReport.load(folder / "half").mode == "halfway"
    assert re.search("<h3>[^<]*halfway ablation", page_in(folder / "half"))
    assert main(["ablate", "tiny", "--battery", "heads", "--mode", "halfway", "--n", "9", "--out", "run"]) == 0
    assert "mode=halfway" in capsys.readouterr().out
    assert Diagnosis.load(folder / "run")["ablation"].to_dict()["mode"] == "halfway"
    assert re.search("<h3>[^<]*halfway ablation", page_in(folder / "run"))


def test_halfway_is_exact_in_a_replay() -> None:
    """Replaying from the edited activation gives what hooks on the whole network give."""
    model = bayesgeom.load("tiny")
    trials = Bijection(n_values=11, n_pairs=5).sample(5, seed=1)
    replayer, mode = model.replayer(), example("halfway", "Halfway")()
    site = ATTN_OUT
    mean = torch.randn(trials.tokens.shape[1], 21, generator=torch.Generator().manual_seed(0))

    baseline = replayer.baseline(trials)
    edits = Ablation((Component(0, "attention"),)).edits("halfway")
    replayed = replayer.logits(baseline, [edits], _FixedMean(mean))[0]
    point = model.point(site, 0)
    handle = point.register_forward_hook(lambda module, inputs, out: mode.replacement(out, site, 0, _FixedMean(mean)))
    try:
        with torch.no_grad():
            hooked = model.logits(trials)
    finally:
        handle.remove()
    torch.testing.assert_close(replayed, hooked, atol=1e-5, rtol=0)


class _FixedMean:
    def __init__(self, mean: torch.Tensor) -> None:
        self._mean = mean

    def mean(self, site: Any, layer: int) -> torch.Tensor:
        return self._mean

    def donor(self, site: Any, layer: int) -> torch.Tensor:
        raise AssertionError("halfway reads no donor")


def test_the_subspace_is_intervened_on(folder: Path) -> None:
    fit = fit_from_text("token_difference:3,5")
    bayesgeom.intervene("tiny", subspace=fit, kind="remove", n=13).save(folder / "remove")
    swap = ["--kind", "swap", "--n", "13", "--out", "swap"]
    assert main(["intervene", "tiny", "--subspace", "token_difference:3,5", *swap]) == 0
    for kind in ("remove", "swap"):
        assert "token 3 − token 5" in str(bayesgeom.load_report(folder / kind).to_dict())
        assert f"kind={kind}, subspace=token 3 − token 5, site=resid_pre" in page_in(folder / kind)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token_difference:3", r"is written token_difference:FIRST,SECOND: .*second"),
        ("token_difference:3,5,7", r"is written token_difference:FIRST,SECOND; got '3,5,7'"),
        ("token_difference:3,x", r"is written token_difference:FIRST,SECOND; got '3,x'"),
    ],
)
def test_a_subspace_with_wrong_values_says_how_it_is_written(text: str, shown: str) -> None:
    with pytest.raises(InvalidArgument, match=shown):
        fit_from_text(text)


def test_the_model_is_built_saved_loaded_and_diagnosed(folder: Path) -> None:
    assert "gru" in architectures()
    task = Bijection(n_values=5, n_pairs=4)
    sizes = {"architecture": "gru", "d_vocab": task.d_vocab, "n_ctx": task.n_pos, "d_model": 13}
    config: ModelConfig = config_from_dict(sizes)
    module, again = config.build(seed=3), config.build(seed=3)
    assert all(
        torch.equal(a, b) for a, b in zip(module.state_dict().values(), again.state_dict().values(), strict=True)
    )
    made = {"name": "guest", "task": task.config()}
    save_checkpoint(folder / "guest", module, config, recipe=made, step=0, card="# guest\n")
    model = bayesgeom.load(folder / "guest")
    assert model.spec.weights_hash == of_module(module).spec.weights_hash
    diagnosis = bayesgeom.diagnose(model, n=9, n_untrained=1)
    assert "calibration" in diagnosis and "key_overlap" in diagnosis.skipped
    direct = bayesgeom.diagnose(module, task, n=9, n_untrained=0, probes=["calibration"])
    assert float(direct["calibration"].to_dict()["n"]) == 9


def test_the_recipe_trains_and_its_checkpoint_is_diagnosed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recipe("coins-small").task == task_from_text("coins")
    assert main(["train", "coins-small", "--steps", "3", "--out", "run"]) == 0
    assert main(["diagnose", "run/checkpoint", "--n", "9", "--n-untrained", "0"]) == 0
    out = capsys.readouterr().out
    assert "run on Coins(n_coins=9, n_flips=16)" in out
    assert json.loads((folder / "run" / "checkpoint" / "config.json").read_text())["task"]["name"] == "coins"


OTHER = """
from bayesgeom.training.recipes import RECIPES
SHIPPED, ODD, NONE = RECIPES["mess3-small"], RECIPES["sticky-small"], 3
"""


def test_recipes_that_cannot_be_used_are_left_out_with_the_reason(folder: Path) -> None:
    (folder / "site" / "guest_recipes.py").write_text(OTHER)
    info = folder / "site" / "guest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    offered = {"mess3-small": "SHIPPED", "other": "ODD", "none": "NONE", "absent": "ABSENT"}
    lines = [f"{name} = guest_recipes:{target}" for name, target in offered.items()]
    (info / "entry_points.txt").write_text("\n".join(["[bayesgeom.recipes]", *lines]))
    importlib.invalidate_caches()
    with pytest.warns(UserWarning, match="plug-in") as warned:
        found = plugin_recipes()
    assert list(found) == ["coins-small"]
    message = " ".join(str(own.message) for own in warned)
    for text in (
        "a Recipe of this name exists",
        "its Recipe is named 'sticky-small'",
        "it must be a Recipe, got a int",
        "AttributeError",
    ):
        assert text in message
