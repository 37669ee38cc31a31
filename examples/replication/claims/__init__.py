"""The claims of the literature as data: tests, commands, measured numbers and the verdict of each.

`load` returns every claim by its id, `find` one of them, `verdict` the verdict on a claim, and `reproduce` measures one
again.

Example:
    >>> from examples.replication.claims import find
    >>> find("B1").published
    'entropy error 0.003 bits (v1), 0.007 bits (v3)'
"""

from examples.replication.claims.claim import Claim, Outcome, Verdict, verdict
from examples.replication.claims.loading import find, load
from examples.replication.claims.reproduction import reproduce

__all__ = ["Claim", "Outcome", "Verdict", "find", "load", "reproduce", "verdict"]
