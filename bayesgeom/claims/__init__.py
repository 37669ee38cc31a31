"""The claims of the literature as data: criterion, command, measured value and verdict of each.

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

__all__ = ["Claim", "Verdict", "find", "load", "verdict"]
