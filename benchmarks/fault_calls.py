"""Invalid calls, generated from the signatures of public functions, and invalid arguments of the command line."""

import contextlib
import inspect
import io
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beartype.door import is_bearable

import bayesgeom
from bayesgeom import ablations, subspaces
from bayesgeom.cli import main
from bayesgeom.core.plugins import discover
from bayesgeom.interventions.design import Design
from bayesgeom.models.base import Model
from bayesgeom.models.config import config_from_dict
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.tasks.base import WindTunnel
from benchmarks.fault_files import RECIPE, ROTARY, TASK, checkpoint, report, training
from benchmarks.fault_further_calls import HINTED as FURTHER_HINTED
from benchmarks.fault_further_calls import further
from benchmarks.faults import Accepted, Case

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**64, 10**30, 1.5, float("nan"), float("inf"), 1j, "", "x", "a\0b", "x" * 5000, "\ud800", b"x",
    [], [1], ["x"], [None], (), {}, {"x": 1}, {1, 2}, object(), int, len, ..., Path("nowhere"), Path("x" * 5000),
    torch.tensor(3), np.uint32(4), torch.tensor(True), torch.zeros(2, 3), torch.zeros(0), np.zeros((2, 2)),
    np.array("x"),
)  # fmt: skip
VECTORS = torch.eye(15)[:, :2]
SLOW = {"steps", "length", "every", "seeds"}  # as large as they are allowed to be, they only take long


class Odd:
    """An object that answers nothing."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


Call = tuple[Callable[..., Any], dict[str, Any]]


def sound(folder: Path) -> dict[str, Call]:
    """A function and arguments that it takes, by the name of the call; each argument is then replaced by odd values."""
    model = bayesgeom.as_model(RECIPE.model_config().build(seed=0))
    held, run, saved = checkpoint(folder / "held"), training(folder / "run"), report(folder / "report")
    calls = measuring(model, run) | loading(model, held, saved) | building(folder, model, saved)
    calls |= parts(model) | further(folder, model, held)
    for name in ("every_attention", "every_head", "every_layer", "every_mlp", "everything"):
        calls[name] = (getattr(ablations, name), {"model": model})
    for name, kind in discover("bayesgeom.tasks", WindTunnel).items():  # type: ignore[type-abstract]
        defaults = {own.name: own.default for own in inspect.signature(kind).parameters.values()}
        given = {key: value for key, value in defaults.items() if value is not inspect.Parameter.empty}
        if len(given) == len(defaults):
            calls[f"task {name}"] = (kind, given)
    return calls


def measuring(model: Model, run: Path) -> dict[str, Call]:
    """Functions that measure a model or a training."""
    few = Design("remove", n_random=2, n_matched=2, n_control=3, n_untrained=0, n_fit=51)
    on: dict[str, Any] = {"model": model, "task": TASK, "n": 4, "seed": 0}
    return {
        "diagnose": (bayesgeom.diagnose, {**on, "probes": ["calibration"], "n_untrained": 0, "ablations": False}),
        "ablate": (bayesgeom.ablate, {**on, "battery": "mlps", "mode": "mean", "out": None}),
        "attribution_preview": (
            ablations.attribution_preview,
            {**on, "battery": "mlps", "mode": "mean", "exact": None},
        ),
        "intervene": (bayesgeom.intervene, {**on, "subspace": "random:2", "kind": few, "sites": None}),
        "erase_onwards": (bayesgeom.erase_onwards, {**on, "quantity": "entropy", "sites": None, "oblique": True}),
        "fit_subspace": (
            bayesgeom.fit_subspace,
            {"model": model, "task": TASK, "subspace": "random:2", "sites": None, "seed": 0},
        ),
        "relabeling_invariance": (bayesgeom.relabeling_invariance, on),
        "gradient_laws": (
            bayesgeom.gradient_laws,
            {"model": model, "trials_or_task": TASK, "targets": "sampled", "n": 4, "seed": 0},
        ),
        "gradient_movement": (
            bayesgeom.gradient_movement,
            {"run": run, "targets": "sampled", "n": 4, "seed": 0, "device": "cpu"},
        ),
        "training_dynamics": (
            lambda run, **others: bayesgeom.training_dynamics(*[run], **others),
            {"run": run, "n": 4, "seed": 0, "device": "cpu", "maps_at": None, "out": None},
        ),
        **comparing(on),
    }


def comparing(on: dict[str, Any]) -> dict[str, Call]:
    """Functions that measure several models, lengths or parameters."""
    without = RECIPE.model_config().to_dict() | {"positions": "none"}
    endless = bayesgeom.as_model(config_from_dict(without).build(seed=0))
    return {
        "length_generalization": (
            bayesgeom.length_generalization,
            {**on, "model": endless, "lengths": [4], "threshold_bits": 0.1, "top_attention_off": 0},
        ),
        "sweep": (
            bayesgeom.sweep,
            {**on, "vary": "n_pairs", "values": [2, 3], "threshold_bits": 0.1},
        ),
        "compare": (
            bayesgeom.compare,
            {"models": [on["model"]] * 2, "task": TASK, "n": 12, "seed": 0, "probes": "calibration"},
        ),
    }


def loading(model: Model, held: Path, saved: Path) -> dict[str, Call]:
    """Functions that load a model or a report, or adapt one."""
    return {
        "load": (
            bayesgeom.load,
            {
                "name": held,
                "device": "cpu",
                "revision": None,
                "dtype": None,
                "device_map": None,
                "trust_remote_code": False,
                "memory_gib": None,
            },
        ),
        "load_report": (bayesgeom.load_report, {"path": saved}),
        "as_model": (bayesgeom.as_model, {"model": model.module, "tokenizer": None}),
    }


def building(folder: Path, model: Model, saved: Path) -> dict[str, Call]:
    """Designs, configs, tasks, and what writes a diagnosis."""
    diagnosis = bayesgeom.load_report(saved)
    sizes = {"d_vocab": 11, "n_ctx": 7, "n_layers": 1, "n_heads": 3, "d_model": 15, "d_mlp": 7}
    config = bayesgeom.TransformerConfig(**sizes)
    return {
        "Design": (
            Design,
            {
                "kind": "swap",
                "donors": "auto",
                "n_random": 2,
                "n_matched": 2,
                "n_control": 3,
                "n_untrained": 0,
                "n_fit": 51,
            },
        ),
        "InterventionSite": (bayesgeom.InterventionSite, {"layers": [0], "positions": None, "score_after": False}),
        "Subspace": (subspaces.Subspace, {"name": "own", "basis": VECTORS, "dual": None}),
        "Transformer": (Transformer, {"config": config, "seed": 0, "attention": "auto"}),
        "TransformerConfig": (
            bayesgeom.TransformerConfig,
            {**sizes, "norm": "rmsnorm", "positions": "learned", "tied": True, "top_attention_off": 0},
        ),
        "config.build": (config.build, {"seed": 0}),
        "task.sample": (TASK.sample, {"n": 2, "seed": 0, "device": "cpu"}),
        "task.stream": (lambda **own: next(iter(TASK.stream(**own))), {"n": 2, "seed": 0, "device": "cpu"}),
        "diagnosis.save": (diagnosis.save, {"path": folder / "again"}),
        "diagnosis.to_html": (diagnosis.to_html, {"path": folder / "page.html"}),
        "monitor.Monitor": (
            lambda module, task, every: bayesgeom.monitor.Monitor(module, task, every=every),
            {"module": model.module, "task": TASK, "every": 10},
        ),
    }


def parts(model: Model) -> dict[str, Call]:
    """Components, ablations and subspaces."""
    return {
        "Component": (ablations.Component, {"layer": 0, "kind": "head", "head": 0}),
        "Ablation": (
            ablations.Ablation,
            {"components": (ablations.Component(0, "head", 0),), "mode": None, "name": None},
        ),
        "cumulative": (ablations.cumulative, {"order": [ablations.Component(0, "head", 0)]}),
        "top_attention_off": (ablations.top_attention_off, {"model": model, "m": 1}),
        "every_pair_of_heads": (ablations.every_pair_of_heads, {"model": model, "scope": "layer"}),
        "basis": (subspaces.basis, {"vectors": VECTORS, "name": "own"}),
        "covariance": (subspaces.covariance, {"quantity": "entropy", "given": ()}),
        "decoder": (subspaces.decoder, {"quantity": "entropy"}),
        "entropy_axis": (subspaces.entropy_axis, {"by": "readout"}),
        "fit_from_text": (subspaces.fit_from_text, {"text": "random:2"}),
        "frame": (subspaces.frame, {"kind": "embedding", "head": None, "layer": None, "tokens": None}),
        "leace": (subspaces.leace, {"quantity": "entropy", "given": ()}),
        "random": (subspaces.random, {"r": 2}),
        "top_jacobian": (subspaces.top_jacobian, {"r": 2}),
        "trained_swap": (subspaces.trained_swap, {"rank": 2, "quantity": "belief", "steps": 2}),
    }


HINTED: dict[str, Any] = {
    **FURTHER_HINTED,
    "training_dynamics": bayesgeom.training_dynamics,
    "task.stream": TASK.stream,
}


def hints(name: str, function: Callable[..., Any]) -> Mapping[str, Any]:
    """The annotations of a call's parameters."""
    own = HINTED.get(name, function)
    return typing.get_type_hints(own.__init__ if inspect.isclass(own) else own)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value fits an annotation, where True is no number and text of no use is none."""
    if isinstance(value, np.integer) or (isinstance(value, torch.Tensor) and not value.ndim):
        value = value.item()  # a number of another library is that number
    if isinstance(value, bool) and not is_bearable(Odd(), hint):
        kinds = typing.get_args(hint) or (hint,)
        return bool in kinds or object in kinds or Any in kinds
    if type(value) is int and float in (hint, *typing.get_args(hint)):
        return True
    try:
        return bool(is_bearable(value, hint) or (isinstance(value, list) and is_bearable(tuple(value), hint)))
    except TypeError:  # beartype asks for the length of a tensor that has none
        return False


def calls(folder: Path) -> Iterator[Case]:
    """Every parameter of every call replaced by every odd value."""
    for name, (function, given) in sound(folder).items():
        known = hints(name, function)
        for parameter in given:
            hint = known.get(parameter, Any)
            for value in VALUES:
                is_fit = hint is Any or fits(value, hint)
                if is_fit and parameter in SLOW and isinstance(value, int) and value > 100:
                    continue

                def act(
                    function: Callable[..., Any] = function,
                    given: dict[str, Any] = given,
                    parameter: str = parameter,
                    value: Any = value,
                    is_fit: bool = is_fit,
                ) -> None:
                    with contextlib.chdir(folder):
                        found = function(**{**given, parameter: value})
                    if not is_fit:
                        raise Accepted(f"{type(value).__name__} for {parameter}")
                    repr(found)

                yield Case(f"{name}({parameter}={value!r:.40})", act)


TEXTS = (
    "", "x", "-1", "0", "1.5", "nan", "inf", "1e9", str(2**64), "9" * 5000, "None", "[]", "a\0b", "\ud800", "🙂",
    "x" * 5000, "/dev/null", "/", "meta", "cuda:99", "hmm:length=x", "bijection:n_values=1e9", "random:0", "a,b", "--n",
    "4", "..",
)  # fmt: skip


ON_MODEL = ("", "--device", "--dtype", "--device-map", "--revision", "--memory-gib", "--task", "--n", "--seed", "--out")
FEW = ("--n", "4")
Line = tuple[list[str], tuple[str, ...]]


def arguments(folder: Path) -> dict[str, Line]:
    """A sound command line of every command, and the options to try; "" is the positional argument."""
    held, run, saved = str(checkpoint(folder / "held")), str(training(folder / "run")), str(report(folder / "report"))
    rotary = str(checkpoint(folder / "rotary", recipe=ROTARY))
    return model_lines(held, rotary) | training_lines(folder, run, rotary) | other_lines(folder, held, saved)


def model_lines(held: str, rotary: str) -> dict[str, Line]:
    """Commands that measure a model."""
    return {
        "diagnose": (
            ["diagnose", held, *FEW, "--n-untrained", "0", "--probes", "calibration"],
            (*ON_MODEL, "--domain", "--n-untrained", "--probes"),
        ),
        "ablate": (["ablate", held, *FEW, "--battery", "mlps"], (*ON_MODEL, "--battery", "--mode", "--method")),
        "intervene": (
            ["intervene", held, *FEW, "--subspace", "random:2", "--kind", "remove", "--controls", "1"],
            (*ON_MODEL, "--subspace", "--kind", "--donors", "--positions", "--controls", "--layers", "--site"),
        ),
        "relabel": (["relabel", held, *FEW], ON_MODEL),
        "response": (["response", held, *FEW], ON_MODEL),
        "view": (["view", held, "--seed", "1"], tuple(name for name in ON_MODEL if name != "--n")),
        "gradients": (["gradients", held, *FEW], (*ON_MODEL, "--targets")),
        "length": (
            ["length", rotary, *FEW, "--to", "4"],
            (
                "",
                "--to",
                "--task",
                "--n",
                "--seed",
                "--threshold",
                "--top-attention-off",
                "--out",
            ),
        ),
        "sweep": (
            ["sweep", "bijection:n_values=5", "--vary", "n_pairs=2,3", *FEW, "--checkpoint", held],
            ("", "--vary", "--checkpoint", "--n", "--seed", "--threshold", "--out"),
        ),
        "compare": (["compare", held, held, *FEW], ("", "--task", "--n", "--seed", "--out")),
    }


def training_lines(folder: Path, run: str, rotary: str) -> dict[str, Line]:
    """Commands on trainings, comparisons and checkpoints."""
    return {
        "dynamics": (["dynamics", run, *FEW], ("", "--n", "--seed", "--maps-at", "--device", "--from-report", "--out")),
        "export": (["export", rotary, "--out", str(folder / "exported")], ("", "--out", "--to")),
        "pack": (["pack", run, str(folder / "packed")], ("", "--keep", "--dtype")),
        "checkpoints": (["checkpoints"], ("--seal",)),
        "train": (
            ["train", "no-such-recipe"],
            ("--out", "--resume", "--set", "--steps", "--seed", "--keep", "--device", "--precision"),
        ),
    }


def other_lines(folder: Path, held: str, saved: str) -> dict[str, Line]:
    """Reports, captures, and options for models and engines elsewhere."""
    return {
        "diagnose a report": (["diagnose", saved], ("",)),
        "capture": (
            ["capture", held, *FEW, "--out", str(folder / "captured")],
            ("", "--sites", "--layers", "--save-dtype", "--n", "--n-untrained", "--out"),
        ),
        "diagnose elsewhere": (
            ["diagnose", held, *FEW, "--n-untrained", "0", "--probes", "calibration"],
            (
                "--tokenizer",
                "--batch-size",
                "--attn-implementation",
                "--max-memory",
                "--quantization-config",
                "--on",
                "--on-options",
                "--jobs",
            ),
        ),
    }


def warm_up(folder: Path) -> None:
    """Run every sound call and command once, so that no time limit ends a library's import in the middle."""
    for function, given in sound(folder).values():
        with contextlib.suppress(bayesgeom.BayesGeomError):
            function(**given)
    for line, _ in arguments(folder).values():
        with contextlib.suppress(bayesgeom.BayesGeomError, Accepted):
            ran(line, folder)


def changed(given: list[str], option: str, text: str) -> list[str]:
    """A command line with another value of one option, or of its first positional argument."""
    if not option:
        return [given[0], text, *given[2:]]
    if option in given:
        at = given.index(option)
        return [*given[: at + 1], text, *given[at + 2 :]]
    return [*given, f"{option}={text}"]


def command_line(folder: Path) -> Iterator[Case]:
    """Every option of every command with every odd text."""
    for name, (given, options) in arguments(folder).items():
        for option in options:
            for text in TEXTS:
                line = changed(given, option, text)

                def act(line: list[str] = line) -> None:
                    ran(line, folder)

                yield Case(f"{name} {option or 'positional'} {text!r:.40}", act)


def ran(line: list[str], folder: Path) -> None:
    """Run a command line. **Raises** `Accepted` where its failure is not one line on standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(folder):
        status = main(line)
    lines = [own for own in err.getvalue().splitlines() if own.strip() and "\r" not in own]
    if "Traceback" in err.getvalue() or status not in (0, 2):
        raise Accepted(f"status {status}: {lines[-1:]}")
    if status == 2:
        if not lines or not lines[-1].startswith("bayesgeom: "):
            raise Accepted(f"status 2, and {lines[-1:]}")
        raise bayesgeom.BayesGeomError(lines[-1])
