"""Ablation of sequences of unequal length: neither means nor donors hold padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import pytest
import torch
import transformers
from jaxtyping import Float64
from torch import Tensor

import bayesgeom
from bayesgeom.ablations.engine import donors_of, position_means
from bayesgeom.core.run import MLP_OUT, RESID_POST, Trials
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.tasks.base import WindTunnel

N_IDS, N_ANSWERS = 31, 3


@final
@dataclass(frozen=True, kw_only=True)
class Ragged(WindTunnel):
    """Random tokens of random length, the last two scored; `padding` is the id that follows them."""

    name: ClassVar[str] = "ragged"
    longest: int = 11
    padding: int = 30

    @property
    def d_vocab(self) -> int:
        return N_IDS

    @property
    def n_pos(self) -> int:
        return self.longest

    def draw(self, n: int, generator: torch.Generator) -> Trials:
        tokens = torch.randint(N_IDS - 1, (n, 11), generator=generator)
        ends = torch.randint(3, 12, (n, 1), generator=generator)
        tokens = torch.cat([tokens, tokens.new_zeros(n, self.longest - 11)], dim=1)
        positions = torch.arange(self.longest)
        is_scored = (positions < ends) & (positions >= ends - 2)
        even = torch.full((n, self.longest, N_ANSWERS), 1 / N_ANSWERS, dtype=torch.float64)
        return Trials(
            tokens=torch.where(positions < ends, tokens, self.padding),
            scored=is_scored,
            answers=torch.arange(N_ANSWERS),
            predictive=even,
            belief=even,
            labels=torch.where(is_scored, 0, -100),
            token_sets={"inputs": torch.arange(N_IDS - 1)},
            relations={},
        )

    def draw_pair(self, n: int, generator: torch.Generator) -> tuple[Trials, Trials]:
        return self.draw(n, generator), self.draw(n, generator)

    def baseline_predictives(self, trials: Trials) -> Mapping[str, Float64[Tensor, "batch query_pos answer"]]:
        return {}

    def token_labels(self) -> Sequence[str]:
        return [str(own) for own in range(N_IDS)]


@pytest.fixture(scope="module")
def model() -> HFModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=N_IDS,
        hidden_size=12,
        intermediate_size=13,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=29,
    )
    hf = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for own in hf.parameters():
            own.normal_() if own.ndim > 1 else own.fill_(1.0)
    return HFModel(hf)


@pytest.mark.parametrize("mode", ["mean", "resample"])
def test_neither_the_id_nor_the_amount_of_padding_matters(mode: str, model: HFModel) -> None:
    found = [
        bayesgeom.ablate(model, Ragged(padding=padding, longest=longest), "heads", mode=mode, n=40).kl_increase_bits
        for padding, longest in ((30, 11), (7, 11), (12, 17))
    ]
    assert np.abs(found[0].value).max() > 1e-2
    for other in found[1:]:
        np.testing.assert_allclose(found[0].value, other.value, rtol=0, atol=1e-5)


def test_keys_of_padding_are_no_keys_of_its_token(model: HFModel) -> None:
    found = [
        bayesgeom.diagnose(model, Ragged(padding=padding, longest=longest), probes="key_overlap", n=40, n_untrained=0)
        for padding, longest in ((30, 11), (7, 11), (12, 17))
    ]
    values = [own["key_overlap"].estimate("overlap").value for own in found]
    assert np.isfinite(values[0]).any()
    for other in values[1:]:
        np.testing.assert_allclose(values[0], other, rtol=0, atol=1e-5)


def test_means_are_those_of_the_sequences_that_reach_a_position(model: HFModel) -> None:
    trials, places = Ragged().sample(23, seed=1), [(MLP_OUT, 0), (RESID_POST, 1)]
    found = position_means(model.replayer(), iter([trials]), model.spec, places, 23)
    for place in places:
        rows = [model.replayer().baseline(trials.rows(slice(i, i + 1))).stored[place][0] for i in range(23)]
        for position in range(11):
            own = [row[position] for row, end in zip(rows, trials.ends().tolist(), strict=True) if end > position]
            torch.testing.assert_close(found[place][position], torch.stack(own).mean(dim=0), atol=1e-5, rtol=1e-5)


def test_a_position_that_no_sequence_reaches_has_the_last_mean(model: HFModel) -> None:
    trials, place = Ragged(longest=17).sample(23, seed=1), (MLP_OUT, 0)
    means = position_means(model.replayer(), iter([trials]), model.spec, [place], 23)[place]
    assert torch.equal(means[11:], means[10].expand(6, -1))


def test_a_donor_is_the_nearest_earlier_sequence_that_is_long_enough() -> None:
    ends = torch.tensor([4, 9, 6, 6, 3, 9, 11])
    found = donors_of(ends)
    assert found is not None
    assert found.tolist() == [6, 6, 1, 2, 3, 1, 5]  # the longest has the nearest of the next longest
    assert donors_of(torch.tensor([5, 5, 5])) is None
