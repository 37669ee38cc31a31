"""Statistics that are computed during the pass equal those of stored activations, and so do the reports from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.core import run as s
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import Trials, concatenate
from bayesgeom.diagnosis.plan import all_probes
from bayesgeom.measurements.attention_entropy import SUMS
from bayesgeom.measurements.key_overlap import KeyOverlap
from bayesgeom.models.base import Model, Recorder, Stream
from bayesgeom.report.report import Report
from bayesgeom.report.storage import parts_of
from bayesgeom.stats.reduction import KEY_SUMS, LAST_RESIDUAL, LAST_VALUES, ROTATED_KEY_SUMS, Reduction
from bayesgeom.tasks.bijection import Bijection
from examples.replication.thresholds import LAST_ENTROPY
from tests.models.test_run import TASK, lively

REDUCTIONS = (SUMS, KEY_SUMS, ROTATED_KEY_SUMS, LAST_VALUES, LAST_RESIDUAL, LAST_ENTROPY)
SITES = (s.PATTERN, s.K, s.K_ROT, s.V, s.RESID_POST)
STREAMED = ("attention_entropy",)  # key sums of 22 tokens are larger than keys at 13 positions


def passes() -> list[Trials]:
    return [TASK.sample(size, seed=seed) for seed, size in enumerate((7, 5, 3))]


def streamed_run(model: Model, reductions: Sequence[Reduction], n: int, budget_bytes: int | None = None) -> Any:
    stream = Stream(layers=dict.fromkeys(reductions, (0, 1)), trials=concatenate(passes()).rows(slice(0, n)))
    return model.run(passes(), record=[stream, s.Z], n_recorded=3, seed=11, budget_bytes=budget_bytes)


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=lambda own: own.name)
def test_a_pass_computes_what_stored_activations_give(reduction: Reduction) -> None:
    model = lively("rotary")
    stored = model.run(passes(), record=SITES, n_recorded=11, seed=11)
    run = streamed_run(model, [reduction], n=11, budget_bytes=1)  # one sequence a pass, across blocks
    found = run.streamed
    assert run.n == 15 and run.n_recorded == 1 and found.n_recorded == 11 and not found.recorded
    assert torch.equal(found.trials.tokens, stored.trials.tokens)
    torch.testing.assert_close(found.log_answers, stored.log_answers, rtol=1e-5, atol=1e-5)
    assert run.at(s.Z).shape[1] == 1
    for layer in range(2):
        one, other = reduction.at(found, layer, 11), reduction.at(stored, layer, 11)
        assert one.shape == other.shape and one[0].numel() * (2 if one.dtype == torch.float64 else 1) == reduction.size(
            model.spec, stored.trials
        )
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)  # passes of other sizes round differently


def test_key_overlap_from_sums_of_keys() -> None:
    model = lively("rotary")
    stored = model.run(passes(), record=[s.K, s.K_ROT], n_recorded=11, seed=11)
    run = streamed_run(model, [KEY_SUMS, ROTATED_KEY_SUMS], n=11).streamed
    one, other = (KeyOverlap().measure(own) for own in (stored, run))
    assert one.token_sets == other.token_sets and "activation rotated" in one.variants == other.variants
    assert_alike(one, other, within=1e-4)  # passes of other sizes round differently


def test_another_stream_is_refused() -> None:
    stream = Stream(layers={LAST_ENTROPY: (0, 1)}, trials=TASK.sample(5, seed=99))
    with pytest.raises(
        InvalidArgument, match=r"the stream's sequences 0 … \d+ are not those of this run\. .* same task and seed"
    ):
        lively().run(passes(), record=[stream], n_recorded=3)


def assert_alike(one: Report, other: Report, within: float = 1e-6) -> None:
    for name, values in parts_of(one)[1].items():
        np.testing.assert_allclose(parts_of(other)[1][name], values, rtol=within, atol=within, err_msg=name)


def test_reports_from_streams_are_those_from_stored_activations() -> None:
    task, plenty, little = Bijection(n_values=11, n_pairs=7), lively("rotary"), lively("rotary")
    little.memory_gib = 60_000 / 2**30  # the statistics of 37 sequences, not their activations
    one, other = (
        bayesgeom.diagnose(model, task, n=37, n_untrained=1, seed=3, probes=list(STREAMED))
        for model in (plenty, little)
    )
    assert "streamed" not in one.provenance and set(other.provenance["streamed"]) == set(STREAMED)
    for name in STREAMED:
        assert one[name].n == other[name].n == other.provenance["streamed"][name]
        assert_alike(one[name], other[name])
    assert "computed during the pass, from 37 sequences: attention_entropy" in other.summary()


def test_probes_without_stream_are_skipped_and_cost_the_others_nothing() -> None:
    model = lively()
    model.memory_gib = 140_000 / 2**30
    found = bayesgeom.diagnose(model, TASK, n=23, n_untrained=0, seed=0)
    assert set(STREAMED) < set(found) and "reads activations of at least 16" in found.skipped["qk_alignment"]
    assert found["attention_entropy"].n == 23 and np.isfinite(found["attention_entropy"].entropy_bits.value).all()


@pytest.mark.parametrize(("computed", "layers"), [((0, 1), (1,)), ((1,), (1,)), ((0, 1), (1, 0))])
def test_a_view_of_layers_cuts_statistics_too(computed: tuple[int, ...], layers: tuple[int, ...]) -> None:
    stream = Stream(layers={LAST_VALUES: computed, KEY_SUMS: (0,)}, trials=concatenate(passes()))
    model = lively("rotary")
    whole = model.run(passes(), record=[s.V], n_recorded=15)
    found = model.run(passes(), record=[stream]).streamed.within(layers, (s.V, s.K))
    for row, layer in enumerate(layers):
        expected = LAST_VALUES.at(whole, layer, 15)
        torch.testing.assert_close(LAST_VALUES.at(found, row, 15), expected, rtol=1e-4, atol=1e-4)
    assert not KEY_SUMS.is_in(found), "it was not computed in these layers"


class Peak:
    """Bytes of the largest storage of any recorder."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.n_bytes, own = 0, Recorder.finished

        def finished(recorder: Recorder) -> Any:
            stored = [*recorder._storage.values()]
            self.n_bytes = max(self.n_bytes, sum(part.numel() * part.element_size() for part in stored))
            return own(recorder)

        patched.setattr(Recorder, "finished", finished)


@pytest.mark.exhaustive
@pytest.mark.parametrize("n_bytes", [20_000, 140_000, 250_000])
def test_activations_and_statistics_share_the_memory(n_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    peak, model = Peak(monkeypatch), lively("rotary")
    model.memory_gib = n_bytes / 2**30
    found = bayesgeom.diagnose(model, TASK, n=37, n_untrained=1, seed=0)
    assert n_bytes / 3 < peak.n_bytes <= n_bytes, sorted(found)


def test_every_stream_reads_a_site_of_its_probe() -> None:
    for probe in all_probes().values():
        sites = {*probe.needs.sites, *probe.needs.optional}
        assert {own.site for own in probe.needs.streamed} <= sites
        if probe.needs.streamed:
            assert set(probe.needs.sites) <= {own.site for own in probe.needs.streamed}
