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
# snapshot, and shows what one training can say and what it cannot.
#
# Run it as a script, or open it as a notebook (`jupytext --to notebook how_the_frame_forms.py`). It needs no network.

# %%
import os
from pathlib import Path

from bayesgeom.dynamics.run import DynamicsJob

RUN = os.environ.get("BAYESGEOM_EXAMPLE_FORMATION", "bijection-formation")  # a packed training, or a run's directory
N = int(os.environ.get("BAYESGEOM_EXAMPLE_N", "128"))  # sequences; the tests set a small one
OUT = Path(os.environ.get("BAYESGEOM_EXAMPLE_OUT", "runs/formation"))

# %% [markdown]
# ## Measure every snapshot on the same sequences
#
# One model is in memory at a time. What was measured of a snapshot is kept beside the report until it is written, so
# that a stopped analysis goes on.

# %%
job = DynamicsJob.of([RUN], n=N, progress=OUT / "parts")
(run,) = job.runs
print(f"{run.name}: {len(run.steps)} snapshots, steps {run.steps[0]} to {run.steps[-1]}")
diagnosis = job.run()
report = diagnosis["dynamics"]
print(report.table())

# %% [markdown]
# ## What settles first?
#
# The frame has settled where patterns are within a tenth of their first distance from the last snapshot; precision
# where KL is at most twice the last one. The second mark is the harder one, so precision is timed by the frame's rule
# too. One training decides nothing, and the report says so.

# %%
print(f"frame settles at step             {report.frame_step[0]:g}")
print(f"precision, twice the last KL      {report.precision_step[0]:g}")
print(f"precision, by the frame's rule    {report.precision_step_by_share[0]:g}")
print(f"verdict: {report.verdict}")

# %% [markdown]
# ## Does anything fall again?
#
# The authors' own table of a formation holds a dip that nobody mentions. For every curve: the largest fall after a
# maximum, with its interval over sequences, and whether it counts.

# %%
for at, curve in enumerate(report.curves):
    where = f"steps {report.fall_start[at]:g} to {report.fall_end[at]:g}"
    print(f"{curve:24} {report.fall[at]:8.3f}  [{report.fall_lo[at]:.3f}, {report.fall_hi[at]:.3f}]  {where}")
    print(f"{'':24} {report.fall_verdicts[at]}")

# %% [markdown]
# ## The null of a swap
#
# Exchanging the frame between two sequences turns the answer, or does not; random subspaces of the same rank beside it.

# %%
for layer in range(report.redirect_bits.shape[-1]):
    swapped, floor = report.redirect_bits[0, -1, layer], report.redirect_bits_null[0, -1, layer]
    print(f"layer {layer}: redirect {swapped:.2f} bits, random subspaces {floor:.2f}")

# %% [markdown]
# ## The page
#
# Curves over log steps, the values as a film with a slider, and attention at a few steps: one file that opens offline.

# %%
print(diagnosis.summary())
diagnosis.save(OUT)
print(f"\nreport: {OUT / 'report.html'}")
