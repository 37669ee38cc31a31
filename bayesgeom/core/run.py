"""What one pass of a model over trials leaves: behavior of every sequence, activations of the recorded ones."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float, Shaped
from torch import Tensor

from bayesgeom.core.errors import MissingSite
from bayesgeom.core.memory import WindowScores
from bayesgeom.core.sites import Site
from bayesgeom.core.trials import Trials
from bayesgeom.stats.information import entropy_bits

_HASH = re.compile(r"[0-9a-f]{16}")


@final
@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What a model is: sizes under the field's names, and what its numbers depend on.

    `score_scale` multiplies q·k; `weights_hash` identifies the weights as they were before anything wrapped them. That
    of an untrained network is what `untrained` says of its seed. `d_state` is the width of one layer's recurrent state
    at one position, 0 where there is none. `quantization` says what the weights were dequantized from, and is empty for
    weights that never were quantized.
    """

    name: str
    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    d_vocab: int
    n_ctx: int | None  # None: no position table, any length
    score_scale: float
    n_parameters: int
    dtype: str
    device: str
    weights_hash: str
    d_state: int = 0
    quantization: str = ""

    @property
    def is_identified(self) -> bool:
        """Whether the weights were hashed. Progress on disk is resumed only by a model with the hash it was made with.

        Example:
            >>> untrained(7)
            'untrained, seed 7'
        """
        return bool(_HASH.fullmatch(self.weights_hash))

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; without a quantization where there is none."""
        return {name: value for name, value in asdict(self).items() if name != "quantization" or value}


def untrained(seed: int) -> str:
    """Return what stands for the hash of an untrained network: its weights follow from its seed."""
    return f"untrained, seed {seed}"


@final
@dataclass(frozen=True, kw_only=True)
class Behavior:
    """What predictions were worth, per sequence and scored position, in bits.

    Entropy, KL and total variation use the model's distribution renormalized over the answers; `off_answer_prob` is the
    probability that it put elsewhere. `answer_log2` is log2 of the probability of the label, and `correct`
    is 1 where the most probable answer is the label. A run holds these in float32: sum them in float64.

    Where no posterior is known, all are NaN but `model_entropy_bits`, which is then over the whole vocabulary.
    """

    exact_entropy_bits: Float[np.ndarray, "sequence position"]
    model_entropy_bits: Float[np.ndarray, "sequence position"]
    kl_bits: Float[np.ndarray, "sequence position"]
    total_variation: Float[np.ndarray, "sequence position"]
    off_answer_prob: Float[np.ndarray, "sequence position"]
    answer_log2: Float[np.ndarray, "sequence position"]
    correct: Float[np.ndarray, "sequence position"]


def at_scored(
    site: Site, values: Shaped[Tensor, "*axes"], trials: Trials, *, axes: Sequence[str] = ("pos", "query_pos")
) -> Shaped[Tensor, "*kept"]:
    """Return a site's activations at the scored positions.

    Args:
        site: Names the axes of `values`.
        values: Activations of one layer at every position.
        trials: The sequences that were read.
        axes: Names of the axis to cut. `values` is returned as it is where the site has none of them: keys and values
            keep every position, unless "key_pos" is named.
    """
    for axis in axes:
        if axis in site.axes:
            at = site.axes.index(axis)
            return trials.at_scored(values.movedim(at, 1)).movedim(1, at)
    return values


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """One finished pass. Probes read it; nothing writes to it.

    - `behavior`, `exact_behavior`, `baseline_behaviors`: all `n` sequences, scored for the model, for the exact
      predictive itself, and for each baseline predictor.
    - `trials`, `log_answers`, `recorded`: the sequences whose activations were kept, the first of the stream.
    - `log_answers`: natural log of the model's probability of each answer, renormalized over the answers.
    - `seed`: what a probe's own resampling starts from.
    - `windows`: the window observers' scores on all `n` sequences, where the task has latent dynamics.
    """

    spec: ModelSpec
    behavior: Behavior
    exact_behavior: Behavior
    baseline_behaviors: Mapping[str, Behavior]
    trials: Trials
    log_answers: Float[Tensor, "batch query_pos answer"]
    recorded: Mapping[Site, Shaped[Tensor, "layer *axes"]]
    seed: int
    windows: WindowScores | None = None

    @property
    def n(self) -> int:
        """Sequences behind the behavioral numbers."""
        return len(self.behavior.kl_bits)

    @property
    def n_recorded(self) -> int:
        """Sequences whose activations were kept."""
        return len(self.trials)

    @property
    def has_posterior(self) -> bool:
        """Whether the exact posterior of these trials is known."""
        return self.trials.has_posterior

    def reference_entropy_bits(self) -> Float[np.ndarray, "batch query_pos"]:
        """What geometry is compared with, for the recorded sequences: entropy of the exact predictive.

        Of text, whose posterior nobody knows, the model's own over its whole vocabulary.
        """
        if self.has_posterior:
            exact: Tensor = entropy_bits(self.trials.at_scored(self.trials.predictive))
            return exact.cpu().numpy()
        return self.behavior.model_entropy_bits[: self.n_recorded].astype(np.float64)

    def vectors(self, site: Site, layer: int) -> Float[Tensor, "batch query_pos d"]:
        """Return the recorded activations of one layer at the scored positions, heads side by side.

        Raises:
            MissingSite: The site was not recorded.
        """
        return at_scored(site, self.at(site)[layer], self.trials, axes=("key_pos",)).flatten(2)

    def at(self, site: Site) -> Shaped[Tensor, "layer *axes"]:
        """The recorded activations of every layer. **Raises** `MissingSite` when the site was not recorded."""
        if site not in self.recorded:
            held = ", ".join(sorted(s.name for s in self.recorded)) or "(none)"
            raise MissingSite(f"site {site.name!r} was not recorded in this run of {self.spec.name}. It holds: {held}.")
        return self.recorded[site]
