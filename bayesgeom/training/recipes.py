"""The committed recipes: what made the shipped checkpoints, by name."""

from bayesgeom.errors import unknown_name
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM
from bayesgeom.training.recipe import Recipe

_TRANSFORMER = {"architecture": "transformer"}

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="bijection-v20",
            task=Bijection(),
            sizes={**_TRANSFORMER, "n_layers": 6, "n_heads": 6, "d_model": 192, "d_mlp": 768},
            steps=9_000,
            late_batch_size=160,
            late_from=0.6,
        ),
        Recipe(
            name="bijection-v20-repeats",
            task=Bijection(repeats=True),
            sizes={**_TRANSFORMER, "n_layers": 6, "n_heads": 6, "d_model": 192, "d_mlp": 768},
            steps=6_000,
            late_batch_size=128,
            late_from=0.7,
        ),
        Recipe(
            name="hmm-s5",
            task=HMM(),
            sizes={
                **_TRANSFORMER, "n_layers": 9, "n_heads": 8, "d_model": 128, "d_mlp": 512, "norm": "layernorm", "tied": False
            },
            targets="exact",
            steps=5_500,
            float32_share=0.0,
        ),
    )
}  # fmt: skip


def recipe(name: str) -> Recipe:
    """The committed recipe of this name. **Raises** `UnknownName`, listing those that exist."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]
