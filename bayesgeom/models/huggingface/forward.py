"""The forward pass of a Hugging Face model, without a cache and with logits at the scored positions only."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.trials import Trials

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextlib.contextmanager
def evaluating(hf: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside the block; each part's training mode is restored."""
    training = [part for part in hf.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


@final
class Forward:
    """Maps tokens to logits, without a padding mask: pad on the right, which causal models do not see."""

    def __init__(self, hf: "PreTrainedModel") -> None:
        self._hf = hf
        self._takes = frozenset(inspect.signature(hf.forward).parameters)

    def logits(self, tokens: Int64[Tensor, "batch pos"], **options: Any) -> Float[Tensor, "batch *kept_d_vocab"]:
        """Return the logits at every position, or at those in the option `logits_to_keep`.

        Raises:
            InvalidArgument: The model returns no logits.
        """
        known: Mapping[str, Any] = {"use_cache": False, "attention_mask": torch.ones_like(tokens), **options}
        output: Mapping[str, Tensor] = self._hf(
            input_ids=tokens, return_dict=True, **{name: value for name, value in known.items() if name in self._takes}
        )
        if "logits" not in output:
            raise InvalidArgument(
                f"{type(self._hf).__name__} returns no logits: it is not a causal language model. Load it with "
                f"AutoModelForCausalLM."
            )
        return output["logits"]

    def at_scored(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        """Return the logits at the scored positions; others are not computed if the model supports it."""
        if "logits_to_keep" not in self._takes:
            return trials.at_scored(self.logits(trials.tokens))
        positions, place = trials.scored_positions().unique(return_inverse=True)
        logits = self.logits(trials.tokens, logits_to_keep=positions)
        if len(positions) == trials.n_scored:  # the same positions in every sequence
            return logits
        return logits.gather(1, place.to(logits.device)[..., None].expand(*place.shape, logits.shape[-1]))
