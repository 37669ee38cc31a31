"""bayesgeom: measure whether a sequence model does Bayesian inference, and where in its weights.

    import bayesgeom
    model = bayesgeom.load("bijection-v20")
    diagnosis = bayesgeom.diagnose(model)
    print(diagnosis.summary())

Load models, tasks and reports:

    load                   load a shipped checkpoint, a directory, or a Hugging Face causal language model
    checkpoints            list the directories of all named checkpoints
    as_model               return the `Model` of a name, a path or a module
    load_report            load a saved report or diagnosis
    tasks                  tasks with an exact posterior at every step, and text tasks

Measure one model:

    diagnose               run every probe that the model supports, in one pass
    ablate                 measure the KL increase of each ablation
    intervene              edit a subspace and report whether the model uses it
    erase_onwards          erase a quantity from one layer on
    fit_subspace           fit the subspaces that `intervene` would edit
    write_strength         measure how strongly each head writes into a subspace
    share_controls         compare a swap with swaps of random subspaces that hold the same share
    swap_shares            compare how far saved swaps move the answer with what they exchange
    relabeling_invariance  measure how the answers change when hypotheses are renamed
    length_generalization  measure errors at and beyond the training length
    sweep                  measure how fast the posterior converges at each value of a parameter
    gradient_laws          measure advantages and value updates of every head
    capture                record sites and predictions in safetensors files

Compare models and trainings:

    compare                compare architectures on tasks
    diff                   compare two models on the same sequences, or two diagnoses
    replicate              measure mean and spread of a recipe over several trainings
    training_dynamics      measure every diagnostic at every snapshot of a training
    gradient_movement      measure gradients and distances at every snapshot of a training
    em_experiment          compare an EM-like schedule with its controls
    capacity_matched       return the config whose number of parameters matches a reference
    reproduce              run a claim's commands and compare with the recorded numbers

Modules: ablations (batteries of components), subspaces (fits of a quantity), monitor (watch a running training) and
claims (claims of the literature as data). Classes: Diagnosis, Selection (of `capture`), InterventionSite, Design,
Subspace, Transformer, TransformerConfig and BayesGeomError. Clusters: engine (connect) and Batch (of jobs).

`help(bayesgeom.diagnose)` describes a function. Names are imported on first use: `import bayesgeom` alone loads neither
torch nor plotly.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayesgeom import ablations as ablations
    from bayesgeom import claims as claims
    from bayesgeom import monitor as monitor
    from bayesgeom import subspaces as subspaces
    from bayesgeom import tasks as tasks
    from bayesgeom.ablations.run import ablate as ablate
    from bayesgeom.claims.reproduction import reproduce as reproduce
    from bayesgeom.comparison.difference import diff as diff
    from bayesgeom.comparison.replication import replicate as replicate
    from bayesgeom.comparison.run import compare as compare
    from bayesgeom.core.errors import BayesGeomError as BayesGeomError
    from bayesgeom.diagnosis.recording import Selection as Selection
    from bayesgeom.diagnosis.recording import capture as capture
    from bayesgeom.diagnosis.run import diagnose as diagnose
    from bayesgeom.dynamics.run import training_dynamics as training_dynamics
    from bayesgeom.engines.executor import Batch as Batch
    from bayesgeom.engines.named import engine as engine
    from bayesgeom.experiments.em.run import em_experiment as em_experiment
    from bayesgeom.generalization.length import length_generalization as length_generalization
    from bayesgeom.generalization.relabeling import relabeling_invariance as relabeling_invariance
    from bayesgeom.generalization.sweeps import sweep as sweep
    from bayesgeom.gradients.run import gradient_laws as gradient_laws
    from bayesgeom.gradients.run_movement import gradient_movement as gradient_movement
    from bayesgeom.interventions.design import Design as Design
    from bayesgeom.interventions.onwards import erase_onwards as erase_onwards
    from bayesgeom.interventions.run import fit_subspace as fit_subspace
    from bayesgeom.interventions.run import intervene as intervene
    from bayesgeom.interventions.run import share_controls as share_controls
    from bayesgeom.interventions.run import write_strength as write_strength
    from bayesgeom.interventions.shares import swap_shares as swap_shares
    from bayesgeom.models.capacity import capacity_matched as capacity_matched
    from bayesgeom.models.checkpoint_files import checkpoints as checkpoints
    from bayesgeom.models.native.transformer import Transformer as Transformer
    from bayesgeom.models.native.transformer import TransformerConfig as TransformerConfig
    from bayesgeom.models.resolve import as_model as as_model
    from bayesgeom.models.resolve import load as load
    from bayesgeom.results.diagnosis import Diagnosis as Diagnosis
    from bayesgeom.results.diagnosis import load_report as load_report
    from bayesgeom.subspaces.site import InterventionSite as InterventionSite
    from bayesgeom.subspaces.subspace import Subspace as Subspace

__version__ = "0.1.0"

_HOMES = {
    "ablate": "bayesgeom.ablations.run",
    "BayesGeomError": "bayesgeom.core.errors",
    "Diagnosis": "bayesgeom.results.diagnosis",
    "Design": "bayesgeom.interventions.design",
    "InterventionSite": "bayesgeom.subspaces.site",
    "Selection": "bayesgeom.diagnosis.recording",
    "Subspace": "bayesgeom.subspaces.subspace",
    "Transformer": "bayesgeom.models.native.transformer",
    "TransformerConfig": "bayesgeom.models.native.transformer",
    "as_model": "bayesgeom.models.resolve",
    "capacity_matched": "bayesgeom.models.capacity",
    "capture": "bayesgeom.diagnosis.recording",
    "checkpoints": "bayesgeom.models.checkpoint_files",
    "compare": "bayesgeom.comparison.run",
    "diagnose": "bayesgeom.diagnosis.run",
    "diff": "bayesgeom.comparison.difference",
    "training_dynamics": "bayesgeom.dynamics.run",
    "Batch": "bayesgeom.engines.executor",
    "engine": "bayesgeom.engines.named",
    "em_experiment": "bayesgeom.experiments.em.run",
    "erase_onwards": "bayesgeom.interventions.onwards",
    "fit_subspace": "bayesgeom.interventions.run",
    "gradient_movement": "bayesgeom.gradients.run_movement",
    "gradient_laws": "bayesgeom.gradients.run",
    "intervene": "bayesgeom.interventions.run",
    "length_generalization": "bayesgeom.generalization.length",
    "load": "bayesgeom.models.resolve",
    "load_report": "bayesgeom.results.diagnosis",
    "relabeling_invariance": "bayesgeom.generalization.relabeling",
    "sweep": "bayesgeom.generalization.sweeps",
    "replicate": "bayesgeom.comparison.replication",
    "reproduce": "bayesgeom.claims.reproduction",
    "share_controls": "bayesgeom.interventions.run",
    "swap_shares": "bayesgeom.interventions.shares",
    "write_strength": "bayesgeom.interventions.run",
}
_MODULES = ("ablations", "claims", "monitor", "subspaces", "tasks")
__all__ = [*_HOMES, *_MODULES]  # `from bayesgeom import *` loads them all
_PUBLIC = sorted([*__all__, "__version__"])


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'bayesgeom' has no attribute {name!r}. Public names: {', '.join(_PUBLIC)}.")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(_PUBLIC)
