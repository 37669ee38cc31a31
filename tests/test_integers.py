"""Integers of NumPy and torch are Python's integers for every count and seed; seeds that differ give other draws."""

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bayesgeom
from bayesgeom import ablations, monitor, subspaces, tasks
from bayesgeom.core.errors import InvalidArgument, integer_of
from bayesgeom.core.run import Trials
from bayesgeom.executors import Batch
from bayesgeom.generalization.length import with_room
from bayesgeom.interventions.design import Design
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import Model
from bayesgeom.models.native.transformer import TransformerConfig
from bayesgeom.monitor.watch import Settings
from bayesgeom.report.report import Report
from bayesgeom.tasks.base import Branch, DerivedSeed, derived_seed
from bayesgeom.tasks.hmm import HMM
from tests.dynamics.trainings import a_run
from tests.executors.stand_ins import AtOnce
from tests.interventions.worlds import TASK, lively

CHAIN = HMM(n_states=2, n_symbols=3, length=5)
SIZES = TransformerConfig(d_vocab=CHAIN.d_vocab, n_ctx=CHAIN.n_pos, n_layers=1, n_heads=3, d_model=15, d_mlp=7)
ENDLESS = TransformerConfig(**{**vars(SIZES), "positions": "none"})
FEW = Design("remove", n_random=2, n_matched=2, n_control=3, n_untrained=0, n_fit=51)
ABSTRACT = {"draw", "draw_pair"}  # called by `sample` and its likes, with a plain integer
WITHOUT_COUNT = {"build", "fit_subspace", "patch", "strongest_neurons", "with_room"}


def like(n: Any, value: int) -> Any:
    """An integer of the type of another one."""
    if isinstance(n, torch.Tensor):
        return torch.tensor(value)
    return type(n)(value) if isinstance(n, np.integer) else value


def captured(folder: Path, n: Any, seed: Any) -> bayesgeom.Diagnosis:
    """A capture, which is read again."""
    out = bayesgeom.capture(lively(), TASK, out=folder / f"{type(n).__name__}", n=n, seed=seed)
    return bayesgeom.diagnose(out, n=int(n), n_untrained=0, probes="calibration")


CALLS: dict[str, Callable[[Path, Any, Any], Any]] = {
    "ablate": lambda folder, n, seed: bayesgeom.ablate(
        lively(), battery="mlps", n=n, seed=seed, out=folder / type(n).__name__
    ),
    "attribution_preview": lambda _, n, seed: ablations.attribution_preview(lively(), battery="mlps", n=n, seed=seed),
    "build": lambda _, n, seed: SIZES.build(seed=seed),
    "capture": captured,
    "compare": lambda _, n, seed: bayesgeom.compare([lively(), lively(n_layers=1)], n=n, seed=seed),
    "contributions": lambda _, n, seed: bayesgeom.contributions(lively(), n=n, seed=seed),
    "diagnose": lambda _, n, seed: bayesgeom.diagnose(
        lively(), n=n, seed=seed, n_untrained=np.int8(1), probes="calibration"
    ),
    "erase_onwards": lambda _, n, seed: bayesgeom.erase_onwards(lively(), n=n, seed=seed),
    "fit_subspace": lambda _, n, seed: bayesgeom.fit_subspace(lively(), None, subspaces.random(like(n, 2)), seed=seed),
    "gradient_laws": lambda _, n, seed: bayesgeom.gradient_laws(lively(), n=n, seed=seed),
    "gradient_movement": lambda folder, n, seed: bayesgeom.gradient_movement(a_run(folder), n=n, seed=seed),
    "intervene": lambda _, n, seed: bayesgeom.intervene(lively(), subspace="random:2", kind=FEW, n=n, seed=seed),
    "length_generalization": lambda _, n, seed: bayesgeom.length_generalization(
        HookedModel(ENDLESS.build(seed=0), task=CHAIN), lengths=[like(n, 7)], n=n, seed=seed
    ),
    "audit": lambda _, n, seed: bayesgeom.audit(lively(), n=n, n_positions=like(n, 1), seed=seed),
    "evidence_response": lambda _, n, seed: bayesgeom.evidence_response(lively(), ages=[like(n, 1)], n=n, seed=seed),
    "patch": lambda _, n, seed: bayesgeom.patch(lively(), *TASK.sample_pair(5, seed=0), seed=seed),
    "paths": lambda _, n, seed: bayesgeom.paths(lively(), n=n, seed=seed, receivers=["output"]),
    "relabeling_invariance": lambda _, n, seed: bayesgeom.relabeling_invariance(lively(), n=n, seed=seed),
    "sample": lambda _, n, seed: TASK.sample(n, seed=seed),
    "sample_pair": lambda _, n, seed: TASK.sample_pair(n, seed=seed),
    "Settings": lambda _, n, seed: Settings(n=n, seed=seed),
    "stream": lambda _, n, seed: list(TASK.stream(n, seed=seed)),
    "strongest_neurons": lambda _, n, seed: ablations.strongest_neurons(lively(), n_neurons=like(n, 5), seed=seed),
    "sweep": lambda _, n, seed: bayesgeom.sweep(TASK, "n_pairs", [2, like(n, 3)], n=n, seed=seed),
    "training_dynamics": lambda folder, n, seed: bayesgeom.training_dynamics(
        a_run(folder / f"{type(n).__name__}", steps=(0, 100)), n=n, seed=seed
    ),
    "with_room": lambda _, n, seed: with_room(HookedModel(SIZES.build(seed=0), task=CHAIN), lengths=[9], seed=seed),
}


def counted() -> Iterator[tuple[str, FunctionType]]:
    """Public functions, classes and methods with a parameter n or seed."""
    for package in (bayesgeom, tasks, ablations, subspaces, monitor):
        for name in dir(package):
            own = getattr(package, name)
            methods = inspect.getmembers(own, inspect.isfunction) if inspect.isclass(own) else []
            for key, function in [(name, own), *methods]:
                is_ours = callable(function) and str(getattr(function, "__module__", "")).startswith("bayesgeom")
                if is_ours and not key.startswith("_") and {"n", "seed"} & {*inspect.signature(function).parameters}:
                    yield key, function


def plain(value: Any) -> Any:
    """What a result holds, as values that compare."""
    if isinstance(value, nn.Module | Model):
        module = value if isinstance(value, nn.Module) else value.module
        return [own.tolist() for own in module.state_dict().values()]
    if isinstance(value, dict):
        return {key: own.projector().tolist() for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [plain(own) for own in value]
    return value.tokens.tolist() if isinstance(value, Trials) else value


def test_every_public_function_with_a_count_or_a_seed_is_called_here() -> None:
    assert {name for name, _ in counted()} - ABSTRACT == {*CALLS} - {"with_room"}


@pytest.mark.parametrize("name", CALLS)
def test_integers_of_numpy_and_torch_give_the_same(name: str, tmp_path: Path) -> None:
    whole = plain(CALLS[name](tmp_path / "a", 64, 3))
    for folder, n, seed in (("b", np.int64(64), np.uint32(3)), ("c", np.uint8(64), torch.tensor(3))):
        found = CALLS[name](tmp_path / folder, n, seed)
        assert plain(found) == whole
        if isinstance(found, Report | bayesgeom.Diagnosis) and name not in WITHOUT_COUNT:
            assert json.loads(json.dumps(dict(found.provenance)))["arguments"]["n"] == 64
        if isinstance(found, Settings):
            assert (type(found.n), type(found.seed)) == (int, int)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "wrong", [True, 2.5, np.float64(64), "3", torch.tensor([3]), torch.tensor(True), -1, 2**63], ids=repr
)
def test_anything_else_is_refused_in_one_sentence(wrong: Any, name: str, tmp_path: Path) -> None:
    assert type(wrong) is int or integer_of(wrong) is None
    for at, given in (("n", (wrong, 3)), ("seed", (64, wrong))):
        if at == "seed" or name not in WITHOUT_COUNT:
            with pytest.raises(InvalidArgument, match=rf"\b{at}\b.*got") as found:
                CALLS[name](tmp_path, *given)
            assert "\n" not in str(found.value)


def test_seeds_that_differ_in_high_bits_give_other_draws() -> None:
    for name in ("build", "sample", "sample_pair", "stream", "with_room", "fit_subspace"):
        drawn = [json.dumps(plain(CALLS[name](Path(), 64, seed))) for seed in (3, 3 + 2**32, 3 + 2**33, 3 + 2**62)]
        assert len({*drawn}) == 4, name


def test_derived_seeds_draw_as_they_did() -> None:
    """Their lowest 32 bits are random: stored numbers were drawn with them."""
    seed = derived_seed(5, Branch.TRIALS)
    own = TASK.draw(7, torch.Generator().manual_seed(int(seed))).tokens
    assert isinstance(seed, DerivedSeed) and seed == 7829437886636254564
    assert torch.equal(TASK.sample(7, seed=seed).tokens, own)


def test_fields_of_dataclasses_and_batches_are_plain() -> None:
    component = ablations.Component(np.int64(1), "head", torch.tensor(2))
    assert (type(component.layer), type(component.head)) == (int, int) and component.label == "L1H2"
    assert type(Batch(executor=AtOnce(), threads=np.int16(2)).threads) is int
    task = HMM(n_states=np.int64(2), n_symbols=torch.tensor(3), length=np.uint8(5), floor=np.float64(0.05))
    assert json.dumps(task.config()) == json.dumps(CHAIN.config())
    sizes = TransformerConfig(**{name: np.int64(own) if type(own) is int else own for name, own in vars(SIZES).items()})
    assert sizes == SIZES and {type(own) for own in vars(sizes).values()} == {type(own) for own in vars(SIZES).values()}
