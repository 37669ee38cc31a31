# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Diagnose a Hugging Face model
#
# The shipped `bijection-v20-llama` is a `LlamaForCausalLM` that was trained on a task with a known posterior. Your own
# model takes the same path through the code. Nothing here needs a network.
#
# Run it as a script, or open it as a notebook (`jupytext --to notebook diagnose_a_hugging_face_model.py`).

# %%
import os
from pathlib import Path

import transformers

import bayesgeom
from bayesgeom import ablations, subspaces, tasks

FOLDER = os.environ.get("BAYESGEOM_EXAMPLE_HF") or bayesgeom.checkpoints()["bijection-v20-llama"]
N = int(os.environ.get("BAYESGEOM_EXAMPLE_N", "256"))  # sequences; the tests set a small one
OUT = Path(os.environ.get("BAYESGEOM_EXAMPLE_OUT", "runs/example-llama"))

# %% [markdown]
# ## Load
#
# Pass any causal language model that transformers can load: a directory, `owner/name` on the hub, or the loaded
# object. A Hugging Face model has no task of its own, so pass the task, too.

# %%
hf = transformers.AutoModelForCausalLM.from_pretrained(FOLDER)
model = bayesgeom.as_model(hf)
task = tasks.Bijection()
spec = model.spec
print(f"{type(hf).__name__}: {spec.n_layers} layers, {spec.n_heads} query heads, {spec.n_kv_heads} key-value heads")
print(f"sites: {', '.join(sorted(site.name for site in model.sites))}")
print(f"withheld: {dict(model.withheld) or 'none'}")

# %% [markdown]
# ## Diagnose
#
# The probes and baselines are the same as for bayesgeom's own transformer. Keys and values have the axis of key-value
# heads.

# %%
diagnosis = bayesgeom.diagnose(model, task, n=N, n_untrained=1)
print(diagnosis.summary())

# %% [markdown]
# The table fits into 100 columns and cuts long labels. These are the same numbers in full, with all baselines.

# %%
for name, line in diagnosis.headlines():
    print(f"{name}: {line}")

# %% [markdown]
# ## Ablate components
#
# A battery replays the model from the edited block on if that gives the same logits.

# %%
heads = bayesgeom.ablate(model, task, ablations.every_head(model), n=min(N, 64))
print(heads.table())

# %% [markdown]
# ## Swap a subspace
#
# Take the part of the residual stream in the span of the value embeddings from another sequence. Does the answer
# follow that sequence?

# %%
swap = bayesgeom.intervene(model, task, subspace=subspaces.frame(), n=min(N, 32))
print(swap.table())

# %% [markdown]
# ## Save
#
# The directory holds `report.html`, which opens offline, and the numbers.

# %%
diagnosis.save(OUT)
print(f"report: {OUT / 'report.html'}")
