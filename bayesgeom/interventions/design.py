"""The design of an intervention: the kind of edit, the donors, and the number of controls."""

from dataclasses import dataclass
from typing import Literal, final

from bayesgeom.core.arguments import check_types
from bayesgeom.core.edits import SUBSPACE_KINDS, SubspaceKind
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.report.tables import MOST

Donors = Literal["auto", "paired", "independent"]
DONORS = ("auto", "paired", "independent")
RANDOM, MATCHED = "random subspaces", "variance-matched subspaces"
RANDOM_MOST, MATCHED_MOST = f"{RANDOM}{MOST}", f"{MATCHED}{MOST}"  # where only the largest effect is stored
LEAST_CONTROLS = 20  # fewer random or matched subspaces cannot support "used"


@final
@dataclass(frozen=True)
class Design:
    """The edit of the subspace, and the controls.

    Args:
        kind: "swap", "remove", "keep", "rotate" or "add".
        donors: "paired": pairs of the task, which share their prompts; "independent": other sequences at the same
            positions; "auto": pairs if the quantity differs within them, else independent sequences.
        n_random, n_matched: random subspaces of the same rank, and subspaces with the same share of variance.
        n_control: number of pairs on which controls are scored.
        n_untrained: number of untrained networks in which the swap is repeated.
        n_fit: number of sequences on which subspaces are fitted.

    Raises:
        InvalidArgument: The kind or the donors are unknown, or a number is too small.

    Example:
        >>> import bayesgeom
        >>> from bayesgeom.interventions.design import Design
        >>> Design("remove").n_random
        20
    """

    kind: SubspaceKind = "swap"
    donors: Donors = "auto"
    n_random: int = 20
    n_matched: int = 20
    n_control: int = 32
    n_untrained: int = 1
    n_fit: int = 1_024

    def __post_init__(self) -> None:
        check_types(self)
        if self.kind not in SUBSPACE_KINDS:
            raise InvalidArgument(f"kind must be one of {', '.join(SUBSPACE_KINDS)}; got {self.kind!r}.")
        if self.donors not in DONORS:
            raise InvalidArgument(f"donors must be one of {', '.join(DONORS)}; got {self.donors!r}.")
        if min(self.n_random, self.n_matched, self.n_control) < 1 or self.n_untrained < 0 or self.n_fit < 2:
            raise InvalidArgument(
                f"n_random, n_matched and n_control must be at least 1, n_fit at least 2 and n_untrained at least 0; "
                f"got {self}."
            )

    @classmethod
    def of(cls, kind: "SubspaceKind | Design") -> "Design":
        """Return a design of this kind with all other values at their defaults."""
        return kind if isinstance(kind, Design) else cls(kind)
