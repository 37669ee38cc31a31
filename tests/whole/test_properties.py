"""Laws of public calls, commands, files and tasks: a few examples by default, many in `make test-all`.

Whatever is given or damaged, a call returns a result or raises one of bayesgeom's errors, on one line.
"""

import contextlib
import inspect
import io
import json
import shutil
import typing
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from beartype.door import is_bearable
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

import bayesgeom
from bayesgeom import ablations, monitor, subspaces, tasks
from bayesgeom.cli import COMMANDS, main
from bayesgeom.core.errors import BayesGeomError, InvalidArgument
from bayesgeom.core.files import decoded_json, encoded_json
from bayesgeom.interventions.design import Design
from bayesgeom.models.checkpoint_files import hashed
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.tasks.base import WindTunnel, task_from_config
from tests.dynamics.trainings import a_run
from tests.models.test_checkpoint import saved
from tests.reports import write_resealed

SEEDS = st.integers(0, 2**63 - 1)
COMMON: dict[str, Any] = {"deadline": None, "derandomize": True, "database": None}
COMMON["suppress_health_check"] = [HealthCheck.too_slow, HealthCheck.filter_too_much]
exhaustive = pytest.mark.exhaustive
FEW, MANY = settings(max_examples=10, **COMMON), settings(max_examples=300, **COMMON)
TEXT = st.text('ab01é🙂\0\\"{', max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats() | TEXT,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXT, inside, max_size=3),
    max_leaves=5,
)

# Numbers of sequences or steps from 1 to 2**62 only take long.
ODD_INTEGERS = st.integers(max_value=0) | st.integers(min_value=2**63)
ODD_TEXT = TEXT | st.sampled_from(["\ud800", "x" * 5000, "/dev/null", "hmm:length=x", "random:0", "cuda:99", "a,b"])
ODD_ARRAYS = [torch.tensor(True), torch.zeros(2, 3), torch.zeros(0), np.uint32(4), np.zeros((2, 2)), np.array("x")]
ODD = (
    st.none()
    | st.booleans()
    | ODD_INTEGERS
    | st.floats()
    | ODD_TEXT
    | st.binary(max_size=3)
    | st.lists(st.none() | st.just(1) | TEXT, max_size=2)
    | st.sampled_from([(), {}, {"x": 1}, {1, 2}, 1j, object(), int, len, ..., Path("nowhere"), *ODD_ARRAYS])
)


@contextlib.contextmanager
def one_line() -> typing.Iterator[None]:
    """An error of bayesgeom is one line; nothing else is raised, but by the tests' own checks of annotations."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except jaxtyping.TypeCheckError:
        pass
    except BayesGeomError as error:
        if "\n" in str(error):
            raise


# --- calls ------------------------------------------------------------------------------------------------------------

Call = tuple[Callable[..., Any], dict[str, Any]]
# Two take nothing odd, and two would reach the network or list what is there.
PUBLIC = [
    own
    for name in bayesgeom.__all__
    if callable(own := getattr(bayesgeom, name))
    and name not in ("BayesGeomError", "Diagnosis", "checkpoints", "publish")
]

FOLDERS: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    FOLDERS.append(tmp_path_factory.mktemp("properties"))


@cache
def place() -> Path:
    """A folder with a checkpoint, a training and a report."""
    folder = FOLDERS[-1]
    saved(folder / "model")
    a_run(folder / "training", steps=(0, 100))
    model = bayesgeom.load(folder / "model")
    bayesgeom.diagnose(model, n=8, n_untrained=1, probes=["calibration", "key_overlap"]).save(folder / "report")
    return folder


@cache
def calls() -> dict[str, Call]:
    """Public functions with sound arguments, each of which a test replaces by odd values."""
    b, folder = bayesgeom, place()
    model = b.load(folder / "model")
    few = Design("remove", n_random=2, n_matched=2, n_control=3, n_untrained=0, n_fit=51)
    on: dict[str, Any] = {"model": model, "task": model.task, "n": 4, "seed": 0}
    clean, corrupted = model.task.sample_pair(2, seed=0)
    sizes = {"d_vocab": 10, "n_ctx": 5, "n_layers": 1, "n_heads": 3, "d_model": 15, "d_mlp": 7}
    endless = b.as_model(b.TransformerConfig(**sizes, positions="none").build(seed=0))
    special: dict[str, dict[str, Any]] = {  # what a public function takes beyond a model, its task, n and a seed
        "ablate": {"battery": "mlps", "mode": "mean"},
        "as_model": {"model": model.module, "tokenizer": None},
        "audit": {"n": 8, "parts": ("response",)},
        "capture": {"out": folder / "captured", "sites": ["k"], "n_untrained": 0},
        "compare": {"models": [model] * 2, "n": 12, "probes": "calibration"},
        "diagnose": {"probes": ["calibration"], "n_untrained": 0},
        "erase_onwards": {"quantity": "entropy", "sites": None},
        "evidence_response": {"ages": (0, 1), "single": False, "n": 16},
        "fit_subspace": {"subspace": "random:2", "sites": None},
        "gradient_laws": {"trials_or_task": model.task, "targets": "sampled"},
        "gradient_movement": {"run": folder / "training", "targets": "sampled", "device": "cpu"},
        "intervene": {"subspace": "random:2", "kind": few, "sites": None},
        "InterventionSite": {"layers": [0], "positions": None, "score_after": False},
        "length_generalization": {"model": endless, "lengths": [4], "threshold_bits": 0.1},
        "load": {"name": folder / "model", "device": "cpu", "dtype": None, "batch_size": 3, "tokenizer": None},
        "load_report": {"path": folder / "report"},
        "patch": {"clean": clean, "corrupted": corrupted, "site": "resid_pre"},
        "paths": {"senders": None, "receivers": ("output",)},
        "scorecard": {"make": "lstm", "worlds": "dice", "steps": 2, "rates": 1, "seeds": 1, "batch_size": 4},
        "sweep": {"task": model.task, "vary": "n_pairs", "values": [2, 3], "threshold_bits": 0.1},
        "train": {"model": deepcopy(model.module), "steps": 2, "lr": 1e-3, "out": None},
        "training_dynamics": {"runs": folder / "training", "device": "cpu"},
        "TransformerConfig": sizes | {"norm": "rmsnorm", "positions": "learned", "tied": True},
        "wrap": {"net": model.module, "blocks": "blocks", "attn": "attn", "mlp": "mlp", "n_heads": 0, "n_ctx": 5},
    }
    functions = [(own, _given(own, on) | special.get(own.__name__, {})) for own in PUBLIC]
    functions += [
        (ablations.Component, {"layer": 0, "kind": "head", "head": 0}),
        (monitor.Monitor, {"model": model.module, "task": model.task, "every": 10}),
        (monitor.Settings, {"n": 4, "seed": 0, "untrained": False, "out": None}),
        (monitor.Thresholds, {"key_orthogonality": 0.9, "coverage": 0.8, "kl_bits": 0.01}),
        (subspaces.fit_from_text, {"text": "random:2"}),
        (subspaces.Subspace, {"name": "plane", "basis": torch.eye(15)[:, :2], "dual": None}),
        (tasks.Bijection, {"n_values": 5, "n_pairs": 3, "repeats": False}),
        (tasks.HMM, {"n_states": 2, "n_symbols": 3, "length": 5, "floor": 0.05}),
        (tasks.LabeledEvidence, {"k_max": 4, "reliability": 0.9, "query": "next", "words": ()}),
        (tasks.Prompts, {"texts": ("a b", "c d"), "last": 1, "bos": True}),
        (tasks.Process, {"transition_tensors": [[[0.5, 0.1], [0.1, 0.2]], [[0.1, 0.3], [0.4, 0.3]]], "length": 5}),
    ]
    return {function.__name__: (function, arguments) for function, arguments in functions}


def _given(function: Callable[..., Any], on: dict[str, Any]) -> dict[str, Any]:
    """The model, its task, n and a seed, where a function has parameters of these names."""
    return {name: on[name] for name in inspect.signature(function).parameters if name in on}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value fits an annotation: a number of another library is that number, and True is none."""
    if isinstance(value, np.integer) or (isinstance(value, torch.Tensor) and not value.ndim):
        value = value.item()
    kinds = typing.get_args(hint) or (hint,)
    if isinstance(value, bool) and not is_bearable(object(), hint):
        return bool in kinds or Any in kinds
    if type(value) is int and float in kinds:
        return True
    try:
        return bool(is_bearable(value, hint) or (isinstance(value, list) and is_bearable(tuple(value), hint)))
    except TypeError:  # beartype asks for the length of a tensor that has none
        return False


def refused_or_right(call: int, which: int, value: Any) -> None:
    """A value of another type is refused; another value of the right type is used, or refused."""
    name, (function, arguments) = sorted(calls().items())[call % len(calls())]
    parameter = sorted(arguments)[which % len(arguments)]
    known = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    hint = known.get(parameter, Any)
    is_fit = hint is Any or fits(value, hint)
    given = {**arguments, parameter: value}
    variadic = [own.name for own in inspect.signature(function).parameters.values() if own.kind is own.VAR_POSITIONAL]
    positional = [given.pop(own) for own in variadic]
    with one_line(), contextlib.chdir(place()):
        result = function(*positional, **given)
        repr(result)
        assert is_fit, f"{name} accepts {value!r:.80} for {parameter}"


CALLS = (st.integers(0, 999), st.integers(0, 11), ODD)
test_a_call_is_right_or_refused_on_one_line = settings(FEW, max_examples=60)(given(*CALLS)(refused_or_right))
test_many_calls = exhaustive(settings(MANY, max_examples=1500)(given(*CALLS)(refused_or_right)))


@exhaustive
def test_what_is_sound_is_accepted() -> None:
    """Else an odd value would be refused for another reason."""
    for number, name in enumerate(sorted(calls())):
        arguments = calls()[name][1]
        refused_or_right(number, 0, arguments[min(arguments)])
    for line in OPTIONS:
        assert line.startswith("train ") or status_of(line.split()) == 0, line


# --- commands ---------------------------------------------------------------------------------------------------------

OPTIONS = {
    "ablate model --battery mlps --n 4": "--battery --mode --task --n --seed --device",
    "capture model --n 4 --out held": "--sites --layers --save-dtype --n --n-untrained",
    "compare model model --n 4": "--task --n --seed",
    "diagnose model --n 4 --n-untrained 0 --probes calibration": "--n --n-untrained --probes --task --on --dtype",
    "dynamics training --n 4": "--n --seed --device",
    "gradients model --n 4": "--targets --n --task",
    "intervene model --n 4 --subspace random:2 --kind remove --controls 1": "--subspace --kind --layers --site",
    "relabel model --n 4": "--n --task --seed",
    "response model --n 4": "--n --task --seed",
    "check-task rrxor --n 4": "--n --seed",
    "sweep bijection --vary n_pairs=2,3 --n 4 --checkpoint model": "--vary --checkpoint --threshold",
    "train no-such-recipe": "--set --steps --seed --precision --device",
}


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A sound command line with odd text for an option, or in place of the first argument."""
    line = draw(st.sampled_from(sorted(OPTIONS)))
    option = draw(st.sampled_from(["", *OPTIONS[line].split()]))
    text = draw(ODD_TEXT | st.sampled_from(["", "-1", "0", "1.5", "nan", "9" * 5000, "None", "bijection:n_values=1e9"]))
    command, first, *others = line.split()
    return [command, first, *others, f"{option}={text}"] if option else [command, text, *others]


def status_of(line: list[str]) -> int:
    """The exit status of a command: 0, or 2 and one line on standard error."""
    assert line[0] in COMMANDS
    error = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error), contextlib.chdir(place()):
        status = main(line)
    texts = [text for text in error.getvalue().splitlines() if text.strip() and "\r" not in text]
    assert "Traceback" not in error.getvalue() and status in (0, 2), line
    assert status == 0 or texts[-1].startswith("bayesgeom: "), line
    return status


def succeeds_or_fails_on_one_line(line: list[str]) -> None:
    status_of(line)


test_a_command_succeeds_or_fails_on_one_line = settings(FEW, max_examples=40)(
    given(lines())(succeeds_or_fails_on_one_line)
)
test_many_commands = exhaustive(settings(MANY, max_examples=600)(given(lines())(succeeds_or_fails_on_one_line)))


# --- damaged files ----------------------------------------------------------------------------------------------------

KINDS: dict[str, tuple[tuple[str, ...], Callable[[Path], object]]] = {
    "model": (("model.safetensors", "config.json"), lambda path: repr(bayesgeom.load(path).spec)),
    "report": (("report.json", "arrays.safetensors"), lambda path: numbers(bayesgeom.load_report(path))),
}


def numbers(report: Any) -> str:
    """What a report states."""
    table = report.to_pandas()
    assert isinstance(report, Diagnosis) and report.summary()
    return str(table.to_csv()) + json.dumps(dict(report.provenance), sort_keys=True)


@contextlib.contextmanager
def copied(kind: str) -> typing.Iterator[Path]:
    """A copy to be damaged; it has the same name, which a model takes from its directory."""
    copy = place() / "copy" / kind
    shutil.copytree(place() / kind, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def damaged_bytes(kind: str, which: int, share: float, end: int, new: bytes) -> None:
    """Other bytes somewhere in a file: it is refused, or reads as it was."""
    files, read = KINDS[kind]
    with copied(kind) as path:
        file = path / files[which % len(files)]
        content = file.read_bytes()
        start = int(share * (len(content) - 1))
        file.write_bytes(content[:start] + new + content[start + end :])
        with one_line():
            assert read(path) == read(place() / kind), f"{file.name} reads as something else"


DAMAGE = (st.sampled_from(sorted(KINDS)), st.integers(0, 1), st.floats(0, 1), st.integers(0, 64), st.binary(max_size=8))


test_other_bytes_are_refused = settings(FEW, max_examples=40)(given(*DAMAGE)(damaged_bytes))
test_many_other_bytes = exhaustive(settings(MANY, max_examples=600)(given(*DAMAGE)(damaged_bytes)))


def places(tree: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside JSON."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree[:3]) if isinstance(tree, list) else ()
    return [(*way, key) for key, _ in inside] + [own for key, value in inside for own in places(value, (*way, key))]


def damaged_structure(kind: str, share: float, value: Any) -> None:
    """Another value in a JSON file, behind a right hash: what is accepted can be used."""
    name, read = {"model": "config.json", "report": "report.json"}[kind], KINDS[kind][1]
    with copied(kind) as path:
        tree = json.loads((path / name).read_text())
        ways = places(tree)
        *way, last = ways[int(share * (len(ways) - 1))]
        changed = deepcopy(tree)
        inside: Any = changed
        for key in way:
            inside = inside[key]
        assume(inside[last] != value)
        inside[last] = value
        if kind == "report":
            write_resealed(path, changed)
        else:
            (path / name).write_text(json.dumps(hashed(changed)))
        with one_line():
            read(path)


STRUCTURE = (st.sampled_from(sorted(KINDS)), st.floats(0, 1), JSON)


test_other_values_are_refused_or_usable = settings(FEW, max_examples=40)(given(*STRUCTURE)(damaged_structure))
test_many_other_values = exhaustive(settings(MANY, max_examples=600)(given(*STRUCTURE)(damaged_structure)))


# --- tasks and values -------------------------------------------------------------------------------------------------


@st.composite
def kinds_of_task(draw: st.DrawFn) -> tuple[type[WindTunnel], dict[str, Any]]:
    """A kind of task and small parameters. It is made in the test: the shape checks draw random numbers."""
    small = st.integers(1, 7)
    kinds = {
        tasks.Bijection: {"n_values": small, "n_pairs": small, "repeats": st.booleans()},
        tasks.HMM: {"n_states": small, "n_symbols": small, "length": small, "floor": st.floats(0.01, 0.3)},
        tasks.ModularRecurrence: {
            "modulus": st.sampled_from((2, 3, 5, 7)),
            "length": small,
            "rule_share": st.floats(0, 1),
        },
        tasks.Mess3: {"x": st.floats(0.01, 0.49), "a": st.floats(0.01, 0.99), "length": small},
    }
    kind = draw(st.sampled_from(list(kinds)))
    return kind, {name: draw(own) for name, own in kinds[kind].items()}


def laws(task: tuple[type[WindTunnel], dict[str, Any]], seed: int) -> None:
    """Posteriors sum to 1, a seed is its sequences, sequences do not depend on each other, and text is the task."""
    try:
        kind, parameters = task
        made = kind(**parameters)
    except InvalidArgument:  # more pairs than values, …
        reject()
    one, two = made.sample(5, seed=seed), made.sample(5, seed=seed)
    assert torch.equal(one.tokens, two.tokens)
    at = one.at_scored(one.predictive)
    assert bool((at >= 0).all())
    # Sums over at most some dozens of float64 numbers: 1e-9 is far above their rounding.
    torch.testing.assert_close(at.sum(-1), torch.ones_like(at.sum(-1)), rtol=0, atol=1e-9)
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = one.rows(order)
    torch.testing.assert_close(shuffled.at_scored(shuffled.predictive), at[order], rtol=0, atol=0)
    assert task_from_config(json.loads(json.dumps(made.config()))) == made


def round_trip(value: Any) -> None:
    """What a report holds is strict JSON, and comes back as it was: NaN and infinities too."""
    text = json.dumps(encoded_json(value), allow_nan=False)
    np.testing.assert_equal(decoded_json(json.loads(text)), value)


test_laws_of_tasks = FEW(given(kinds_of_task(), SEEDS)(laws))
test_laws_of_many_tasks = exhaustive(MANY(given(kinds_of_task(), SEEDS)(laws)))
VALUES = st.dictionaries(TEXT, JSON, max_size=4)
test_values_come_back = settings(FEW, max_examples=20)(given(VALUES)(round_trip))
test_many_values_come_back = exhaustive(settings(MANY, max_examples=1000)(given(VALUES)(round_trip)))
