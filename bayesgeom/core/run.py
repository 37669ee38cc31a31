"""The result of one pass of a model: behavior on every sequence, and activations of the recorded sequences."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

import numpy as np
from jaxtyping import Float, Shaped
from torch import Tensor

from bayesgeom.core.errors import MissingSite
from bayesgeom.core.sites import Site
from bayesgeom.core.trials import Trials
from bayesgeom.stats.information import entropy_bits
from bayesgeom.stats.memory import WindowScores

_HASH = re.compile(r"[0-9a-f]{16}")
_UNTRAINED = "untrained, seed "
_OMITTED = ("quantization", "d_value")  # where they say nothing


@final
@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Sizes of a model, and what its numbers depend on.

    Attributes:
        name: Name of the checkpoint, or another name of the model.
        architecture: Name of the architecture, such as "transformer" or "llama".
        n_ctx: Longest sequence in tokens. None: any length.
        score_scale: Factor that multiplies q·k.
        weights_hash: Hash of the weights before they were wrapped. For an untrained network, the text of
            `untrained(seed)`.
        d_value: Width of a head's values and output; 0 if it is `d_head`.
        d_state: Width of one layer's recurrent state at one position; 0 if there is none.
        quantization: Format from which the weights were dequantized; empty if they were not quantized.
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
    d_value: int = 0

    @property
    def d_of_value(self) -> int:
        """Width of a head's values and output, which is `d_head` in most architectures."""
        return self.d_value or self.d_head

    @property
    def is_identified(self) -> bool:
        """Whether the weights were hashed. Saved progress is resumed only by a model with the same hash."""
        return bool(_HASH.fullmatch(self.weights_hash))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON types, without `quantization` and `d_value` if they say nothing."""
        return {name: value for name, value in asdict(self).items() if name not in _OMITTED or value}


def untrained(seed: int) -> str:
    """Return the text that replaces the hash of an untrained network, whose weights follow from its seed."""
    return f"{_UNTRAINED}{seed}"


def is_untrained(spec: ModelSpec) -> bool:
    """Return whether the spec is that of an untrained network."""
    return spec.weights_hash.startswith(_UNTRAINED)


@final
@dataclass(frozen=True, kw_only=True)
class Behavior:
    """Scores of predictions per sequence and scored position, in bits.

    Entropy, KL and total variation use the model's distribution renormalized over the answers. `off_answer_prob` is the
    probability that the model assigns to other ids. `answer_log2` is log2 of the probability of the label, and
    `correct` is 1 if the most probable answer is the label. Values are float32: sum them in float64.

    If no posterior is known, all values are NaN except `model_entropy_bits`, which is then over the whole vocabulary.
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
        site: The site, which names the axes of `values`.
        values: Activations of one layer at every position.
        trials: The sequences.
        axes: Names of axes; the first one that the site has is reduced to the scored positions. If it has none of them,
            `values` is returned unchanged: keys and values keep every position unless "key_pos" is included.
    """
    for axis in axes:
        if axis in site.axes:
            at = site.axes.index(axis)
            return trials.at_scored(values.movedim(at, 1)).movedim(1, at)
    return values


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished pass of a model, which probes read.

    Attributes:
        spec: The model.
        behavior: Scores of the model on all `n` sequences.
        exact_behavior: Scores of the exact predictive on the same sequences.
        baseline_behaviors: Scores of each baseline predictor on the same sequences.
        trials: The first `n_recorded` sequences, whose activations were recorded.
        log_answers: Natural log of the model's answer probabilities, renormalized over the answers, on `trials`.
        recorded: Activations of every layer, by site, on `trials`.
        layers: Layers of the sites that only some layers have; the layer axis in `recorded` is that of these.
        reduced: Statistics of `trials` that were computed during the pass, by the name of their `Reduction`.
        reduced_layers: Layers of the statistics that were not computed in all layers; the first axis is that of these.
        streamed: The same pass with `reduced` on more sequences.
        seed: Seed of a probe's own resampling.
        windows: The window observers' scores on all `n` sequences. None if the task has no latent dynamics.
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
    layers: Mapping[Site, tuple[int, ...]] = field(default_factory=dict)
    reduced: Mapping[str, Shaped[Tensor, "reduced_layer *reduced"]] = field(default_factory=dict)
    reduced_layers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    streamed: "Run | None" = None

    @property
    def n(self) -> int:
        """Number of sequences in the behavioral scores."""
        return len(self.behavior.kl_bits)

    @property
    def n_recorded(self) -> int:
        """Number of sequences whose activations were recorded."""
        return len(self.trials)

    @property
    def has_posterior(self) -> bool:
        """Whether the exact posterior of these trials is known."""
        return self.trials.has_posterior

    def with_statistics(
        self,
        reduced: Mapping[str, Shaped[Tensor, "reduced_layer *reduced"]],
        layers: Mapping[str, tuple[int, ...]],
        trials: Trials,
        log_answers: Float[Tensor, "streamed query_pos answer"],
    ) -> "Run":
        """Return the run with `streamed`: these statistics of these sequences, in these layers."""
        static = {site: own for site, own in self.recorded.items() if site.is_static}
        own = replace(self, trials=trials, log_answers=log_answers, recorded=static)
        return replace(self, streamed=replace(own, reduced=reduced, reduced_layers=layers))

    def reference_entropy_bits(self) -> Float[np.ndarray, "batch query_pos"]:
        """Return the entropy that geometry is compared with, for the recorded sequences.

        This is the entropy of the exact predictive. On text without a known posterior, it is the entropy of the model's
        own prediction over the whole vocabulary.
        """
        if self.has_posterior:
            exact: Tensor = entropy_bits(self.trials.at_scored(self.trials.predictive))
            return exact.cpu().numpy()
        return self.behavior.model_entropy_bits[: self.n_recorded].astype(np.float64)

    def vectors(self, site: Site, layer: int) -> Float[Tensor, "batch query_pos d"]:
        """Return the recorded activations of one layer at the scored positions, with heads concatenated.

        Raises:
            MissingSite: The site was not recorded.
        """
        return at_scored(site, self.at(site)[layer], self.trials, axes=("key_pos",)).flatten(2)

    def at(self, site: Site) -> Shaped[Tensor, "layer *axes"]:
        """Return the recorded activations of every layer.

        Raises:
            MissingSite: The site was not recorded.
        """
        if site not in self.recorded:
            stored = ", ".join(sorted(s.name for s in self.recorded)) or "(none)"
            raise MissingSite(
                f"site {site.name!r} was not recorded in this run of {self.spec.name}. Recorded sites: {stored}."
            )
        return self.recorded[site]
