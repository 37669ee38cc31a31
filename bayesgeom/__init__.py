"""bayesgeom: measure whether a sequence model does Bayesian inference, and where in its weights.

    import bayesgeom
    model = bayesgeom.load("bijection-v20")
    diagnosis = bayesgeom.diagnose(model)
    print(diagnosis.summary())

Load models and reports:

    load                   load a shipped checkpoint, a directory, or a Hugging Face causal language model
    checkpoints            list the directories of all named checkpoints
    as_model               return the `Model` of a name, a path or a module
    wrap                   return the `Model` of any causal module, from the names of its parts
    load_report            load a saved report or diagnosis
    publish                upload a checkpoint to the Hugging Face hub, with a model card

Measure one model:

    diagnose               run every probe that the model supports, in one pass
    audit                  compare predictions with the exact observer's, in seven ways
    ablate                 measure the KL increase of each ablation
    contributions          measure what each head and MLP adds to the answers' logits directly
    paths                  measure the KL increase of each direct edge between heads, MLPs and the output
    intervene              edit a subspace and report whether the model uses it
    erase_onwards          erase a quantity from one layer on
    patch                  put activations of one text or sequence into the run on another
    fit_subspace           fit the subspaces that `intervene` would edit
    relabeling_invariance  measure how the answers change when hypotheses are renamed
    evidence_response      measure how far the answers follow old evidence, which is drawn again
    length_generalization  measure errors at and beyond the training length
    sweep                  measure how fast the posterior converges at each value of a parameter
    gradient_laws          measure advantages and value updates of every head
    capture                record sites and predictions in safetensors files

Compare models and snapshots:

    compare                compare models on the same sequences
    training_dynamics      measure every diagnostic at every snapshot of a training
    gradient_movement      measure gradients and distances at every snapshot of a training

Modules: tasks (with an exact posterior at every step, and in text), subspaces (fits of a quantity) and monitor (watch a
running training). Classes: Diagnosis, InterventionSite, TransformerConfig and BayesGeomError.

`help(bayesgeom.diagnose)` describes a function. Names are imported on first use: `import bayesgeom` alone loads neither
torch nor plotly. Every other module is reached by its name, such as `bayesgeom.ablations` or `bayesgeom.training.loop`.
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayesgeom import monitor as monitor
    from bayesgeom import subspaces as subspaces
    from bayesgeom import tasks as tasks
    from bayesgeom.circuits.direct import contributions as contributions
    from bayesgeom.circuits.edges import paths as paths
    from bayesgeom.circuits.patching import patch as patch
    from bayesgeom.core.errors import BayesGeomError as BayesGeomError
    from bayesgeom.diagnosis.recording import capture as capture
    from bayesgeom.diagnosis.run import diagnose as diagnose
    from bayesgeom.dynamics.run import training_dynamics as training_dynamics
    from bayesgeom.generalization.comparison import compare as compare
    from bayesgeom.generalization.length import length_generalization as length_generalization
    from bayesgeom.generalization.sweeps import sweep as sweep
    from bayesgeom.gradients.run import gradient_laws as gradient_laws
    from bayesgeom.gradients.run import gradient_movement as gradient_movement
    from bayesgeom.interventions.onwards import erase_onwards as erase_onwards
    from bayesgeom.interventions.run import fit_subspace as fit_subspace
    from bayesgeom.interventions.run import intervene as intervene
    from bayesgeom.measurements.ablation import ablate as ablate
    from bayesgeom.measurements.audit import audit as audit
    from bayesgeom.measurements.evidence_response import evidence_response as evidence_response
    from bayesgeom.measurements.relabeling import relabeling_invariance as relabeling_invariance
    from bayesgeom.models.adapters.wrapping import wrap as wrap
    from bayesgeom.models.checkpoint_files import checkpoints as checkpoints
    from bayesgeom.models.hub import publish as publish
    from bayesgeom.models.native.transformer import TransformerConfig as TransformerConfig
    from bayesgeom.models.resolve import as_model as as_model
    from bayesgeom.models.resolve import load as load
    from bayesgeom.report.diagnosis import Diagnosis as Diagnosis
    from bayesgeom.report.diagnosis import load_report as load_report
    from bayesgeom.subspaces.base import InterventionSite as InterventionSite

__version__ = "0.2.0"

_HOMES = {
    "ablate": "bayesgeom.measurements.ablation",
    "as_model": "bayesgeom.models.resolve",
    "audit": "bayesgeom.measurements.audit",
    "BayesGeomError": "bayesgeom.core.errors",
    "capture": "bayesgeom.diagnosis.recording",
    "checkpoints": "bayesgeom.models.checkpoint_files",
    "contributions": "bayesgeom.circuits.direct",
    "compare": "bayesgeom.generalization.comparison",
    "diagnose": "bayesgeom.diagnosis.run",
    "Diagnosis": "bayesgeom.report.diagnosis",
    "erase_onwards": "bayesgeom.interventions.onwards",
    "evidence_response": "bayesgeom.measurements.evidence_response",
    "fit_subspace": "bayesgeom.interventions.run",
    "gradient_laws": "bayesgeom.gradients.run",
    "gradient_movement": "bayesgeom.gradients.run",
    "intervene": "bayesgeom.interventions.run",
    "InterventionSite": "bayesgeom.subspaces.base",
    "length_generalization": "bayesgeom.generalization.length",
    "load": "bayesgeom.models.resolve",
    "load_report": "bayesgeom.report.diagnosis",
    "paths": "bayesgeom.circuits.edges",
    "relabeling_invariance": "bayesgeom.measurements.relabeling",
    "patch": "bayesgeom.circuits.patching",
    "publish": "bayesgeom.models.hub",
    "sweep": "bayesgeom.generalization.sweeps",
    "training_dynamics": "bayesgeom.dynamics.run",
    "TransformerConfig": "bayesgeom.models.native.transformer",
    "wrap": "bayesgeom.models.adapters.wrapping",
}
_MODULES = ("monitor", "subspaces", "tasks")
_MOVED = {  # names that users may look for here
    "Batch": "bayesgeom.executors",
    "Design": "bayesgeom.interventions.design",
    "Selection": "bayesgeom.diagnosis.recording",
    "Subspace": "bayesgeom.subspaces",
    "Transformer": "bayesgeom.models.native.transformer",
}
__all__ = [*_HOMES, *_MODULES]  # `from bayesgeom import *` loads them all
_PUBLIC = sorted([*__all__, "__version__"])


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MOVED:
        raise AttributeError(f"bayesgeom.{name} is {_MOVED[name]}.{name}: import it from there.")
    if name.isidentifier() and name[0] != "_" and find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'bayesgeom' has no attribute {name!r}. Public names: {', '.join(_PUBLIC)}.")


def __dir__() -> list[str]:
    return list(_PUBLIC)
