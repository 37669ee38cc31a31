"""bayesgeom: does a sequence model do Bayesian inference, and where in its weights?

    import bayesgeom
    model = bayesgeom.load("bijection-v20")
    diagnosis = bayesgeom.diagnose(model)
    print(diagnosis.summary())

Names load what they need when they are first used: importing the package alone pulls in neither torch nor plotly.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayesgeom import tasks as tasks
    from bayesgeom.diagnose import diagnose as diagnose
    from bayesgeom.diagnosis import Diagnosis as Diagnosis
    from bayesgeom.errors import BayesGeomError as BayesGeomError
    from bayesgeom.models.resolve import checkpoints as checkpoints
    from bayesgeom.models.resolve import load as load
    from bayesgeom.models.transformer import Transformer as Transformer
    from bayesgeom.models.transformer import TransformerConfig as TransformerConfig

__version__ = "0.1.0"

_HOMES = {
    "BayesGeomError": "bayesgeom.errors",
    "Diagnosis": "bayesgeom.diagnosis",
    "Transformer": "bayesgeom.models.transformer",
    "TransformerConfig": "bayesgeom.models.transformer",
    "checkpoints": "bayesgeom.models.resolve",
    "diagnose": "bayesgeom.diagnose",
    "load": "bayesgeom.models.resolve",
}
__all__ = [*_HOMES, "__version__", "tasks"]


def __getattr__(name: str) -> object:
    if name == "tasks":
        return importlib.import_module("bayesgeom.tasks")
    if name not in _HOMES:
        raise AttributeError(f"module 'bayesgeom' has no attribute {name!r}; it has {', '.join(sorted(__all__))}")
    return getattr(importlib.import_module(_HOMES[name]), name)
