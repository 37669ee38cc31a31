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
# # Diagnose a checkpoint
#
# Does this model compute the Bayesian posterior of its task, and what does its geometry look like? This walk-through
# loads a trained transformer, measures it, and shows how to read the report: every number next to its baselines.
#
# Run it as a script, or open it as a notebook (`jupytext --to notebook diagnose_a_checkpoint.py`).

# %%
import os
from pathlib import Path

import torch

import bayesgeom
from bayesgeom.report.diagnosis import left_out
from bayesgeom.report.storage import axes_of
from bayesgeom.stats.behavior import answer_log_probabilities, behavior
from bayesgeom.stats.information import entropy_bits

CHECKPOINT = os.environ.get("BAYESGEOM_EXAMPLE_CHECKPOINT", "bijection-v20")  # a name or a directory
N = int(os.environ.get("BAYESGEOM_EXAMPLE_N", "512"))  # sequences; the tests set a small one
N_UNTRAINED = 2  # untrained networks to compare with
OUT = Path(os.environ.get("BAYESGEOM_EXAMPLE_OUT", "runs/example"))

# %% [markdown]
# ## Load
#
# A checkpoint knows the task that it was trained on. `sites` are the points where probes can read activations. A site
# that failed its identity is listed in `withheld`, with the reason.

# %%
model = bayesgeom.load(CHECKPOINT)
task = model.task
print(f"{model.spec.name}: {model.spec.n_layers} layers, {model.spec.n_heads} heads, d_model {model.spec.d_model}")
print(f"task:  {task}")
print(f"sites: {', '.join(sorted(site.name for site in model.sites))}")
print(f"withheld: {dict(model.withheld) or 'none'}")

# %% [markdown]
# ## Diagnose
#
# One pass over `N` new sequences serves every probe. Each of the `N_UNTRAINED` untrained networks of the same
# architecture needs one more pass.

# %%
diagnosis = bayesgeom.diagnose(model, n=N, seed=0, n_untrained=N_UNTRAINED)
print(diagnosis.summary())

# %% [markdown]
# ## Read each report with its baselines
#
# `about` states what was measured and names the baselines. A number that does not beat its baselines is no evidence. A
# baseline of `nan` does not exist for that number; it is not zero.

# %%
for name, report in diagnosis.items():
    print(f"\n{name} ({report.n} sequences)\n  {report.about}")
    for line in report.headlines():
        print(f"  - {line}")
for name, reason in left_out(diagnosis).items():
    print(f"skipped {name}: {reason}")

# %% [markdown]
# Numbers are estimates: a value, its 95 % interval and its baselines. The report's annotations name their axes.

# %%
calibration = diagnosis["calibration"]
error, by_position = calibration.entropy_mae_bits, calibration.entropy_mae_bits_by_position
print(f"entropy error {float(error):.4f} bits, interval {float(error.low):.4f} to {float(error.high):.4f}")
for baseline in error.baselines:
    print(f"  {baseline.kind}, {baseline.name}: {float(baseline.value):.4f} bits")
worst = int(by_position.value.argmax())
print(f"largest at scored position {worst + 1}: {by_position.value[worst]:.4f} bits")
print(axes_of(type(calibration))["entropy_mae_bits_by_position"])

# %% [markdown]
# ## Look at a figure
#
# A figure is drawn from the stored numbers; the gray lines are baselines. In a notebook the last line shows it. In a
# script, `calibration.plot().show()` opens it in a browser and `calibration.to_html("calibration.html")` writes a page.

# %%
figure = calibration.plot()
figure

# %% [markdown]
# ## Save, load again
#
# The directory holds `report.json`, `arrays.safetensors`, `metrics.parquet` and `report.html`. The page opens offline.

# %%
diagnosis.save(OUT)
again = bayesgeom.Diagnosis.load(OUT)
assert again.summary() == diagnosis.summary()
print(f"{OUT}: {', '.join(sorted(path.name for path in OUT.iterdir()))}")

# %% [markdown]
# The tidy table holds one row per number. `to_xarray()` gives the same numbers with named axes.

# %%
table = diagnosis.to_pandas()
rows = table.query("probe == 'calibration' and position.isna()")
print(rows[["metric", "value", "low", "high", "baseline", "baseline_name", "n"]])

# %% [markdown]
# ## Look at single sequences
#
# A mean can hide errors. Here is one sequence: the query, the exact posterior and the model's prediction.
# `trials.at_scored` keeps the positions at which the task requests a prediction.

# %%
trials = task.sample(3, seed=1)
labels = task.token_labels()
with torch.no_grad():
    log_answers, off_answer_prob = answer_log_probabilities(model.logits(trials), trials)
exact = entropy_bits(trials.at_scored(trials.predictive))
said = entropy_bits(log_answers.exp())
asked, targets = trials.at_scored(trials.tokens), trials.at_scored(trials.labels)
print("query at  answer  H exact  H model  P(answer) exact  P(answer) model")
for step in range(trials.n_scored):
    answer = (trials.answers == targets[0, step]).nonzero().item()
    p_exact = trials.at_scored(trials.predictive)[0, step, answer]
    p_model = log_answers[0, step, answer].exp()
    print(
        f"{labels[asked[0, step]]:8}  {labels[targets[0, step]]:6}  {exact[0, step]:7.3f}  {said[0, step]:7.3f}  "
        f"{p_exact:15.3f}  {p_model:15.3f}"
    )

# %% [markdown]
# ## Compare with an untrained model
#
# Run the same probes on an untrained network of the same architecture. Geometry that appears here too was not learned.

# %%
untrained = bayesgeom.diagnose(model.untrained_copy(seed=1), n=N, seed=0, n_untrained=0)
print(f"{'':64} {'trained':>10} {'untrained':>10}")
for name, report in diagnosis.items():
    before = {line.metric: line.value for line in untrained[name].headlines()}
    for line in report.headlines():
        print(f"{f'{name}: {line.label}'[:64]:64} {line.value:10.4g} {before.get(line.metric, float('nan')):10.4g}")

# %% [markdown]
# ## Use your own hooks
#
# `model.module` is a transformer-lens module: `run_with_cache` and `run_with_hooks` work on it, with the usual names.
# First, by hand, how much more attention than uniform goes to tokens that are evidence for the query.

# %%
with torch.no_grad():
    _, cache = model.module.run_with_cache(trials.tokens, names_filter=lambda name: name.endswith("hook_pattern"))
visible = trials.scored_positions()[:, :, None] >= torch.arange(trials.tokens.shape[1])
for name, is_related in trials.relations.items():  # batch, scored query, key
    has_evidence = is_related.any(-1)
    uniform = (is_related.float().sum(-1) / visible.sum(-1))[has_evidence].mean()
    by_layer = []
    for layer in range(model.spec.n_layers):
        pattern = trials.at_scored(cache[f"blocks.{layer}.attn.hook_pattern"].movedim(1, 2))  # batch query head key
        mass = (pattern * is_related[:, :, None, :]).sum(-1).mean(-1)
        by_layer.append(float(mass[has_evidence].mean() - uniform))
    print(f"attention to {name}, minus uniform, by layer: {'  '.join(f'{excess:+.3f}' for excess in by_layer)}")

# %% [markdown]
# Then an edit: silence one head at a time in layer 0 (its output `z`, before W_O) and see what that costs. This is a
# look, not a measurement: a few sequences, no interval, and zero is not what the rest of the network is used to.

# %%
trials = task.sample(min(N, 64), seed=2)


def kl_with(fwd_hooks: list) -> float:
    """Mean KL(exact ‖ model) in bits on these trials, with these hooks set for one pass."""
    with torch.no_grad():
        logits = model.module.run_with_hooks(trials.tokens, fwd_hooks=fwd_hooks)
    return float(behavior(trials, *answer_log_probabilities(trials.at_scored(logits), trials)).kl_bits.mean())


baseline = kl_with([])
print(f"KL with every head: {baseline:.4f} bits")
for head in range(model.spec.n_heads):

    def silence(z: torch.Tensor, hook: object, head: int = head) -> torch.Tensor:  # noqa: ARG001  (called by keyword)
        edited = z.clone()
        edited[:, :, head] = 0
        return edited

    print(f"  layer 0 head {head} silenced: {kl_with([('blocks.0.attn.hook_z', silence)]) - baseline:+.4f} bits")
