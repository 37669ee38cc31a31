"""Controls of the interventions: planted networks whose use of a quantity is known, and the verdict expected of each.

`bayesgeom selftest` runs them. A naive test gets two of them wrong: a margin without a test of erasure calls the
decoder direction of `uses_entropy` not used, and an answer shift without movement calls the decoder direction of
`ignores_belief` used.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

from bayesgeom.interventions.design import Design
from bayesgeom.interventions.report import AFTER, BEFORE, VARIANCE, InterventionReport
from bayesgeom.interventions.run import intervene
from bayesgeom.selftest.planted import LAYER, SITE, ignores_belief, ignores_entropy, uses_belief, uses_entropy
from bayesgeom.selftest.planted_network import PlantedModel
from bayesgeom.subspaces.base import Fit, InterventionSite
from bayesgeom.subspaces.fits import covariance, decoder, leace, trained_swap

N = 48  # pairs
_STEPS = 12  # training steps of a trained swap: enough to steer the answer, in seconds
_DESIGN = Design(kind="swap", n_random=20, n_matched=20, n_control=16, n_untrained=0, n_fit=512)


@final
@dataclass(frozen=True, kw_only=True)
class InterventionControl:
    """One subspace of one planted network, and the condition that its report must satisfy."""

    label: str
    build: Callable[[], PlantedModel]
    fit: Fit
    holds: Callable[[InterventionReport], bool]

    def report(self, *, seed: int = 0) -> InterventionReport:
        """Return the report on a swap at the site that holds the planted features."""
        return intervene(
            self.build(), None, self.fit, kind=_DESIGN, sites=InterventionSite(SITE, (LAYER,)), n=N, seed=seed
        )


def intervention_controls() -> Iterator[InterventionControl]:
    """Yield controls for used and ignored quantities with both erasers, then for decoders and trained subspaces."""
    for quantity, uses, ignores in (
        ("entropy", uses_entropy, ignores_entropy),
        ("belief", uses_belief, ignores_belief),
    ):
        for eraser in (covariance(quantity), leace(quantity)):
            yield InterventionControl(label=f"{eraser.label}: used", build=uses, fit=eraser, holds=_is_used)
            yield InterventionControl(
                label=f"{eraser.label}: a copy that is not read", build=ignores, fit=eraser, holds=_is_not_used
            )
        yield InterventionControl(
            label=f"decoder ({quantity}): misses what is used", build=uses, fit=decoder(quantity), holds=_is_missed
        )
    for fit in (decoder("belief"), trained_swap(2, "belief", steps=_STEPS)):
        yield InterventionControl(
            label=f"{fit.label}: steers what is not used", build=ignores_belief, fit=fit, holds=_is_not_called_used
        )


def _is_used(report: InterventionReport) -> bool:
    return report.verdict_by_layer[LAYER] == "used" and _is_erased(report)


def _is_not_used(report: InterventionReport) -> bool:
    return report.verdict_by_layer[LAYER] == "not used" and _is_erased(report)


def _is_missed(report: InterventionReport) -> bool:
    """Return whether the subspace has little variance, leaves the quantity decodable, and is undecided."""
    is_small = bool(report.share.value[VARIANCE, LAYER] < 0.02 and report.r2.value[AFTER, LAYER] > 0.9)
    return is_small and report.verdict_by_layer[LAYER] == "undecided"


def _is_not_called_used(report: InterventionReport) -> bool:
    return report.verdict_by_layer[LAYER] != "used"


def _is_erased(report: InterventionReport) -> bool:
    return bool(report.r2.value[BEFORE, LAYER] > 0.95 and report.r2.value[AFTER, LAYER] < 0.02)
