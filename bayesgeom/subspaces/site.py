"""Places: the site, its layers and positions at which a subspace is acted on; each layer alone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, final

from bayesgeom.checks.arguments import check_types
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import ModelSpec
from bayesgeom.core.sites import RESID_PRE, Site, V, Z
from bayesgeom.models.base import Model
from bayesgeom.models.replay.carried import CARRIED, check_carries
from bayesgeom.models.replay.replayer import STAGES


@final
@dataclass(frozen=True)
class InterventionSite:
    """Where to act.

    Args:
        site: the hook point.
        layers: layers to act in, one at a time; with none, all.
        positions: "all" or "scored"; with none, "scored" for subspaces that are fitted there (those of a quantity),
            "all" for others.
        score_after: act at one scored position and score at later ones only, so that what is carried on is told from
            what is read out at once.

    Example:
        >>> import bayesgeom
        >>> bayesgeom.InterventionSite(layers=(0, 2)).site.name
        'resid_pre'
    """

    site: Site = RESID_PRE
    layers: Sequence[int] | None = None
    positions: Literal["all", "scored"] | None = None
    score_after: bool = False

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def is_residual(self) -> bool:
        """Whether vectors there are written in the residual stream's own coordinates."""
        return self.site not in (Z, V, CARRIED)

    def check_in(self, model: Model, *, editable: Collection[Site] = (*STAGES, CARRIED)) -> None:
        """Check site and layers.

        **Raises** `MissingSite` for a site that the model lacks, `InvalidArgument` for one that cannot be edited or a
        layer that is not there.
        """
        if self.site != CARRIED:
            model.require((self.site,), by="an intervention")
        if self.site not in editable:
            allowed = ", ".join(site.name for site in editable)
            raise InvalidArgument(f"an intervention acts at {allowed}; not at {self.site.name!r}.")
        if self.site == CARRIED:
            check_carries(model)
            if not self.score_after:
                raise InvalidArgument(
                    "a carried state is edited after one position: use InterventionSite(CARRIED, score_after=True)."
                )
        if self.positions not in (None, "all", "scored"):
            raise InvalidArgument(f"positions must be 'all' or 'scored'; got {self.positions!r}.")
        n_layers = model.spec.n_layers
        chosen = self.layers_of(model.spec)
        if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= layer < n_layers for layer in chosen):
            raise InvalidArgument(
                f"layers {list(chosen)}: name at least one of {model.spec.name}'s 0 … {n_layers - 1}, each once."
            )

    def layers_of(self, spec: ModelSpec) -> tuple[int, ...]:
        """The layers that are meant."""
        return tuple(range(spec.n_layers)) if self.layers is None else tuple(self.layers)

    def width_in(self, spec: ModelSpec) -> int:
        """Coordinates of one position there; at z and v all heads' together."""
        if self.is_residual:
            return spec.d_model
        if self.site == CARRIED:
            return 2 * spec.d_model
        return (spec.n_kv_heads if self.site == V else spec.n_heads) * spec.d_head
