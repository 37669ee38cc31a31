"""The recipe `coins-small`: a two-layer transformer on the coins."""

from bayesgeom.training.recipes import Recipe
from bayesgeom_example.coins import Coins

RECIPE = Recipe(
    name="coins-small",
    task=Coins(),
    sizes={"architecture": "transformer", "n_layers": 2, "n_heads": 2, "d_model": 32, "d_mlp": 64},
    warmup=20,
    steps=500,
    snapshots=3,
)
