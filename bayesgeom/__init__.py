"""bayesgeom: does a sequence model do Bayesian inference, and where in its weights?

    import bayesgeom
    model = bayesgeom.load("bijection-v20")
    diagnosis = bayesgeom.diagnose(model)
    print(diagnosis.summary())

Names load what they need when they are first used: importing the package alone pulls in neither torch nor plotly.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from bayesgeom import ablations as ablations
    from bayesgeom import claims as claims
    from bayesgeom import monitor as monitor
    from bayesgeom import tasks as tasks
    from bayesgeom.ablate import ablate as ablate
    from bayesgeom.claims.reproduction import reproduce as reproduce
    from bayesgeom.compare import compare as compare
    from bayesgeom.diagnose import diagnose as diagnose
    from bayesgeom.diagnosis import Diagnosis as Diagnosis
    from bayesgeom.dynamics import dynamics as dynamics
    from bayesgeom.em_experiment import em_experiment as em_experiment
    from bayesgeom.erase_onwards import erase_onwards as erase_onwards
    from bayesgeom.errors import BayesGeomError as BayesGeomError
    from bayesgeom.gradient_movement import gradient_movement as gradient_movement
    from bayesgeom.gradients import gradients as gradients
    from bayesgeom.intervene import fit_subspace as fit_subspace
    from bayesgeom.intervene import intervene as intervene
    from bayesgeom.intervene import write_strength as write_strength
    from bayesgeom.intervene_together import intervene_together as intervene_together
    from bayesgeom.interventions import fits as subspaces  # noqa: F401  (re-exported under another name)
    from bayesgeom.interventions.design import Design as Design
    from bayesgeom.interventions.place import Place as Place
    from bayesgeom.interventions.subspace import Subspace as Subspace
    from bayesgeom.length import length as length
    from bayesgeom.models.capacity import capacity_matched as capacity_matched
    from bayesgeom.models.resolve import checkpoints as checkpoints
    from bayesgeom.models.resolve import load as load
    from bayesgeom.models.transformer import Transformer as Transformer
    from bayesgeom.models.transformer import TransformerConfig as TransformerConfig
    from bayesgeom.relabelling import relabel as relabel
    from bayesgeom.replicate import replicate as replicate
    from bayesgeom.sweep import sweep as sweep

__version__ = "0.1.0"

_HOMES = {
    "ablate": "bayesgeom.ablate",
    "BayesGeomError": "bayesgeom.errors",
    "Diagnosis": "bayesgeom.diagnosis",
    "Design": "bayesgeom.interventions.design",
    "Place": "bayesgeom.interventions.place",
    "Subspace": "bayesgeom.interventions.subspace",
    "Transformer": "bayesgeom.models.transformer",
    "TransformerConfig": "bayesgeom.models.transformer",
    "as_model": "bayesgeom.models.resolve",
    "capacity_matched": "bayesgeom.models.capacity",
    "checkpoints": "bayesgeom.models.resolve",
    "compare": "bayesgeom.compare",
    "diagnose": "bayesgeom.diagnose",
    "dynamics": "bayesgeom.dynamics",
    "em_experiment": "bayesgeom.em_experiment",
    "erase_onwards": "bayesgeom.erase_onwards",
    "fit_subspace": "bayesgeom.intervene",
    "gradient_movement": "bayesgeom.gradient_movement",
    "gradients": "bayesgeom.gradients",
    "intervene": "bayesgeom.intervene",
    "intervene_together": "bayesgeom.intervene_together",
    "length": "bayesgeom.length",
    "load": "bayesgeom.models.resolve",
    "relabel": "bayesgeom.relabelling",
    "sweep": "bayesgeom.sweep",
    "replicate": "bayesgeom.replicate",
    "reproduce": "bayesgeom.claims.reproduction",
    "write_strength": "bayesgeom.intervene",
}
_MODULES = {
    "ablations": "bayesgeom.ablations",
    "claims": "bayesgeom.claims",
    "monitor": "bayesgeom.monitor",
    "subspaces": "bayesgeom.interventions.fits",
    "tasks": "bayesgeom.tasks",
}
__all__ = [*_HOMES, *_MODULES, "__version__"]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'bayesgeom' has no attribute {name!r}; it has {', '.join(sorted(__all__))}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@final
class _Package(ModuleType):
    """Keeps the functions `ablate` and `diagnose` where importing the modules of the same name would put these."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
