"""In miniature: fewer random subspaces and gradients of fewer logits than by default."""

from collections.abc import Iterator

import pytest

from bayesgeom.dynamics import measure as frame
from bayesgeom.subspaces import jacobian


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "N_RANDOM", 2)
        patch.setattr(jacobian, "N_LOGITS", 5)
        yield
