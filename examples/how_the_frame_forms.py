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
# # How the frame forms
#
# This walk-through follows one shipped training, snapshot by snapshot.
#
# Run it as a script, or open it as a notebook (`jupytext --to notebook how_the_frame_forms.py`). It needs no network.

# %%
import os
from pathlib import Path

import bayesgeom

RUN = os.environ.get("BAYESGEOM_EXAMPLE_FORMATION", "bijection-formation")  # a packed training, or a run's directory
N = int(os.environ.get("BAYESGEOM_EXAMPLE_N", "128"))  # sequences; the tests set a small one
OUT = Path(os.environ.get("BAYESGEOM_EXAMPLE_OUT", "runs/formation"))

# %% [markdown]
# ## Measure every snapshot on the same sequences
#
# One model is in memory at a time. The measurement of each snapshot is saved next to the report until the report is
# written, so a stopped analysis can resume.

# %%
diagnosis = bayesgeom.training_dynamics(RUN, n=N, out=OUT)
curves = diagnosis["dynamics"]
print(f"{curves.runs[0]}: {len(curves.steps)} snapshots, steps {curves.steps[0]} to {curves.steps[-1]}")
print(curves.table())

# %% [markdown]
# ## The baseline of a swap
#
# Does swapping the key frame between two sequences shift the answer? The baseline swaps random subspaces of the same
# rank.

# %%
for layer in range(curves.answer_shift_bits.value.shape[-1]):
    shift = curves.answer_shift_bits[0, -1, layer]
    chance = shift.baseline("random subspaces").value
    print(f"layer {layer}: answer shift {float(shift):.2f} bits, random subspaces {chance:.2f}")

# %% [markdown]
# ## The page
#
# Curves over log steps, an animation of the values with a slider, and attention at a few steps: one file that opens
# offline.

# %%
print(diagnosis.summary())

# %% [markdown]
# The table fits into 100 columns and cuts long labels. These are the same numbers in full, with all baselines.

# %%
for name, line in diagnosis.headlines():
    print(f"{name}: {line}")

# %%
diagnosis.save(OUT)
print(f"\nreport: {OUT / 'report.html'}")
