"""What attention can see is read from the model's own mask: windows, chunks, sinks, padding, ALiBi, half precision."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesgeom
from bayesgeom.core.run import K_ROT, PATTERN, Q_ROT, Q, Run
from bayesgeom.measurements.attention_entropy import SUMS, UNIFORM, AttentionEntropy, AttentionEntropyReport
from bayesgeom.measurements.qk_alignment import QKAlignment
from bayesgeom.models.base import Stream, visible
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.monitor.report import chance_levels, measured
from bayesgeom.tasks.process import Mess3
from tests.supported import FAMILIES, tiny

LENGTH, WINDOW = 32, 4
TASK = Mess3(length=LENGTH)
SIZES = {
    "vocab_size": 31,
    "hidden_size": 28,
    "intermediate_size": 13,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 14,
}
# Where scores are not the same without queries: biases of position, or of the keys themselves.
BIASED = {"bloom", "falcon (ALiBi)", "mpt", "doge"}


def without_queries(hf: Any) -> HFModel:
    """The model, attached after every W_Q and its bias were set to zero."""
    anatomy = HFModel(hf)._attached.site_hooks.anatomy
    with torch.no_grad():
        for layer, parts in enumerate(anatomy.parts):
            for site, projection in parts.projections.items():
                if site == Q:
                    part = anatomy.part(layer, projection.path)
                    is_turned = isinstance(part, nn.Linear)
                    for own in (part.weight, part.bias):
                        if own is not None:
                            columns = own.T if own.ndim == 2 and is_turned else own
                            rows = columns.reshape(1, -1, columns.shape[-1]).clone()
                            put = projection.put(rows, torch.zeros_like(projection.take(rows)))[0]
                            own.copy_((put.T if is_turned else put) if own.ndim == 2 else put[0])
            if Q not in parts.projections and parts.attention is not None:
                for name, part in anatomy.part(layer, parts.attention).named_modules():
                    if name.endswith(("q_proj", "q_b_proj")):
                        for parameter in part.parameters():
                            parameter.zero_()
    return HFModel(hf)


def built(kind: str, *, dtype: torch.dtype = torch.float32, **changed: Any) -> HFModel:
    import transformers

    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**SIZES | changed)
    hf = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    return without_queries(hf)


def recorded(model: HFModel, n: int = 5) -> Run:
    sites = [site for site in (PATTERN, Q_ROT, K_ROT) if model.layers_of(site)]
    return model.run([TASK.sample(n, seed=0)], record=sites, n_recorded=n)


def entropies(model: HFModel) -> AttentionEntropyReport:
    return AttentionEntropy().measure(recorded(model))


def levels(counts: Sequence[int]) -> float:
    return float(np.mean(np.log2(counts)))


def test_uniform_attention_in_a_window_has_all_of_its_entropy() -> None:
    report = entropies(built("mistral", sliding_window=WINDOW))
    assert report.entropy_bits.baseline(UNIFORM).value == pytest.approx(np.full((3, 2), 1.8933), abs=1e-4)
    assert report.entropy_bits.value == pytest.approx(np.full((3, 2), 1.8933), abs=1e-4)
    assert report.entropy_share.value == pytest.approx(np.ones((3, 2)), abs=1e-6)
    assert (report.entropy_share.value <= 1).all() and not report.sink_mass.value.any()
    assert "yes" not in report.entropy_bits.clears("lower"), "uniform attention beats no baseline"


def test_a_sink_is_no_part_of_the_row() -> None:
    task = replace(TASK, length=16)
    model = built("gpt_oss", num_local_experts=2, num_experts_per_tok=1)
    for name, parameter in model.module.named_parameters():
        if name.endswith("sinks"):
            parameter.data.zero_()
    report = AttentionEntropy().measure(model.run([task.sample(5, seed=0)], record=[PATTERN], n_recorded=5))
    assert report.entropy_bits.value == pytest.approx(np.full((3, 2), levels(range(1, 17))), abs=1e-5)
    assert float(report.entropy_bits.value[0, 0]) == pytest.approx(2.766, abs=5e-4)
    assert report.entropy_share.value == pytest.approx(np.ones((3, 2)), abs=1e-6)
    assert report.sink_mass.value == pytest.approx(
        np.full((3, 2), np.mean([1 / (n + 1) for n in range(1, 17)])), abs=1e-6
    )
    assert any(line.metric == "sink_mass" for line in report.headlines())
    watched = measured(model, task.sample(5, seed=0), seed=0).attention_entropy_bits
    assert watched == pytest.approx(report.entropy_bits.value, abs=1e-6), "the monitor's number"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_half_precision_are_divided_by_their_sum(dtype: torch.dtype) -> None:
    most = levels(range(1, LENGTH + 1))
    report = entropies(built("llama", dtype=dtype))
    assert most == pytest.approx(3.67698, abs=1e-5)
    assert (report.entropy_bits.value <= most).all()
    assert report.entropy_bits.value == pytest.approx(np.full((3, 2), most), abs=1e-5)
    assert (report.entropy_share.value <= 1).all() and not report.sink_mass.value.any()


@pytest.mark.parametrize(
    ("kind", "changed", "seen"),
    [
        (
            "gemma2",
            {"sliding_window": 5},
            lambda layer, q: range(max(0, q - 4), q + 1) if layer % 2 == 0 else range(q + 1),
        ),
        (
            "gemma3_text",
            {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            lambda layer, q: range(q + 1) if layer == 1 else range(max(0, q - 4), q + 1),
        ),
        (
            "llama4_text",
            {
                "attention_chunk_size": 6,
                "layer_types": ["chunked_attention", "chunked_attention", "full_attention"],
                "num_local_experts": 2,
                "intermediate_size_mlp": 13,
            },
            lambda layer, q: range(q // 6 * 6, q + 1) if layer < 2 else range(q + 1),
        ),
    ],
)
def test_layers_of_several_kinds_keep_their_masks(
    kind: str, changed: dict[str, Any], seen: Callable[[int, int], range]
) -> None:
    model = built(kind, **changed)
    masks = visible(model, TASK.sample(1, seed=0))
    for layer, mask in enumerate(masks):
        for q in range(LENGTH):
            assert mask[q].nonzero()[:, 0].tolist() == list(seen(layer, q)), (layer, q)
    report = entropies(model)
    for layer in range(3):
        level = levels([len(seen(layer, q)) for q in range(LENGTH)])
        assert report.entropy_bits.value[layer] == pytest.approx(np.full(2, level), abs=1e-4)
        assert report.entropy_bits.baseline(UNIFORM).value[layer] == pytest.approx(np.full(2, level))
    assert report.entropy_share.value == pytest.approx(np.ones((3, 2)), abs=1e-6)
    assert float(report.reduction) == pytest.approx(0, abs=1e-6), "of shares: layers see different positions"
    chance = chance_levels(model, TASK.sample(5, seed=0), seed=0)["attention_entropy_bits"]
    assert chance == pytest.approx(report.entropy_bits.baseline(UNIFORM).value.mean()), "the monitor's level"


def test_alignment_counts_what_a_window_shows() -> None:
    """Mass, contrast and AUC of uniform attention, and of another one row by row, within a window."""
    import transformers

    torch.manual_seed(1)
    config = transformers.MistralConfig(**SIZES, sliding_window=WINDOW)
    task = bayesgeom.tasks.Bijection(n_values=7, n_pairs=5)
    for is_uniform in (True, False):
        hf = transformers.MistralForCausalLM(config).eval()
        model = without_queries(hf) if is_uniform else HFModel(hf)
        run = model.run([task.sample(61, seed=0)], record=[PATTERN, Q_ROT, K_ROT], n_recorded=61)
        report, trials = QKAlignment().measure(run), run.trials
        at, related = trials.scored_positions(), trials.relations["used_value"]
        mass, auc = list[float](), list[float]()
        row_of, q_rot, k_rot = run.at(PATTERN)[1], run.at(Q_ROT)[1], run.at(K_ROT)[1]
        for b in range(61):
            for query in range(trials.n_scored):
                first, last = max(0, int(at[b, query]) - WINDOW + 1), int(at[b, query])
                inside = related[b, query, first : last + 1]
                if inside.any() and not inside.all():
                    row = row_of[b, 0, query, first : last + 1]
                    mass.append(float(row[inside].sum()) - float(inside.float().mean()))
                    scores = (k_rot[b, first : last + 1, 0] @ q_rot[b, query, 0]).tolist()
                    yes, no = (
                        [s for s, own in zip(scores, inside, strict=True) if own == kind] for kind in (True, False)
                    )
                    wins = [float(x > y) + 0.5 * (x == y) for x in yes for y in no]
                    auc.append(float(np.mean(wins)))
        relation = report.relations.index("used_value")
        assert report.rows[relation] == len(mass)
        assert report.mass_excess.value[relation, 1, 0] == pytest.approx(np.mean(mass), abs=1e-5)
        assert report.auc.value[relation, 1, 0] == pytest.approx(np.mean(auc), abs=1e-4)
        if is_uniform:
            assert report.mass_excess.value[relation] == pytest.approx(0, abs=1e-6)
            assert report.auc.value[relation] == pytest.approx(0.5, abs=1e-6)


def test_statistics_of_a_pass_use_the_same_masks() -> None:
    import transformers

    torch.manual_seed(1)
    model = HFModel(transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=WINDOW)).eval())
    trials = TASK.sample(7, seed=0)
    stored = model.run([trials], record=[PATTERN], n_recorded=7)
    streamed = model.run([trials], record=[Stream(layers={SUMS: (0, 1, 2)}, trials=trials)]).streamed
    assert streamed is not None and streamed.masks
    for layer in range(3):
        torch.testing.assert_close(SUMS.at(streamed, layer, 7), SUMS.at(stored, layer, 7))
    one, other = (AttentionEntropy().measure(run.within((1, 2), [PATTERN])) for run in (stored, streamed))
    np.testing.assert_allclose(one.entropy_share.value, other.entropy_share.value, atol=1e-6)
    assert one.entropy_bits.baseline(UNIFORM).value.max() < 1.9


def test_a_capture_keeps_the_masks(tmp_path: Path) -> None:
    model = built("mistral", sliding_window=WINDOW)
    folder = bayesgeom.capture(model, TASK, out=tmp_path / "capture", n=9, sites=["pattern", "q_rot", "k_rot"])
    report = bayesgeom.diagnose(folder, probes="attention_entropy", n_untrained=0)["attention_entropy"]
    assert isinstance(report, AttentionEntropyReport)
    assert report.entropy_share.value == pytest.approx(np.ones((3, 2)), abs=1e-6)


def test_padding_is_not_seen() -> None:
    """Rows of unequal length: the scored positions of each see only its own tokens."""
    model = built("mistral", sliding_window=WINDOW)
    whole = TASK.sample(3, seed=0)
    lengths = torch.tensor([9, 20, 32])
    last = (lengths - 6)[:, None] + torch.arange(6)
    scored = torch.zeros_like(whole.scored).scatter_(1, last, True)
    trials = replace(whole, scored=scored)
    run = model.run([trials], record=[PATTERN], n_recorded=3)
    counts = [min(WINDOW, q + 1) for row in last.tolist() for q in row]
    report = AttentionEntropy().measure(run)
    assert report.entropy_share.value == pytest.approx(np.ones((3, 2)), abs=1e-6)
    assert report.entropy_bits.value == pytest.approx(np.full((3, 2), levels(counts)), abs=1e-5)


def test_a_bias_of_position_hides_nothing() -> None:
    """ALiBi: far positions get little weight, and are visible; the share is that of the biased row."""
    model = without_queries(tiny("bloom"))
    run = recorded(model)
    assert all(torch.equal(mask, torch.ones_like(mask).tril()) for mask in run.masks)
    report = AttentionEntropy().measure(run)
    slopes = [2 ** (-8 * (i + 1) / model.spec.n_heads) for i in range(model.spec.n_heads)]
    for head, slope in enumerate(slopes if math.log2(len(slopes)).is_integer() else []):
        rows = [(slope * torch.arange(q + 1.0)).softmax(-1) for q in range(LENGTH)]
        bits = np.mean([float(-torch.xlogy(row, row).sum()) / math.log(2) for row in rows])
        assert report.entropy_bits.value[0, head] == pytest.approx(bits, abs=1e-4)
    assert report.entropy_share.value.min() < 0.95


def test_native_models_are_read_alike() -> None:
    config = bayesgeom.TransformerConfig(d_vocab=5, n_ctx=LENGTH, n_layers=2, n_heads=2, d_model=14, d_mlp=7)
    module = config.build(seed=0)
    named = [name for name, _ in module.named_parameters()]
    assert any("W_Q" in name for name in named), named
    for name, parameter in module.named_parameters():
        if "W_Q" in name or "b_Q" in name:
            parameter.data.zero_()
    report = bayesgeom.diagnose(module, TASK, probes="attention_entropy", n=9, n_untrained=0)["attention_entropy"]
    assert isinstance(report, AttentionEntropyReport)
    assert report.entropy_share.value == pytest.approx(np.ones((2, 2)), abs=1e-6)


@pytest.mark.families
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAMILIES)
def test_uniform_scores_of_a_family_are_uniform(name: str) -> None:
    model = without_queries(tiny(name))
    layers = model.layers_of(PATTERN)
    if not layers:
        pytest.skip("its pattern is not available")
    run = model.run([TASK.sample(5, seed=0)], record=[PATTERN], n_recorded=5)
    report = AttentionEntropy().measure(run.within(layers, [PATTERN]))
    share: Tensor = torch.from_numpy(report.entropy_share.value)
    assert float(share.max()) <= 1
    assert float(share.min()) == pytest.approx(1, abs=1e-5) or name in BIASED
