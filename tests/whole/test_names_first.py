"""Names are checked before a model is loaded, which can take minutes; tasks that ignore their generator are noticed."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import pytest
import torch

import bayesgeom
from bayesgeom import ablations
from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.core.run import Trials
from bayesgeom.generalization.length import with_room
from bayesgeom.models import resolve
from bayesgeom.tasks.base import WindTunnel
from tests.interventions.worlds import Echo

MODEL = "bijection-v20"
CALLS: dict[str, Callable[..., Any]] = {
    "ablate": bayesgeom.ablate,
    "attribution_preview": ablations.attribution_preview,
    "audit": bayesgeom.audit,
    "capture": lambda model, task, **given: bayesgeom.capture(model, task, out="out", **given),
    "compare": lambda model, task, **given: bayesgeom.compare([MODEL, model], task, **given),
    "diagnose": bayesgeom.diagnose,
    "erase_onwards": bayesgeom.erase_onwards,
    "evidence_response": bayesgeom.evidence_response,
    "fit_subspace": lambda model, task, subspace="frame": bayesgeom.fit_subspace(model, task, subspace),
    "gradient_laws": bayesgeom.gradient_laws,
    "intervene": bayesgeom.intervene,
    "length_generalization": lambda model, task: bayesgeom.length_generalization([MODEL, model], task),
    "relabeling_invariance": bayesgeom.relabeling_invariance,
    "sweep": lambda model, task, vary="n_pairs": bayesgeom.sweep(task or "bijection", vary, [2], model),
    "with_room": with_room,
}
NAMED = [
    *((name, {"model": "bijection-v2O"}, "bijection-v20") for name in CALLS),
    *((name, {"task": "bijection:n_pears=3"}, "n_pairs") for name in CALLS),
    ("ablate", {"battery": "haeds"}, "heads"),
    ("ablate", {"mode": "maen"}, "mean"),
    ("fit_subspace", {"subspace": "farme"}, "frame"),
    ("erase_onwards", {"quantity": "entropie"}, "entropy"),
    ("sweep", {"vary": "n_pears"}, "n_pairs"),
]


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def loading(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr(resolve, "_loaded", loading)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("name", "wrong", "meant"), NAMED, ids=str)
def test_a_name_is_refused_before_a_model_is_loaded(
    name: str, wrong: dict[str, Any], meant: str, tmp_path: Path
) -> None:
    given = {"model": MODEL, "task": None} | wrong
    with pytest.raises((UnknownName, InvalidArgument), match=meant):
        CALLS[name](given.pop("model"), given.pop("task"), **given)
    assert not [*tmp_path.iterdir()]


@final
@dataclass(frozen=True)
class Fixed(WindTunnel):
    """A task of another package that draws with a generator of its own, or with torch's."""

    name: ClassVar[str] = "fixed"
    seed: int | None = 0

    @property
    def d_vocab(self) -> int:
        return Echo().d_vocab

    @property
    def n_pos(self) -> int:
        return Echo().n_pos

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        own = torch.default_generator if self.seed is None else torch.Generator().manual_seed(self.seed)
        return Echo().draw(n, own)

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        return self.draw(n, generator), self.draw(n, generator)

    def baseline_predictives(self, trials: Trials) -> dict[str, torch.Tensor]:
        return dict(Echo().baseline_predictives(trials))

    def token_labels(self) -> list[str]:
        return [*Echo().token_labels()]


@pytest.mark.parametrize(("seed", "text"), [(0, "the same sequences from every seed"), (None, "from the same seed")])
def test_a_task_that_ignores_the_generator_is_refused(seed: int | None, text: str) -> None:
    module = bayesgeom.TransformerConfig(d_vocab=7, n_ctx=3, n_layers=1, n_heads=1, d_model=8, d_mlp=8).build(seed=0)
    for measure in (
        lambda: bayesgeom.diagnose(module, Fixed(seed), n=8, n_untrained=0),
        lambda: bayesgeom.ablate(module, Fixed(seed), n=8),
        lambda: bayesgeom.compare([module, module], Fixed(seed), n=8),
        lambda: bayesgeom.sweep(Fixed(seed), "seed", [seed], n=8),
        lambda: bayesgeom.monitor.Monitor(module, Fixed(seed)),
    ):
        with pytest.raises(InvalidArgument, match=rf"^task 'fixed' draws .*{text}.*generator"):
            measure()
