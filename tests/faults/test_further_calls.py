"""Public classes and functions that came after the first campaign refuse other types, on one line."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesgeom
from bayesgeom import monitor, tasks
from bayesgeom.cli import COMMANDS, main
from bayesgeom.core.errors import InvalidArgument
from benchmarks import fault_calls, fault_further_calls
from benchmarks.fault_files import RECIPE, TASK

MANY_DIGITS = "9" * 5000


def made(kind: Any, /, **given: Any) -> Any:
    """An instance whose `__init__` is not called, because the tests' shape checks would refuse other types there."""
    instance = object.__new__(kind)
    vars(instance).update({own.name: own.default for own in fields(kind) if own.default is not MISSING} | given)
    instance.__post_init__()
    return instance


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: made(bayesgeom.executors.Batch, executor=[]), r"executor has no submit\(fn, \*args\), got \[\]"),
        (lambda: batch(folder=5), r"folder must be text or a path, got 5"),
        (lambda: batch(threads=0), r"threads must be at least 1, got 0"),
        (lambda: made(tasks.Prompts, texts=5), r"texts must be .*, got 5"),
        (lambda: made(tasks.LabeledEvidence, k_max=float("nan")), r"k_max must be an integer, got nan"),
        (
            lambda: made(tasks.LabeledEvidence, query=torch.zeros(2, 3)),
            r"query must be 'latent' or 'next', got a Tensor",
        ),
        (
            lambda: made(tasks.Process, transition_tensors=[[[1.0]]], initial={}),
            r"initial must be numbers nested 1 deep",
        ),
        (lambda: made(monitor.Thresholds, kl_bits="x"), r"kl_bits must be a number, got 'x'"),
        (lambda: made(monitor.Event, **EVENT | {"step": "x"}), r"step must be an integer, got 'x'"),
        (lambda: bayesgeom.load("mess3-small", tokenizer="x" * 300), r"tokenizer must be a path that the system can"),
    ],
)
def test_another_type_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^[^\n]*{message}[^\n]*$"):
        call()


EVENT: dict[str, Any] = {"step": 3, "kind": "reached", "metric": "kl_bits", "value": 0.1, "threshold": 0.2}


def batch(**given: Any) -> bayesgeom.executors.Batch:
    return made(bayesgeom.executors.Batch, executor=fault_further_calls.AtOnce(), **given)


@pytest.mark.parametrize("line", ["intervene tiny --layers", "length tiny --to", "diagnose tiny --on"])
def test_thousands_of_digits_are_one_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*line.split(), MANY_DIGITS]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.exhaustive
def test_the_campaign_calls_everything_public(tmp_path: Path) -> None:
    """A new public name or command has to enter the campaign, which found 893 faults in those that had not."""
    tried = {name.partition(",")[0].removeprefix("tasks.").partition(" ")[0] for name in fault_calls.sound(tmp_path)}
    public = {name for name in dir(bayesgeom) if callable(getattr(bayesgeom, name))}
    assert public - tried <= {"BayesGeomError", "Diagnosis", "checkpoints", "publish"}, public - tried
    assert {f"monitor.{name}" for name in dir(monitor)} <= tried
    assert COMMANDS.keys() - {"selftest"} == {line[0] for line, _ in fault_calls.arguments(tmp_path).values()}
    assert inspect.signature(bayesgeom.checkpoints).parameters == {}, "then it has to be tried, too"
    assert RECIPE.task == TASK
