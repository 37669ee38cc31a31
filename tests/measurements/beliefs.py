"""Planted runs that tests of the belief measurements share."""

from dataclasses import replace

import numpy as np
import torch

from bayesgeom.core.run import RESID_POST, RESID_PRE, STATE, Run
from bayesgeom.measurements.base import planted_run
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM

N, LAYERS, D = 61, 3, 13
REPEATS, DISTINCT = Bijection(n_values=5, n_pairs=7, repeats=True), Bijection(n_values=5, n_pairs=3)
CHAIN = HMM(n_states=3, n_symbols=2, length=7, floor=0.1, grid=0.05)
NOISE, WRITTEN, GUESSES = range(LAYERS)


def planted(task: WindTunnel = REPEATS, *, n: int = N, seed: int = 0) -> Run:
    """Noise; the belief, linearly; the best guess alone. The embedding is noise."""
    trials, rng = task.sample(n, seed=seed), np.random.default_rng(seed)
    belief = trials.at_scored(trials.belief).numpy()
    noise = rng.normal(size=(*belief.shape[:2], D))
    guesses = 9 * np.eye(belief.shape[-1], D)[belief.argmax(axis=-1)]
    layers = np.stack([noise, belief @ rng.normal(size=(belief.shape[-1], D)), guesses + 0.1 * noise])
    return planted_run(
        trials, {RESID_POST: torch.from_numpy(layers), RESID_PRE: torch.from_numpy(layers[::-1].copy())}, seed=seed
    )


def recurrent(task: WindTunnel = CHAIN, *, n: int = N, seed: int = 0) -> Run:
    """A stream of noise in every layer, and states that hold the belief linearly, then the best guess alone."""
    run = planted(task, n=n, seed=seed)
    layers = run.at(RESID_POST)
    states = torch.nn.functional.pad(layers[[NOISE, WRITTEN, GUESSES]], (0, 4))
    return replace(run, recorded={RESID_POST: layers[[NOISE]].expand(3, -1, -1, -1), STATE: states})
