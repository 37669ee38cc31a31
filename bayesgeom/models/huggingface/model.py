"""Adapter for Hugging Face causal language models: PyTorch hooks and the attention interface.

It does not use `TransformerBridge`. Booting a bridge modifies the model in place (its state dict, its
`save_pretrained`), its rotated keys never fire on GPT-NeoX, Phi-3 and GPT-J, and edits of its patterns have no effect
on OPT. Hooks on the unmodified model reach every site of every tested family, keep the weights, and work with
`device_map`.

There is no table of families. `anatomy` finds the parts by what they compute. `proof` checks every site in every layer,
including edits, against the equations that relate sites. A site that fails is withheld, with the reason.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, final

from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesgeom.core.run import ModelSpec, Site, Trials, untrained
from bayesgeom.core.tokenizer import Tokenizer
from bayesgeom.core.torch_state import alone, evaluating, structure_of
from bayesgeom.models.base import Model, Replayer
from bayesgeom.models.checkpoint import weights_hash
from bayesgeom.models.huggingface.attach import Attached, attach, untrained_copy
from bayesgeom.models.huggingface.weights import weights_identity
from bayesgeom.models.replay.hooked import prefix_replayer
from bayesgeom.tasks.base import WindTunnel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@final
class HFModel(Model):
    """The `Model` of a Hugging Face causal language model. Text tasks need `tokenizer`.

    Raises:
        InvalidArgument: The model is not causal, has no recognizable blocks, or has sharded heads.
    """

    def __init__(
        self,
        hf: "PreTrainedModel",
        *,
        name: str | None = None,
        tokenizer: Tokenizer | None = None,
        task: WindTunnel | None = None,
        digest: str | None = None,
        rebuild: "Callable[[int], PreTrainedModel] | None" = None,
    ) -> None:
        self.module, self.task, self.tokenizer, self.structure = hf, task, tokenizer, structure_of(hf)
        self._hf, self._rebuild, self._is_plain_hash = hf, rebuild, digest is not None
        self._replayer: Replayer | None = None
        self._attached: Attached = attach(hf, name or type(hf).__name__, digest)
        self.spec: ModelSpec = self._attached.spec
        self.withheld: Mapping[Site, str] = self._attached.withheld
        every = tuple(range(self.spec.n_layers))
        self.partial_sites = {site: own for site, own in self._attached.layers.items() if own != every}

    @property
    def sites(self) -> frozenset[Site]:
        return frozenset(self._attached.layers).difference(self.partial_sites)

    def digest(self) -> str:
        """Return the hash of the weights as they are now, made as that of the spec."""
        return weights_hash(self._hf.state_dict()) if self._is_plain_hash else weights_identity(self._hf)

    def attached_again(self, digest: str) -> "HFModel":
        """Return a new adapter of the model as it is now; `digest` is the hash of its weights."""
        given = digest if self._is_plain_hash else None
        return HFModel(self._hf, name=self.spec.name, task=self.task, digest=given, rebuild=self._rebuild)

    def proof_errors(self) -> Mapping[Site, float]:
        """Return the largest equation error of each site, relative to the largest entry."""
        return self._attached.errors

    def point(self, site: Site, layer: int) -> nn.Module:
        return self._attached.site_hooks.taps.at(site, layer)

    def static(self, site: Site, tokens: Int64[Tensor, " token"], layer: int) -> Float[Tensor, "*axes"]:
        return self._attached.static_sites.of(site, tokens, layer)

    @alone()
    def logits(self, trials: Trials) -> Float[Tensor, "batch query_pos d_vocab"]:
        with evaluating(self._hf), self._attached.site_hooks.open():
            return self._attached.forward.at_scored(trials)

    def untrained_copy(self, seed: int) -> "HFModel":
        hf = untrained_copy(self._hf, seed, device=self.spec.device, rebuild=self._rebuild)
        name = f"{self.spec.name} at initialization {seed}"
        return HFModel(
            hf, name=name, tokenizer=self.tokenizer, task=self.task, digest=untrained(seed), rebuild=self._rebuild
        )

    @alone()
    def replayer(self) -> Replayer:
        if self._replayer is None:
            self._replayer = prefix_replayer(self, self._attached.site_hooks.anatomy.blocks)
        return self._replayer
