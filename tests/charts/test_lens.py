"""What is read from every layer, of networks with more layers than there are colors."""

import numpy as np
import pytest

from bayesgeom.charts.lens import lens_panels
from bayesgeom.report import Estimate


@pytest.mark.parametrize("n_layers", [1, 2, 9, 31])
def test_layers_are_drawn_up_to_the_number_of_colors(n_layers: int, rng: np.random.Generator) -> None:
    stages = ["embedding", *(f"layer {layer}" for layer in range(n_layers))]
    entropies = rng.random((len(stages) + 1, 5))
    _, lines, _ = lens_panels(
        kl=Estimate.of(rng.random(len(stages))),
        arrival=np.nan,
        threshold=0.1,
        entropies=entropies,
        example=rng.random((len(stages) + 1, 3)),
        example_position=2,
        stages=stages,
    )
    drawn = {own.name: own.y for own in lines.figure.data if own.name in stages}
    assert len(drawn) == 1 + min(n_layers, 9) and {"embedding", stages[1], stages[-1]} <= drawn.keys()
    assert all(np.array_equal(own, entropies[1 + stages.index(name)]) for name, own in drawn.items())
