"""In miniature: fewer random subspaces and fewer groups of sequences than in earnest."""

from collections.abc import Iterator

import pytest

from bayesgeom.dynamics import frame, measure
from bayesgeom.subspaces import jacobian


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "N_RANDOM", 2)
        patch.setattr(jacobian, "N_LOGITS", 5)
        for module in (frame, measure):
            patch.setattr(module, "GROUPS", 2)
        yield
