"""Every public function that measures, called on something tiny: its result has the whole common face."""

import html
import inspect
import json
import re
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import xarray as xr
from torch import nn

import bayesgeom
from bayesgeom.core.run import RESID_PRE
from bayesgeom.core.text import WIDTH
from bayesgeom.interventions.design import Design
from bayesgeom.models import resolve
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.checkpoint import save_checkpoint, weights_hash
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.monitor.watch import Monitor, Settings
from bayesgeom.report.diagnosis import Diagnosis, load_report
from bayesgeom.report.report import Report
from bayesgeom.report.sentences import opening_of_all
from bayesgeom.report.storage import parts_of
from bayesgeom.report.tables import Headline
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.tasks.hmm import HMM
from tests.dynamics.trainings import a_run
from tests.interventions.worlds import TASK, lively

Result = Report | Diagnosis
FEW = Design("remove", n_random=2, n_matched=2, n_control=3, n_untrained=0, n_fit=51)
LATER = InterventionSite(RESID_PRE, (1,))
CALLS: dict[str, Callable[[Path], Result]] = {  # of functions that need more, or less, than a model with its task and n
    "diagnose": lambda folder: bayesgeom.diagnose(
        stored(folder), n=5, n_untrained=1, probes=["calibration", "key_overlap"]
    ),
    "ablate": lambda folder: bayesgeom.ablate(stored(folder), battery="heads", n=5),
    "paths": lambda folder: bayesgeom.paths(stored(folder), n=5, receivers=["output"]),
    "patch": lambda folder: bayesgeom.patch(stored(folder), *TASK.sample_pair(5, seed=0)),
    "monitor.Monitor.report": lambda _: watched().report(),
    "monitor.Monitor.diagnosis": lambda _: watched().diagnosis(),
    "intervene": lambda folder: bayesgeom.intervene(stored(folder), subspace="random:2", kind=FEW, n=5),
    "intervene in several layers": lambda folder: bayesgeom.intervene(
        stored(folder), sites=[LATER], kind="remove", n=5
    ),
    "intervene by lag": lambda folder: bayesgeom.intervene(
        stored(folder, hmm_model(0)), subspace="random:2", kind=replace(FEW, kind="swap"), lags=(0, 1), n=5
    ),
    "intervene by dose": lambda folder: bayesgeom.intervene(
        stored(folder), subspace="random:2", kind=replace(FEW, kind="add"), doses=(-1, 1), n=5
    ),
    "erase_onwards": lambda folder: bayesgeom.erase_onwards(stored(folder), sites=LATER, n=5),
    "audit": lambda folder: bayesgeom.audit(stored(folder), n=5),
    "gradient_movement": lambda folder: bayesgeom.gradient_movement(a_run(folder, steps=(0, 100)), n=5),
    "training_dynamics": lambda folder: bayesgeom.training_dynamics(a_run(folder, steps=(0, 100)), n=5),
    "length_generalization": lambda folder: bayesgeom.length_generalization(
        [stored(folder, hmm_model(0)), stored(folder, hmm_model(1))], lengths=[7], n=5
    ),
    "check_task": lambda _: bayesgeom.check_task(TASK, n=5),
    "sweep": lambda folder: bayesgeom.sweep(TASK, "n_pairs", [2, 3], stored(folder), n=5),
    "scorecard": lambda _: bayesgeom.scorecard("lstm", "dice", steps=2, rates=1, seeds=1, batch_size=4),
    "compare": lambda folder: bayesgeom.compare([stored(folder), stored(folder / "b", lively(n_layers=1))], n=5),
}
N_MODELS = {  # that are resolved, where that is not one
    "check_task": 0,
    "monitor.Monitor.report": 0,
    "monitor.Monitor.diagnosis": 0,
    "gradient_movement": 2,
    "training_dynamics": 2,
    "length_generalization": 2,
    "scorecard": 0,
    "compare": 2,
}


def stored(folder: Path, model: HookedModel | None = None) -> Path:
    """The directory of a model, which a function has to resolve."""
    own = lively() if model is None else model
    assert own.task is not None
    path, recipe = folder / own.spec.name, {"task": own.task.config()}
    save_checkpoint(path, own.module, own.module.config, recipe=recipe, step=0, card="tiny\n")
    return path


def hmm_model(seed: int) -> HookedModel:
    task = HMM(n_states=2, n_symbols=3, length=5)
    sizes = TransformerConfig(d_vocab=task.d_vocab, n_ctx=41, n_layers=1, n_heads=3, d_model=15, d_mlp=7)
    return HookedModel(sizes.build(seed=seed), name=f"hmm-{seed}", task=task)


def watched() -> Monitor:
    """A monitor that measured at two steps."""
    watch = Monitor(lively().module, TASK, settings=Settings(n=5))
    for step in (0, 1):
        watch(step)
    return watch


def kinds_of(hint: object) -> tuple[object, ...]:
    """The members of a union, or the type itself."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def gives_result(own: Callable[..., Any]) -> bool:
    """Whether a function's annotation says that it returns a report or a diagnosis."""
    try:
        returned = kinds_of(typing.get_type_hints(own).get("return"))
    except NameError:  # an annotation as text, of another library
        returned = (inspect.get_annotations(own).get("return"),)
    return any(isinstance(kind, type) and issubclass(kind, Result) for kind in returned)


def callables_of(prefix: str, names: Iterable[str], home: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions of a module and public methods of its classes; constructors are classmethods, thus left out."""
    for name in names:
        own = getattr(home, name)
        if inspect.isfunction(own):
            yield f"{prefix}{name}", own
        elif inspect.isclass(own):
            methods = inspect.getmembers(own, inspect.isfunction)
            yield from ((f"{prefix}{name}.{key}", method) for key, method in methods if not key.startswith("_"))


def measuring() -> set[str]:
    """Public functions and methods, of the package and of its public modules, that return a report or a diagnosis."""
    modules = {name: own for name in dir(bayesgeom) if inspect.ismodule(own := getattr(bayesgeom, name))}
    assert modules.keys() == {"monitor", "subspaces", "tasks"}
    found = dict(callables_of("", dir(bayesgeom), bayesgeom))
    for name, module in modules.items():
        found |= dict(callables_of(f"{name}.", dir(module), module))
    return {name for name, own in found.items() if name != "load_report" and gives_result(own)}


def plain_call(name: str) -> Callable[[Path], Result]:
    """The call of a public function of a model and n: one that is entered in the package is measured here, too."""
    return lambda folder: getattr(bayesgeom, name)(stored(folder), n=5)


CALLS |= {name: plain_call(name) for name in sorted(measuring() - CALLS.keys())}


def test_every_measuring_function_is_called_by_its_name() -> None:
    assert {name.split()[0] for name in CALLS} == measuring()
    assert CALLS.keys() >= N_MODELS.keys()


def test_methods_that_measure_are_found() -> None:
    class Watch:
        def report(self) -> Report:
            raise NotImplementedError

        def plot(self) -> go.Figure:
            raise NotImplementedError

    found = dict(callables_of("own.", ["Watch"], types.SimpleNamespace(Watch=Watch)))
    assert [name for name, own in found.items() if gives_result(own)] == ["own.Watch.report"]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Results so far, by the name of their call."""
    return {}


@pytest.fixture(scope="module")
def resolutions() -> dict[str, Counter[str]]:
    """How often each call so far resolved each model, by its name and the hash of its weights."""
    return {}


@pytest.fixture(params=CALLS)
def result(
    request: pytest.FixtureRequest,
    results: dict[str, Result],
    resolutions: dict[str, Counter[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Result:
    name = request.param
    if name not in results:
        resolutions[name] = counted_resolutions(monkeypatch)
        results[name] = CALLS[name](tmp_path / "runs")
    return results[name]


def counted_resolutions(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count models made of a module or of a checkpoint, which every name, directory and module passes through."""
    own, found = resolve.of_module, Counter[str]()

    def counted(module: nn.Module, **others: Any) -> Any:
        found[f"{others.get('name')} {weights_hash(module.state_dict())}"] += 1
        return own(module, **others)

    monkeypatch.setattr(resolve, "of_module", counted)
    return found


def reports_of(result: Result) -> Mapping[str, Report]:
    return result.reports if isinstance(result, Diagnosis) else {result.name: result}


def assert_equal(one: Result, other: Result) -> None:
    """Same types, same provenance, every value bit for bit."""
    assert type(one) is type(other) and reports_of(one).keys() == reports_of(other).keys()
    for name, own in reports_of(one).items():
        (scalars, arrays), (others, other_arrays) = parts_of(own), parts_of(reports_of(other)[name])
        assert type(own) is type(reports_of(other)[name]) and arrays.keys() == other_arrays.keys()
        np.testing.assert_equal(others, scalars)
        for key, values in arrays.items():
            np.testing.assert_array_equal(other_arrays[key], values, err_msg=f"{name}.{key}", strict=True)
        assert json.dumps(own.provenance) == json.dumps(reports_of(other)[name].provenance)


def test_every_model_is_resolved_once(
    request: pytest.FixtureRequest, result: Result, resolutions: dict[str, Counter[str]]
) -> None:
    found = resolutions[name := request.node.callspec.params["result"]]
    assert set(found.values()) <= {1}, found
    assert len(found) >= N_MODELS.get(name, 1), found


def test_summary_and_repr_are_short(result: Result) -> None:
    lines = result.summary().splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= WIDTH and str(result) == result.summary()
    assert len(repr(result)) < 150 and "\n" not in repr(result)
    headlines = [own[1] if isinstance(own, tuple) else own for own in result.headlines()]
    assert headlines and all(isinstance(own, Headline) and own.label for own in headlines)
    for own in (report for report in reports_of(result).values() if report.name != "inside"):
        assert str(own.headline()) in map(str, own.headlines())
        assert own.panels() and own.about and "Fields" not in own.about


def test_it_opens_with_its_answer(result: Result) -> None:
    known = result.answer if isinstance(result, Diagnosis) else None
    answer = str(known or opening_of_all(reports_of(result))[0])
    assert answer.endswith(".") and not {"nan", "None", "–"} & set(re.findall(r"[\w–]+", answer)), answer
    assert answer in html.unescape(result.to_html()) and answer in " ".join(result.summary().split())


def test_it_is_a_table_a_dataset_and_a_figure(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    table, data = result.to_pandas(), result.to_xarray()
    assert isinstance(table, pd.DataFrame) and len(table) > 0
    assert table[["model", "checkpoint", "task"]].notna().all(axis=None)
    nodes = [data] if isinstance(data, xr.Dataset) else [node.to_dataset() for node in data.children.values()]
    assert len(nodes) == len(reports_of(result)) and all(len(node.data_vars) > 0 for node in nodes)
    for node in nodes:
        assert set(node.dims) <= set(node.coords), "every axis has coordinates"
        assert all(variable.attrs["units"] for variable in node.data_vars.values())
    assert json.dumps(result.to_dict(), allow_nan=False)
    figure = result.plot()
    assert isinstance(figure, go.Figure) and len(figure.data) > 0
    monkeypatch.setattr(type(next(iter(reports_of(result).values()))), "plot", lambda _: figure)  # drawn once
    shown = result._repr_html_()
    assert shown.startswith("<pre>") and "Plotly.newPlot(" in shown


def test_it_is_saved_loaded_equal_and_a_page_of_its_own(result: Result, tmp_path: Path) -> None:
    result.save(str(tmp_path / "saved"))  # elsewhere paths are given
    loaded = load_report(str(tmp_path / "saved"))
    assert_equal(loaded, result)
    assert_equal(type(result).load(tmp_path / "saved"), result)
    assert loaded.summary() == result.summary()
    text = result.to_html(tmp_path / "page.html")
    assert text.startswith("<!doctype html>") and (tmp_path / "page.html").read_text(encoding="utf-8") == text
    assert (tmp_path / "saved" / "report.html").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("result", ["diagnose", "intervene"], indirect=True)  # a diagnosis and a report
def test_paths_are_text_or_path(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "saved")
    assert_equal(load_report(tmp_path / "saved"), result)
    assert_equal(type(result).load(str(tmp_path / "saved")), result)


def test_it_says_where_it_comes_from(result: Result) -> None:
    source: Mapping[str, Any] = result.provenance
    assert {"model", "task_label", "arguments", "versions"} <= source.keys()
    assert "task" in source or source["task_label"] in ("given pairs", "worlds"), "there may be none, or several"
    assert source["model"]["name"] and source["model"]["architecture"] and source["task_label"]
    assert {"torch", "bayesgeom"} <= source["versions"].keys()
    arguments = source["arguments"]
    if source["task_label"] == "worlds":  # a scorecard scores on sequences of its own, and has a hash for each cell
        assert arguments["steps"] == 2 and all(result.weights)  # type: ignore[union-attr]
        return
    assert (arguments["n"], arguments["seed"]) == (5, 0)
    if source["model"]["architecture"] != "none":
        hashes = source.get("weights") or {"model": source["model"]["weights_hash"]}
        assert hashes and all(hashes.values())
    for own in reports_of(result).values():
        assert own.provenance == source
