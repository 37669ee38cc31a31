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
# Does attention settle long before the answers are precise? This walk-through follows one shipped training, snapshot by
# snapshot, and shows what one training can and cannot decide.
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
curves, settled = diagnosis["dynamics"], diagnosis["settling"]
print(f"{curves.runs[0]}: {len(curves.steps)} snapshots, steps {curves.steps[0]} to {curves.steps[-1]}")
print(curves.table())

# %% [markdown]
# ## What settles first?
#
# There are two fixed thresholds. `frame_step` is the first snapshot whose pattern distance is at most a tenth of the
# first one's. `precision_step` is the first whose KL is at most twice the last one's. The second is harder to reach, so
# the report also times precision by the frame's rule. The verdict uses another rule, *settled* (docs/dynamics.md). One
# training decides nothing, and the report says so.

# %%
print(f"frame threshold reached at step   {settled.frame_step[0]:g}")
print(f"precision, twice the last KL      {settled.precision_step[0, 0]:g}")
print(f"precision, by the frame's rule    {settled.precision_step[1, 0]:g}")
print(f"verdict: {settled.conclusion()}")

# %% [markdown]
# ## Does anything fall again?
#
# The authors' own table of a formation contains a dip that their text does not mention. The report gives, for every
# curve, the largest fall after a maximum, and whether it counts as a dip. That needs three trainings: the first half of
# them chooses the two steps, and the others measure the fall between them. Here there is one, so nothing is decided.

# %%
for at, curve in enumerate(settled.curves):
    where = "steps {:g} to {:g}".format(*settled.fall_steps[:, at])
    print(f"{curve:24} {float(settled.fall[at]):8.3f}  {where}")
    print(f"{'':24} {settled.fall_verdicts[at]}")

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
