"""bayesgeom: measure whether a sequence model does Bayesian inference, and where in its weights.

    import bayesgeom
    model = bayesgeom.load("bijection-v20")
    diagnosis = bayesgeom.diagnose(model)
    print(diagnosis.summary())

Load models and reports:

    load                   load a shipped checkpoint, a directory, or a Hugging Face causal language model
    checkpoints            list the directories of all named checkpoints
    as_model               return the `Model` of a name, a path or a module
    wrap                   return the `Model` of any causal module, whose parts it finds
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

Compare models and snapshots, or check a task:

    check_task             measure what a task can show, without a model
    compare                compare models on the same sequences
    training_dynamics      measure every diagnostic at every snapshot of a training
    gradient_movement      measure gradients and distances at every snapshot of a training

Train:

    train                  train any network on new sequences of a task
    scorecard              train architectures from scratch and measure what each learned to infer

Modules: tasks (with an exact posterior at every step, and in text), subspaces (fits of a quantity) and monitor (watch a
running training). Classes: Diagnosis, InterventionSite, TransformerConfig and BayesGeomError.

`help(bayesgeom.diagnose)` describes a function. Names are imported on first use: `import bayesgeom` alone loads neither
torch nor plotly. Every other module is reached by its name, such as `bayesgeom.ablations` or `bayesgeom.training.loop`.
"""

import importlib
from importlib.util import find_spec

import lazy_loader

__version__ = "0.2.0"

_public, _, __all__ = lazy_loader.attach_stub(__name__, __file__)  # `from bayesgeom import *` loads them all
_MOVED = {  # names that users may look for here
    "Batch": "bayesgeom.executors",
    "Design": "bayesgeom.interventions.design",
    "Selection": "bayesgeom.diagnosis.recording",
    "Subspace": "bayesgeom.subspaces",
    "Transformer": "bayesgeom.models.native.transformer",
}
_NAMES = sorted([*__all__, "__version__"])


def __getattr__(name: str) -> object:
    if name in __all__:
        return _public(name)
    if name in _MOVED:
        raise AttributeError(f"bayesgeom.{name} is {_MOVED[name]}.{name}: import it from there.")
    if name.isidentifier() and name[0] != "_" and find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'bayesgeom' has no attribute {name!r}. Public names: {', '.join(_NAMES)}.")


def __dir__() -> list[str]:
    return list(_NAMES)
