"""`InterventionSite`: the hook point, layers and positions where a subspace is edited."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, final

from bayesgeom.core.errors import InvalidArgument, check_types
from bayesgeom.core.run import RESID_PRE, ModelSpec, Site, V, Z
from bayesgeom.models.base import STAGES, Model
from bayesgeom.models.replay.carried import CARRIED, check_carries


@final
@dataclass(frozen=True)
class InterventionSite:
    """Hook point, layers and positions of an intervention.

    Args:
        site: the hook point.
        layers: layers to edit, one at a time; None means all.
        positions: "all" or "scored"; None means "scored" for subspaces that are fitted at scored positions (those of a
            quantity) and "all" for others.
        score_after: edit one scored position and score only later ones. This separates information that is passed on
            to later positions from information that is read out at once.

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
        """Whether vectors at this site are in residual-stream coordinates."""
        return self.site not in (Z, V, CARRIED)

    def check_in(self, model: Model, *, editable: Collection[Site] = (*STAGES, CARRIED)) -> None:
        """Check site and layers.

        Args:
            model: The model to edit.
            editable: Sites that the intervention supports.

        Raises:
            MissingSite: The model lacks the site.
            InvalidArgument: The site cannot be edited, or a layer does not exist.
        """
        if self.site != CARRIED:
            model.require((self.site,), by="an intervention", layers=self.layers)
        if self.site not in editable:
            allowed = ", ".join(site.name for site in editable)
            raise InvalidArgument(f"an intervention can edit {allowed}; not {self.site.name!r}.")
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
                f"layers {list(chosen)}: choose at least one of 0 … {n_layers - 1} of {model.spec.name}, each once."
            )

    def layers_of(self, spec: ModelSpec) -> tuple[int, ...]:
        """Return the chosen layers; all by default.

        Args:
            spec: Size of the model.
        """
        return tuple(range(spec.n_layers)) if self.layers is None else tuple(self.layers)

    def width_in(self, spec: ModelSpec) -> int:
        """Return the number of coordinates at one position, over all heads for z and v.

        Args:
            spec: Size of the model.
        """
        if self.is_residual:
            return spec.d_model
        if self.site == CARRIED:
            return 2 * spec.d_model
        return (spec.n_kv_heads if self.site == V else spec.n_heads) * spec.d_of_value
