"""Token difference: the direction from one token's embedding to another's, the same in every layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.subspaces.base import About, NamedFit, Sample, Setting, Subspace, span
from bayesgeom.subspaces.frames import token_embeddings


@final
@dataclass(frozen=True)
class TokenDifference(NamedFit):
    """One direction of the residual stream; `first` and `second` are token ids."""

    name: ClassVar[str] = "token_difference"
    first: int
    second: int

    @property
    def label(self) -> str:
        return f"token {self.first} − token {self.second}"

    @property
    def about(self) -> About:
        return About()

    def check(self, setting: Setting) -> None:
        d_vocab = setting.model.spec.d_vocab
        if not setting.place.is_residual:
            raise InvalidArgument(f"{self.label} lies in the residual stream, not at {setting.place.site.name!r}.")
        if self.first == self.second or not 0 <= min(self.first, self.second) <= max(self.first, self.second) < d_vocab:
            raise InvalidArgument(f"{self.label}: use two different token ids from 0 to {d_vocab - 1}.")

    def fitted(self, sample: Sample, layers: Sequence[int]) -> dict[int, Subspace]:
        first, second = token_embeddings(sample.model, torch.tensor([self.first, self.second]))
        return dict.fromkeys(layers, span(self.label, (first - second)[:, None]))
