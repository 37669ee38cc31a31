"""Where the samples in `schema2/` come from: reports as they were committed before the conversion to schema 3.

The smallest report of most kinds is stored whole. Reports of larger kinds are cut along one axis, as `CUTS` states;
the numbers that remain are unchanged. This script makes the cut samples from the git history:

    python -m tests.results.samples
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save_file

from bayesgeom.results.storage import ARRAYS, HASH, JSON, hashed

SAVED = Path(__file__).parent / "schema2"
COMMIT = "9630614f~1"  # the last one whose readings have schema 2
READINGS = Path(__file__).parents[2] / "docs" / "readings"
ORIGINS = {
    "ablation": "bijection-v20/ablation",
    "attention_entropy": "claims/attention-entropy-bijection-v20-repeats",
    "attention_maps": "dynamics-bijection",
    "belief_readout": "claims/belief-readout-mess3-small",
    "calibration": "claims/calibration-bijection-mlp",
    "comparison": "mlp-prefix",
    "dynamics": "dynamics-bijection",
    "em_experiment": "em-experiment",
    "erasure_onwards": "interventions/bijection-v20-repeats/onwards-leace-entropy",
    "gradient_movement": "gradient-movement/bijection-v20-decayed",
    "gradients": "claims/gradients-bijection-v20",
    "intervention": "interventions/hmm-lstm/leace-belief-carried-after",
    "joint_intervention": "bijection-v20-llama/entropy_axis-remove-together",
    "key_overlap": "claims/key-overlap-bijection-v20",
    "length": "length-recall-recurrent",
    "manifold_film": "dynamics-bijection",
    "qk_alignment": "claims/qk-alignment-bijection-v20-repeats",
    "relabelling": "relabeling/recall-lstm",  # then relabelling/recall-lstm
    "replication": "seeds-sticky",
    "sweep": "sweep/recall-transformer",
    "value_manifold": "claims/value-manifold-bijection-v20-repeats",
}
CUTS: Mapping[str, Mapping[str, Any]] = {
    "attention_maps": {"maps": np.s_[:, :, :5, :5]},  # the first positions: a causal map of five tokens
    "belief_readout": {  # points of the drawn simplex
        "drawn_belief": np.s_[:29],
        **dict.fromkeys(("drawn_first", "drawn_last", "drawn_untrained"), np.s_[:, :29]),
    },
    "dynamics": {},  # a part of a larger folder
    "em_experiment": {  # recorded steps
        "recorded_steps": np.s_[::20],
        **dict.fromkeys(("loss_bits_by_step", "held_out_bits_by_step"), np.s_[..., ::20]),
    },
    "gradients": dict.fromkeys(("mean_advantage_nats", "mean_attention"), np.s_[:, :, :3, :5]),  # queries and keys
    "manifold_film": {"cloud": np.s_[:, :11], "entropy_bits": np.s_[:11]},  # points of the film
}


def committed(file: str) -> bytes:
    """A file of the readings as it was committed before the conversion."""
    return subprocess.run(["git", "show", f"{COMMIT}:docs/readings/{file}"], check=True, capture_output=True).stdout


def main() -> None:
    """Write every cut sample."""
    for kind, cuts in CUTS.items():
        content = json.loads(committed(f"{ORIGINS[kind]}/{JSON}"))
        whole = load(committed(f"{ORIGINS[kind]}/{ARRAYS}"))
        own = {name: values for name, values in whole.items() if name.startswith(f"{kind}/")}
        arrays = {name: np.ascontiguousarray(values[cuts.get(name.split("/")[1], ...)]) for name, values in own.items()}
        rest = {key: value for key, value in content.items() if key != HASH}
        rest["reports"] = {kind: content["reports"][kind]}
        folder = SAVED / kind
        folder.mkdir(exist_ok=True)
        save_file(arrays, folder / ARRAYS)
        (folder / JSON).write_text(json.dumps({**rest, HASH: hashed(rest, arrays)}), encoding="utf-8")


if __name__ == "__main__":
    main()
