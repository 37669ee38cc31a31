"""Functions of a run as probes: what they see, what is reported, and one sentence for each wrong one."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, MissingSite
from bayesgeom.core.run import PATTERN, RESID_POST, Run
from bayesgeom.executors import connect
from bayesgeom.measurements.functions import FunctionReport
from bayesgeom.measurements.key_overlap import KeyOverlap
from bayesgeom.tasks.base import Branch, derived_seed
from tests.diagnosis.test_diagnose import TASK, Seen, lively


def first_token(run: Run) -> torch.Tensor:
    """Attention on the first token."""
    return run.at("pattern")[..., 0].mean(dim=-1).movedim(1, 0)  # sequence layer head


def several(run: Run) -> dict[str, Any]:
    return {"kl": run.behavior.kl_bits.mean(axis=1), "layers": run.spec.n_layers, "norms": [1.5, float("nan")]}


def measured(*probes: Any, **known: Any) -> bayesgeom.Diagnosis:
    return bayesgeom.diagnose(lively(), probes=probes, **{"n": 23, "n_untrained": 0, **known})


def report_of(function: Callable[[Run], Any], **known: Any) -> FunctionReport:
    report = measured(function, **known)[function.__name__]
    assert isinstance(report, FunctionReport)
    return report


def test_values_of_sequences_are_averaged_with_an_interval_and_the_same_of_untrained_networks() -> None:
    model = lively()
    found = report_of(first_token, n_untrained=2).of()
    run = model.run(TASK.stream(23, seed=derived_seed(0, Branch.TRIALS)), record=[PATTERN], n_recorded=23)
    np.testing.assert_allclose(found.value, first_token(run).double().mean(dim=0).numpy(), rtol=1e-6)
    assert found.value.shape == (2, 3) and (found.low < found.value).all() and (found.value < found.high).all()
    assert found.baselines[0].name == "untrained networks" and found.baselines[0].value.shape == (2, 3)


def test_a_dict_gives_each_array_back_in_its_shape() -> None:
    report = report_of(several)
    assert report.outputs == ("several.kl", "several.layers", "several.norms[0]", "several.norms[1]")
    assert not np.isnan(report.of("kl").ends[0]) and np.isnan(report.of("layers").ends[0])
    assert float(report.of("layers")) == 2 and np.isnan(report.of("norms").value[1])
    assert list(report.to_pandas()["output"]) == list(report.outputs)
    with pytest.raises(InvalidArgument, match=r"nothing named 'x'\. It returned: 'kl', 'layers', 'norms'"):
        report.of("x")


def test_layers_and_heads_are_columns_and_the_largest_of_many_entries_is_shown() -> None:
    report = report_of(first_token)
    rows = report.to_pandas()
    assert list(zip(rows["layer"], rows["head"], strict=True)) == list(np.ndindex(2, 3))
    assert report.outputs[4] == "first_token[L1H1]"
    figure = report.panels()[0].figure
    assert figure.layout.xaxis.title.text.startswith("head") and figure.layout.yaxis.title.text == "layer"
    *_, last = report.headlines()
    assert len(report.headlines()) == 4 and last.value == report.result.value.max()
    assert report_of(several).to_pandas()["head"].isna().all()


def test_a_missing_value_has_a_reason() -> None:
    assert [str(code) for code in report_of(several).to_pandas()["reason"]][-1] == "missing"
    assert list(report_of(returning(float("nan"))).to_pandas()["reason"]) == ["missing"]


@pytest.mark.parametrize("function", [first_token, several])
def test_it_is_saved_drawn_and_loaded_as_any_report(function: Callable[[Run], Any], tmp_path: Path) -> None:
    diagnosis = measured(function, "calibration", n_untrained=1)
    diagnosis.save(tmp_path / "all")
    restored = bayesgeom.Diagnosis.load(tmp_path / "all")
    assert list(restored) == list(diagnosis) and restored[function.__name__] == diagnosis[function.__name__]
    diagnosis[function.__name__].save(tmp_path / "one")
    assert bayesgeom.load_report(tmp_path / "one") == diagnosis[function.__name__]
    assert len(diagnosis[function.__name__].plot().data) > 0
    assert function.__name__ in (tmp_path / "all" / "report.html").read_text(encoding="utf-8")


def test_sites_are_recorded_however_the_run_is_asked_and_no_others() -> None:
    seen = list[set[str]]()

    def both(run: Run) -> float:
        seen.append({site.name for site in run.recorded})
        return float(
            run.recorded[PATTERN].mean()
            + run.vectors("z", 0).mean()
            + run.at(RESID_POST).mean()
            + run.at("logit_lens").mean()
        )

    measured(both)
    assert seen[-1] == {"pattern", "z", "resid_post", "logit_lens"}


def test_a_probe_that_fails_costs_its_own_report() -> None:
    class Fails(Seen):
        def measure(self, run: Run, untrained: Any = ()) -> Any:
            raise ValueError("no such luck")

    def late(run: Run) -> float:
        return 1.0 if run.n < 20 else 1 / 0

    diagnosis = measured(late, Fails(), several, "calibration")
    assert set(diagnosis) == {"several", "calibration"} and set(diagnosis.skipped) == {"late", "seen"}
    assert "ValueError: no such luck" in diagnosis.skipped["seen"]
    assert "ZeroDivisionError" in diagnosis.skipped["late"]
    with pytest.raises(InvalidArgument, match="ZeroDivisionError"):
        measured(late)


def grows(run: Run) -> Any:
    return np.zeros((run.n, run.n))


def changes(run: Run) -> Any:
    return {f"{run.n}": 1.0}


def calibration(run: Run) -> float:
    return 1.0


def returning(value: Any) -> Callable[[Run], Any]:
    def own(run: Run) -> Any:
        return value(run) if callable(value) else value

    return own


@pytest.mark.parametrize(
    ("probes", "says"),
    [
        ([lambda run: 1.0], "holds a lambda, which has no name"),
        ([functools.partial(returning(1.0))], "holds a partial, which has no name"),
        ([KeyOverlap], r"holds the class KeyOverlap: pass an instance, KeyOverlap\(\)"),
        ([calibration], "'calibration' has the name of one of bayesgeom's reports"),
        ([returning(1.0), returning(2.0)], "two probes are named 'own'"),
        ([3], r"probes must be .*str.*Measurement"),
        ([returning("x")], "returned a str without numbers. Return a number"),
        ([returning(None)], "returned a NoneType without numbers. Return"),
        ([returning({})], "returned an empty dict"),
        ([returning({3: 1.0})], "the key 3: names must be"),
        ([returning([[1.0], [2.0, 3.0]])], "returned a list without numbers"),
        ([returning(np.zeros((0, 3)))], "returned a ndarray without numbers"),
        ([returning(float("inf"))], "an infinite number: return NaN"),
        ([returning(1j)], "returned a complex without"),
        ([returning(np.zeros((71, 73)))], "returns 5,183 numbers, more than 5,000"),
        ([grows], "only a first axis may grow"),
        ([changes], "returns other names for other sequences"),
        ([returning(lambda run: run.at("patern"))], "Perhaps you meant 'pattern'"),
        ([returning(lambda run: run.trials.nothing)], "'Trials' object has no attribute 'nothing'"),
    ],
)
def test_a_wrong_function_is_refused_before_anything_is_measured(probes: list[Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        measured(*probes, n=10**7)


def test_a_site_that_the_model_lacks_is_named_before_anything_is_measured() -> None:
    with pytest.raises(MissingSite, match=r"function 'own' requires site 'state', which tiny does not provide"):
        measured(returning(lambda run: run.at("state")), n=10**7)


def test_models_are_compared_by_a_function() -> None:
    report = bayesgeom.compare([lively(), lively(name="other")], probes=[first_token], n=23)
    assert any("first_token[L0H1]" in row for row in report.rows)
    np.testing.assert_allclose(report.difference.value[np.isfinite(report.difference.value)], 0, atol=1e-9)


def test_an_executor_takes_no_functions() -> None:
    with connect("local:1") as executor, pytest.raises(InvalidArgument, match="executor= takes probes by their na"):
        bayesgeom.diagnose("bijection-v20", probes=first_token, n=23, executor=executor)
