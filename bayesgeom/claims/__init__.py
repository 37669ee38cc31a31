"""The claims of the literature as data: criterion, command, measured value and verdict of each.

`load` returns every claim by its id, `find` one of them, and `verdict` the verdict on a claim. The
classes are `Claim` and `Verdict`.

Example:
    >>> import bayesgeom
    >>> bayesgeom.claims.find("B1").published
    'entropy error 0.003 bits (v1), 0.007 bits (v3)'
"""

from bayesgeom.claims.claim import Claim as Claim
from bayesgeom.claims.claim import Verdict as Verdict
from bayesgeom.claims.loading import find as find
from bayesgeom.claims.loading import load as load
from bayesgeom.claims.verdicts import verdict as verdict


def __dir__() -> list[str]:
    return ["Claim", "Verdict", "find", "load", "verdict"]
