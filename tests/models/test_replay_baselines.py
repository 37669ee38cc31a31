"""One replayer serves several baselines in turn: what it keeps of one never answers for another."""

import torch

from bayesgeom.core.edits import Replace
from bayesgeom.core.run import Z
from bayesgeom.models.adapters.hooked import HookedModel
from bayesgeom.models.base import BaselinePass, Replayer
from bayesgeom.models.native.transformer import Transformer, TransformerConfig
from bayesgeom.tasks.bijection import Bijection

TASK = Bijection(n_values=11, n_pairs=5)
CONFIG = TransformerConfig(d_vocab=22, n_ctx=9, n_layers=3, n_heads=3, d_model=21, d_mlp=13)


class Zero:
    """Nothing is averaged and nobody donates: these edits put zeros in place."""

    def mean(self, *_: object) -> torch.Tensor:
        raise AssertionError("zero ablation reads no mean")

    donor = mean


def heads_off(replayer: Replayer, baseline: BaselinePass) -> torch.Tensor:
    variants = [(Replace(site=Z, layer=layer, mode="zero", heads=(head,)),) for layer in (1, 2) for head in range(3)]
    by_layer = [replayer.logits(baseline, variants[start : start + 3], Zero()) for start in (0, 3)]
    return torch.cat(by_layer).clone()


def test_two_baselines_in_turn_give_what_each_gives_alone() -> None:
    model = HookedModel(Transformer(CONFIG, seed=1))
    first, second = TASK.sample(7, seed=0), TASK.sample(7, seed=1)
    alone = [heads_off(own := model.replayer(), own.baseline(trials)) for trials in (first, second)]
    shared = model.replayer()
    baselines = [shared.baseline(first), shared.baseline(second)]
    in_turn = [heads_off(shared, baselines[which]) for which in (0, 1, 0)]
    # The same products lie at other addresses, and a processor may sum them in another order. A logit is the end of a
    # chain of about 500 float32 additions (3 layers of products over up to 21 terms), each off by at most 2^-24 of the
    # largest value; the trials that another baseline was kept of give logits that differ by more than 1,000 times that.
    limit = 500 * 2.0**-24 * float(alone[0].abs().max())
    for found, own, other in zip(in_turn, (0, 1, 0), (1, 0, 1), strict=True):
        assert (found - alone[own]).abs().max() <= limit
        assert (found - alone[other]).abs().max() > 1_000 * limit
