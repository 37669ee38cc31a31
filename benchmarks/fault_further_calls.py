"""Further calls for the campaign: captures, engines, options of `load`, tasks in text, and settings of a monitor."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import bayesgeom
from bayesgeom import executors, monitor, tasks
from bayesgeom.diagnosis.recording import Selection
from bayesgeom.executors import Executor
from bayesgeom.models.base import Model
from bayesgeom.monitor import Event, Response, Settings, Thresholds
from benchmarks.fault_files import TASK

Call = tuple[Callable[..., Any], dict[str, Any]]


def opened(name: str, options: Any) -> None:
    """Connect to an engine and disconnect again."""
    with executors.connect(name, options):
        pass


def batch(executor: Executor, folder: str | Path, threads: int) -> None:
    """A batch, whose folder may be text."""
    executors.Batch(executor=executor, folder=folder, threads=threads)  # type: ignore[arg-type]


def further(folder: Path, model: Model, held: Path) -> dict[str, Call]:
    """A function and arguments that it takes, by the name of the call."""
    options = {
        "tokenizer": None, "batch_size": 3, "attn_implementation": None, "max_memory": None, "token": None,
        "quantization_config": None, "local_files_only": None, "server_key": None,
    }  # fmt: skip
    several = {"n": 4, "seed": 0, "n_untrained": 0}
    return {
        "load, options": (bayesgeom.load, {"name": held, **options}),
        "capture": (
            bayesgeom.capture,
            {"model": model, "task": TASK, "out": folder / "captured", "sites": ["k"], **several},
        ),
        "evidence_response": (
            bayesgeom.evidence_response,
            {"model": model, "task": TASK, "ages": (0, 1), "single": False, "n": 16, "seed": 0},
        ),
        **of_circuits(model),
        **of_monitors(model),
        "wrap": (
            bayesgeom.wrap,
            {
                "net": model.module,
                "blocks": "blocks",
                "attn": "attn",
                "mlp": "mlp",
                "n_heads": 0,
                "n_ctx": model.spec.n_ctx,
                "norms": None,
                "qkv": None,
                "out": None,
                "forward": None,
                "rebuild": None,
                "tokenizer": None,
            },
        ),
        "Selection": (Selection, {"sites": ["k"], "layers": [0], "dtype": "float16"}),
        "executors.Batch": (batch, {"executor": AtOnce(), "folder": folder / "jobs", "threads": 1}),
        "executors.connect": (opened, {"name": "local:1", "options": None}),
        "monitor.Settings": (Settings, {"n": 4, "seed": 0, "untrained": False, "out": None}),
        "monitor.Response": (
            Response,
            {"action": "warn", "on": ("key_orthogonality",), "optimizer": None, "folder": None, "most": 3},
        ),
        "monitor.Thresholds": (
            Thresholds,
            {"key_orthogonality": 0.9, "coverage": 0.8, "separation": 0.7, "kl_bits": 0.01},
        ),
        "monitor.Event": (
            Event,
            {"step": 1, "kind": "reached", "metric": "kl_bits", "value": 0.1, "threshold": 0.2, "chance": 0.3},
        ),
        **of_tasks(),
    }


def of_monitors(model: Model) -> dict[str, Call]:
    """A monitor, by itself and in a trainer."""
    return {
        "monitor.trainer_callback": (
            monitor.trainer_callback,
            {"task": TASK, "every": 5, "settings": Settings(), "thresholds": Thresholds(), "response": Response()},
        ),
        "monitor.Monitor, settings": (
            lambda **own: monitor.Monitor(model.module, TASK, **own),
            {"every": 10, "settings": Settings(), "thresholds": Thresholds(), "response": Response()},
        ),
    }


def of_circuits(model: Model) -> dict[str, Call]:
    """The audit, and the parts of a model and their edges."""
    clean, corrupted = TASK.sample_pair(2, seed=0)
    return {
        "audit": (
            bayesgeom.audit,
            {
                "model": model,
                "task": TASK,
                "n": 8,
                "n_positions": 1,
                "parts": ("response",),
                "predictors": None,
                "seed": 0,
            },
        ),
        "contributions": (bayesgeom.contributions, {"model": model, "task": TASK, "n": 4, "seed": 0}),
        "paths": (
            bayesgeom.paths,
            {"model": model, "task": TASK, "senders": None, "receivers": ("output",), "n": 4, "seed": 0},
        ),
        "patch": (
            bayesgeom.patch,
            {"model": model, "clean": clean, "corrupted": corrupted, "site": "resid_pre", "answers": None, "seed": 0},
        ),
    }


def of_tasks() -> dict[str, Call]:
    """Tasks in text, and processes."""
    return {
        "tasks.Prompts": (
            tasks.Prompts,
            {"texts": ("a b", "c d"), "domain": "", "last": 1, "bos": True, "per_quintile": 0, "chat": False},
        ),
        "tasks.LabeledEvidence": (
            tasks.LabeledEvidence,
            {
                "k_max": 4,
                "ks": (),
                "reliability": 0.9,
                "query": "next",
                "control": "none",
                "n_words": 30,
                "words": (),
                "labels": (),
                "colon": ":",
                "separator": ",",
                "bos": True,
            },
        ),
        "tasks.InContext": (
            tasks.InContext,
            {"task": TASK, "symbols": (), "separator": "", "bos": True, "chat": False},
        ),
        "tasks.Process": (
            tasks.Process,
            {
                "transition_tensors": [[[0.5, 0.1], [0.1, 0.2]], [[0.1, 0.3], [0.4, 0.3]]],
                "initial": (),
                "length": 5,
                "generalized": False,
            },
        ),
    }


class AtOnce:
    """An executor that runs at once."""

    def submit(self, function: Callable[..., Any], /, *given: Any) -> Any:
        return contextlib.nullcontext(function(*given))


HINTED: Mapping[str, Any] = {
    "executors.connect": executors.connect.__wrapped__,  # type: ignore[attr-defined]
    "monitor.Monitor, settings": monitor.Monitor,
}
