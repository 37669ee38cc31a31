"""Halfway: ablate by moving an activation half the way to the task's mean at its position."""

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Shaped
from torch import Tensor

from bayesgeom.core.edits import AblationMode, Reference
from bayesgeom.core.run import Site


@final
@dataclass(frozen=True)
class Halfway(AblationMode):
    """Replace x by (x + mean) / 2: half of what distinguishes the sequence remains."""

    name: ClassVar[str] = "halfway"

    def replacement(
        self, values: Shaped[Tensor, "..."], site: Site, layer: int, reference: Reference
    ) -> Shaped[Tensor, "..."]:
        return (values + reference.mean(site, layer).to(values)) / 2
