"""The committed recipes of the shipped checkpoints and of the comparison, by name."""

import re
from dataclasses import replace

from bayesgeom.core.errors import unknown_name
from bayesgeom.core.plugins import values
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.process import Mess3
from bayesgeom.tasks.sticky_markov import StickyMarkov
from bayesgeom.training.compared import compared, untied
from bayesgeom.training.construction import constructed
from bayesgeom.training.rates import VARIANT, at_rates, quartered, sweep
from bayesgeom.training.recipe import Recipe
from bayesgeom.training.variants import all_variants

_TRANSFORMER = {"architecture": "transformer"}

_BIJECTION_SIZES = {**_TRANSFORMER, "n_layers": 6, "n_heads": 6, "d_model": 192, "d_mlp": 768}

# Four stages: weight decay kept the logits too small, so used values kept 0.5 % of the probability and entropies were
# 0.03 bits too high. Without decay, matrices annealed, but the scale of the final norm changed too slowly. The last two
# stages use a larger learning rate for norms and embeddings and a smaller one for matrices.
_BIJECTION_DECAYED = Recipe(
    name="bijection-v20-decayed",
    task=Bijection(),
    sizes=_BIJECTION_SIZES,
    weight_decay=0.1,
    steps=9_000,
    late_batch_size=160,
    late_from=0.6,
)
_BIJECTION_ANNEALED = Recipe(
    name="bijection-v20-annealed",
    task=Bijection(),
    sizes=_BIJECTION_SIZES,
    lr=3e-4,
    matrix_lr=0.005,
    warmup=50,
    steps=2_000,
    batch_size=128,
    float32_share=0.1,
    seed=1,
    after=_BIJECTION_DECAYED,
)
_BIJECTION_SHARPENED = Recipe(
    name="bijection-v20-sharpened",
    task=Bijection(),
    sizes=_BIJECTION_SIZES,
    lr=3e-3,
    matrix_lr=0.002,
    warmup=20,
    steps=1_500,
    batch_size=128,
    float32_share=0.1,
    seed=2,
    after=_BIJECTION_ANNEALED,
)

# Keys uniform over all V give no gradient until keys are matched (see the task): after 3,300 steps the model was still
# uniform. Sequences with many returning keys end that plateau within some hundred steps; the posterior is the same.
_REPEATS_POOLED = Recipe(
    name="bijection-v20-repeats-pooled",
    task=Bijection(repeats=True, pooled_keys=True),
    sizes=_BIJECTION_SIZES,
    lr=2e-3,
    matrix_lr=0.01,
    steps=2_000,
    float32_share=0.0,
)

# From the shipped weights of `bijection-v20`, without weight decay, float32 at the end. Exact targets distill the
# posterior: 500 steps of 64 sequences took KL from 2.1e-3 to 2.6e-4 bits. Sampled ones, in two stages, are the control.
_REFINED = Recipe(
    name="bijection-v20-refined",
    task=Bijection(),
    sizes=_BIJECTION_SIZES,
    targets="exact",
    lr=1e-3,
    matrix_lr=0.005,
    warmup=100,
    steps=4_000,
    batch_size=128,
    late_batch_size=256,
    late_from=0.7,
    float32_share=0.3,
    seed=4,
    warm_start="bijection-v20@8339b24b32f58847",
)
_REFINED_LARGER = replace(
    _REFINED,
    name="bijection-v20-refined-sampled-larger",
    targets="sampled",
    late_from=0.6,
    float32_share=0.1,
)
_REFINED_SAMPLED = replace(
    _REFINED_LARGER,
    name="bijection-v20-refined-sampled",
    lr=5e-4,
    matrix_lr=0.002,
    warmup=50,
    steps=2_000,
    batch_size=256,
    late_batch_size=512,
    late_from=0.7,
    float32_share=0.3,
    seed=5,
    warm_start=None,
    after=_REFINED_LARGER,
)


def _untied_flagship(flagship: Recipe) -> Recipe:
    """The recipe with untied unembedding in every stage: a control for claim J1 at the same size."""
    before = None if flagship.after is None else _untied_flagship(flagship.after)
    name = flagship.name.replace("bijection-v20", "bijection-v20-untied")
    return replace(flagship, name=name, sizes={**flagship.sizes, "tied": False}, after=before)


_MESS3 = Recipe(
    name="mess3-small",
    task=Mess3(x=0.05, a=0.6, length=64),
    sizes={**_TRANSFORMER, "n_layers": 3, "n_heads": 4, "d_model": 64, "d_mlp": 256},
    targets="exact",
    lr=2e-3,
    warmup=50,
    steps=600,
    batch_size=32,
    late_batch_size=64,
    late_from=0.5,
)
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="bijection-v20",
            task=Bijection(),
            sizes=_BIJECTION_SIZES,
            lr=4e-3,
            matrix_lr=0.001,
            warmup=20,
            steps=800,
            batch_size=128,
            float32_share=0.1,
            seed=3,
            after=_BIJECTION_SHARPENED,
        ),
        Recipe(
            name="bijection-v20-repeats",
            task=Bijection(repeats=True),
            sizes=_BIJECTION_SIZES,
            lr=2e-3,
            matrix_lr=0.01,
            warmup=50,
            steps=7_000,
            late_batch_size=128,
            late_from=0.75,
            seed=1,
            after=_REPEATS_POOLED,
        ),
        Recipe(
            name="bijection-v20-llama",
            task=Bijection(),
            sizes={
                "architecture": "llama",
                "n_layers": 6,
                "n_heads": 6,
                "n_kv_heads": 2,
                "d_model": 192,
                "d_mlp": 512,
            },
            steps=6_000,
            late_batch_size=128,
            late_from=0.7,
            float32_share=0.1,
        ),
        _REFINED,
        _REFINED_SAMPLED,
        _MESS3,
        replace(_MESS3, name="sticky-small", task=StickyMarkov(length=40)),
    )
}
_CHECK = re.compile(r"(?P<name>.+)-seed(?P<seed>[1-9][0-9]*)-x2")
RECIPES |= {
    own.name: own
    for own in (
        _untied_flagship(RECIPES["bijection-v20"]),
        *compared().values(),
        untied(),
        *sweep().values(),
        *all_variants().values(),
        *constructed().values(),
    )
}


def recipe(name: str) -> Recipe:
    """Return the committed recipe of this name, or a variant of it.

    Variants are `<name>-lr0.3` and `<name>-lr3`, with multiplied rates; `<name>-quarter`, with a quarter of the steps
    in every stage, also at multiplied rates (`<name>-quarter-lr3`); and `<name>-seed1-x2`, with another seed and twice
    the budget, which `compare` lists as a check.

    Raises:
        UnknownName: There is no such recipe. The message lists the known names.

    Example:
        >>> recipe("recall-lstm-seed1-x2").n_sequences // recipe("recall-lstm").n_sequences
        2
    """
    if name in RECIPES:
        return RECIPES[name]
    if name in (added := plugin_recipes()):
        return added[name]
    if (found := VARIANT.fullmatch(name)) is not None and found["whole"] in RECIPES:
        made = quartered(RECIPES[found["whole"]]) if found["quarter"] else RECIPES[found["whole"]]
        return at_rates(made, float(found["multiple"])) if found["multiple"] else made
    if (found := _CHECK.fullmatch(name)) is not None and found["name"] in RECIPES:
        return RECIPES[found["name"]].reseeded(int(found["seed"])).lengthened(2)
    raise unknown_name("recipe", name, {**RECIPES, **added})


def plugin_recipes() -> dict[str, Recipe]:
    """Return the recipes of other packages, by name: entry points in the group `bayesgeom.recipes`."""
    return values("bayesgeom.recipes", Recipe, taken=RECIPES)
