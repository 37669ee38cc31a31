"""Every site of every family against plain PyTorch hooks and attention written out by hand, and so for edits."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesgeom.core import run as s
from bayesgeom.core.edits import Replace
from bayesgeom.core.errors import MissingSite
from bayesgeom.core.run import Trials
from bayesgeom.models.base import Model, hooked_sites
from bayesgeom.models.resolve import load
from tests.families import ATTENTION, D_VOCAB, N_LAYERS, OTHERS, RECURRENT, Family, by_hand, each

ATOL = 1e-5
DOWN = ("down_proj", "dense_4h_to_h", "fc2", "fc_out", "c_proj")  # names of output matrices of MLPs
_ALL = frozenset(site.name for site in s.ALL_SITES) - {"state"}


def text(n: int = 5, n_pos: int = 11, seed: int = 0) -> Trials:
    """Random tokens, every position scored, nothing known of the answer."""
    tokens = torch.randint(D_VOCAB, (n, n_pos), generator=torch.Generator().manual_seed(seed))
    ones = torch.ones(n, n_pos, 1, dtype=torch.float64)
    return Trials(
        tokens=tokens,
        scored=torch.ones_like(tokens, dtype=torch.bool),
        answers=torch.tensor([2]),
        predictive=ones,
        belief=ones,
        labels=torch.full_like(tokens, 2),
        token_sets={"some": tokens[0, :7].unique()},
        relations={},
    )


def plain(folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def truth(hf: Any, family: Family, tokens: Tensor) -> tuple[dict[str, list[Tensor]], Tensor]:
    """Every activation by plain hooks and by hand, and the logits."""
    found: dict[str, list[Tensor]] = {}
    handles = []
    blocks = hf.get_submodule(family.blocks)

    def keep(name: str, take: Callable[[Any, Any], Tensor]) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            own = take(args[0] if args else kwargs["hidden_states"], output)
            found.setdefault(name, []).append(own.detach().clone())  # Falcon adds to its MLP's output in place

        return hook

    for block in blocks:
        attention = block.get_submodule(family.attention)
        for name, part, take in (
            ("resid_pre", block, lambda given, output: given),
            ("attention given", attention, lambda given, output: given),
            ("attn_out", block.get_submodule(family.adds[0]), lambda given, output: first(output)),
            ("mlp_out", block.get_submodule(family.adds[1]), lambda given, output: first(output)),
            ("resid_post", block, lambda given, output: first(output)),
            *inside_mlp(block, family),
        ):
            handles.append(part.register_forward_hook(keep(name, take), with_kwargs=True))
    with torch.no_grad():
        logits = hf(input_ids=tokens, use_cache=False).logits
    for handle in handles:
        handle.remove()
    for layer, block in enumerate(blocks):
        attention = block.get_submodule(family.attention)
        with torch.no_grad():
            for name, value in by_hand(family, attention, found["attention given"][layer], layer).items():
                found.setdefault(name, []).append(value)
    for name in found.keys() & {"mlp_out", "mlp_post", "router_logits", "expert_weights"}:
        found[name] = [x.reshape(*tokens.shape, -1) for x in found[name]]
    if not family.is_parallel:
        found["resid_mid"] = [a + b for a, b in zip(found["resid_pre"], found["attn_out"], strict=True)]
    return found, logits


def inside_mlp(block: nn.Module, family: Family) -> Iterator[tuple[str, nn.Module, Callable[[Any, Any], Tensor]]]:
    """The output matrix of a plain MLP, and the router of a mixture: the sites that their input or output is."""
    for path, part in block.named_modules():
        if path.endswith(DOWN) and not path.startswith(family.attention):
            yield "mlp_post", part, lambda given, output: given
        if path == "mlp.gate":
            yield "router_logits", part, lambda given, output: output[0]
            yield "expert_weights", part, lambda given, output: dense(*output)


def dense(logits: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """The weight of every expert, 0 where it was not chosen."""
    found = torch.zeros_like(logits)
    for row, (own, experts) in enumerate(zip(weights, chosen, strict=True)):
        for weight, expert in zip(own, experts, strict=True):
            found[row, expert] = weight
    return found


_BY_HAND = ATTENTION | OTHERS


@pytest.mark.parametrize("name", each(_BY_HAND))
def test_every_site_is_what_attention_by_hand_gives(name: str, folder: Callable[[str], Path]) -> None:
    family, model, trials = _BY_HAND[name], load(folder(name)), text()
    absent = family.withheld | ({"resid_mid"} if family.is_parallel else set())
    absent |= {"mlp_post"} if name == "mixtral" else {"router_logits", "expert_weights"}
    assert {site.name for site in model.sites} == _ALL - absent, model.withheld
    expected, logits = truth(plain(folder(name)), family, trials.tokens)
    run = model.run([trials], record=model.sites, n_recorded=len(trials))
    for site in model.sites:
        if not site.is_static:
            right = torch.stack(expected[site.name])
            torch.testing.assert_close(
                run.at(site), right, atol=ATOL, rtol=ATOL, msg=lambda m, n=site.name: f"{n}: {m}"
            )
    torch.testing.assert_close(model.logits(trials), logits, atol=ATOL, rtol=ATOL)
    answers = logits.double().log_softmax(-1)[..., 2]
    torch.testing.assert_close(
        torch.as_tensor(run.behavior.off_answer_prob).double(), 1 - answers.exp(), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("name", each(_BY_HAND))
def test_ablating_a_head_is_zeroing_it_before_the_output_projection(name: str, folder: Callable[[str], Path]) -> None:
    family, model, trials = _BY_HAND[name], load(folder(name)), text()
    hf, (layer, head), d = plain(folder(name)), (1, 2), family.d_head
    part = hf.get_submodule(family.blocks)[layer].get_submodule(f"{family.attention}.{family.output}")

    def zero(_module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        edited = args[0].clone()
        edited[..., head * d : (head + 1) * d] = 0
        return (edited,)

    with torch.no_grad():
        intact = hf(input_ids=trials.tokens, use_cache=False).logits
        part.register_forward_pre_hook(zero)
        expected = hf(input_ids=trials.tokens, use_cache=False).logits
    replayer = model.replayer()
    baseline = replayer.baseline(trials)
    edit = Replace(site=s.Z, layer=layer, mode="zero", heads=(head,))
    (found,) = replayer.logits(baseline, [[edit]], _Nothing())
    torch.testing.assert_close(baseline.logits, intact, atol=ATOL, rtol=ATOL)
    torch.testing.assert_close(found, expected, atol=ATOL, rtol=ATOL)
    assert (found - intact).abs().max() > 1e-3, "the head matters"


@pytest.mark.parametrize("name", [*each(name for name in _BY_HAND if name != "mixtral"), "mixtral"])
def test_ablating_a_unit_is_zeroing_what_it_writes(name: str, folder: Callable[[str], Path]) -> None:
    """A neuron's column of the output matrix, or an expert's output matrix."""
    family, model, trials, (layer, unit) = _BY_HAND[name], load(folder(name)), text(), (1, 2)
    hf, is_mixed = plain(folder(name)), name == "mixtral"
    block = hf.get_submodule(family.blocks)[layer]
    with torch.no_grad():
        intact = hf(input_ids=trials.tokens, use_cache=False).logits
        if is_mixed:
            block.mlp.experts.down_proj[unit] = 0
        else:
            (part,) = (part for own, part, _ in inside_mlp(block, family) if own == "mlp_post")
            (part.weight.T if isinstance(part, nn.Linear) else part.weight)[unit] = 0  # of GPT-2 it is transposed
        expected = hf(input_ids=trials.tokens, use_cache=False).logits
    site = s.EXPERT_WEIGHTS if is_mixed else s.MLP_POST
    replayer, edit = model.replayer(), Replace(site=site, layer=layer, mode="zero", units=(unit,))
    baseline = replayer.baseline(trials, (site,))
    (found,) = replayer.logits(baseline, [[edit]], _Nothing())
    torch.testing.assert_close(found, expected, atol=ATOL, rtol=ATOL)
    assert (found - intact).abs().max() > 1e-3 and baseline.stored[site, layer].shape[:2] == trials.tokens.shape


def test_an_expert_that_gets_a_weight_writes_though_it_was_not_chosen(folder: Callable[[str], Path]) -> None:
    """So does an expert whose logit is raised; the router chooses, and weighs, as its logits say."""
    model, trials = load(folder("mixtral")), text()
    run = model.run([trials], record=(s.EXPERT_WEIGHTS, s.ROUTER_LOGITS), n_recorded=5)
    weights, logits = run.at(s.EXPERT_WEIGHTS), run.at(s.ROUTER_LOGITS)
    assert ((weights > 0).sum(dim=-1) == 2).all() and weights.sum(dim=-1).allclose(torch.ones(3, 5, 11), atol=1e-5)
    assert torch.equal(weights.argmax(dim=-1), logits.argmax(dim=-1))
    seen: list[Tensor] = []
    with torch.no_grad(), hooked_sites(model, {(s.ROUTER_LOGITS, 1): torch.neg, (s.EXPERT_WEIGHTS, 1): seen.append}):
        model.logits(trials)
    assert torch.equal(seen[0].argmax(dim=-1), (-logits[1]).argmax(dim=-1))
    top = (-logits[1]).topk(2, dim=-1)
    expected = torch.zeros_like(logits[1]).scatter(-1, top.indices, top.values.softmax(dim=-1))
    torch.testing.assert_close(seen[0], expected, atol=1e-5, rtol=1e-5)


class _Nothing:
    def mean(self, site: s.Site, layer: int) -> Tensor:
        raise AssertionError("not asked for")

    donor = mean


def edited_logits(model: Model, trials: Trials, site: s.Site, layer: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    handle = model.point(site, layer).register_forward_hook(lambda m, i, out: change(out))
    try:
        with torch.no_grad():
            return model.logits(trials)
    finally:
        handle.remove()


@pytest.mark.parametrize("name", each(ATTENTION))
def test_edits_of_the_stream_and_of_what_is_written_agree(name: str, folder: Callable[[str], Path]) -> None:
    """Adding a vector where a part writes is adding it to the stream right behind."""
    model, trials = load(folder(name)), text()
    change = torch.randn(5, 11, model.spec.d_model, generator=torch.Generator().manual_seed(3))
    before = model.logits(trials)
    for layer in range(N_LAYERS):
        post = edited_logits(model, trials, s.RESID_POST, layer, lambda x: x + change)
        twin = edited_logits(model, trials, s.MLP_OUT, layer, lambda x: x + change)
        torch.testing.assert_close(post, twin, atol=1e-4, rtol=1e-4)
        assert (post - before).abs().max() > 1e-2
        if layer + 1 < N_LAYERS:
            pre = edited_logits(model, trials, s.RESID_PRE, layer + 1, lambda x: x + change)
            torch.testing.assert_close(post, pre, atol=1e-4, rtol=1e-4)
        if s.RESID_MID in model.sites:
            mid = edited_logits(model, trials, s.RESID_MID, layer, lambda x: x + change)
            written = edited_logits(model, trials, s.ATTN_OUT, layer, lambda x: x + change)
            torch.testing.assert_close(mid, written, atol=1e-4, rtol=1e-4)
            assert (mid - post).abs().max() > 1e-3, "the MLP reads the middle"


@pytest.mark.parametrize("name", each(ATTENTION))
def test_an_edit_takes_effect_at_every_site_of_every_layer(name: str, folder: Callable[[str], Path]) -> None:
    model, trials = load(folder(name)), text()
    before = model.logits(trials)
    for site in model.sites:
        if site.is_static:
            continue
        for layer in range(N_LAYERS):
            after = edited_logits(model, trials, site, layer, lambda x: x.flip(1))
            assert (after - before).abs().max() > 1e-4, (site.name, layer)
    torch.testing.assert_close(model.logits(trials), before, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["gpt_neox", "gemma2", "bloom", "gptj"])
def test_an_edited_pattern_mixes_the_values_as_it_says(name: str, folder: Callable[[str], Path]) -> None:
    model, trials = load(folder(name)), text()
    recorded: dict[str, Tensor] = {}
    uniform = torch.ones(11, 11).tril() / torch.arange(1, 12)[:, None]
    handles = [
        model.point(s.PATTERN, 1).register_forward_hook(lambda m, i, out: uniform.expand_as(out)),
        model.point(s.V, 1).register_forward_hook(lambda m, i, out: recorded.update(v=out)),
        model.point(s.Z, 1).register_forward_hook(lambda m, i, out: recorded.update(z=out)),
    ]
    model.logits(trials)
    for handle in handles:
        handle.remove()
    means = recorded["v"].cumsum(1) / torch.arange(1, 12)[:, None, None]
    group = model.spec.n_heads // model.spec.n_kv_heads
    torch.testing.assert_close(recorded["z"], means.repeat_interleave(group, dim=2), atol=ATOL, rtol=ATOL)


@pytest.mark.parametrize("name", each(RECURRENT))
def test_recurrent_models_offer_the_stream(name: str, folder: Callable[[str], Path]) -> None:
    model, trials = load(folder(name)), text()
    assert model.sites - {s.STATE} == {s.RESID_PRE, s.RESID_POST, s.TOKEN_EMBEDDINGS}
    assert (s.STATE in model.sites) == (name != "rwkv")
    hf = _bare(folder(name))
    embedding, tokens = hf.get_input_embeddings().weight.detach(), trials.token_ids()
    torch.testing.assert_close(model.static(s.TOKEN_EMBEDDINGS, tokens, 1), embedding[tokens], atol=0, rtol=0)
    blocks = hf.rwkv.blocks if name == "rwkv" else hf.backbone.layers
    given: list[Tensor] = []
    gave: list[Tensor] = []
    for block in blocks:
        block.register_forward_hook(lambda m, i, out: given.append(i[0]))
        block.register_forward_hook(lambda m, i, out: gave.append(first(out)))
    with torch.no_grad():
        logits = hf(input_ids=trials.tokens, use_cache=False).logits
    run = model.run([trials], record=(s.RESID_PRE, s.RESID_POST), n_recorded=5)
    torch.testing.assert_close(run.at(s.RESID_PRE), torch.stack(given), atol=ATOL, rtol=ATOL)
    torch.testing.assert_close(run.at(s.RESID_POST), torch.stack(gave), atol=ATOL, rtol=ATOL)
    torch.testing.assert_close(model.logits(trials), logits, atol=ATOL, rtol=ATOL)
    with pytest.raises(MissingSite, match=r"site 'k', which .* does not provide \(no known attention heads"):
        model.run([trials], record=(s.K,))


def _bare(path: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(path).eval()


def test_the_model_itself_is_left_alone(folder: Callable[[str], Path]) -> None:
    from bayesgeom.models.resolve import as_model

    for name in ("gpt2", "gemma3", "gptj", "bloom"):
        hf = _bare(folder(name)).train()
        before = {key: value.clone() for key, value in hf.state_dict().items()}
        implementation, hooks = hf.config._attn_implementation, list(_hooks(hf))
        model = as_model(hf)
        model.run([text()], record=model.sites, n_recorded=3)
        with pytest.raises(ZeroDivisionError):
            edited_logits(model, text(), s.PATTERN, 1, lambda x: x.fill_(1 // 0))
        assert hf.training and hf.config._attn_implementation == implementation and list(_hooks(hf)) == hooks
        assert all(torch.equal(value, before[key]) for key, value in hf.state_dict().items())
        assert "_attn" not in vars(hf.get_submodule(ATTENTION[name].blocks)[0].get_submodule(ATTENTION[name].attention))


def _hooks(module: nn.Module) -> Iterator[tuple[str, int]]:
    for name, part in module.named_modules():
        yield name, len(part._forward_hooks) + len(part._forward_pre_hooks)


@pytest.mark.parametrize("name", each([*ATTENTION, *RECURRENT]))
def test_padding_behind_a_sequence_changes_nothing(name: str, folder: Callable[[str], Path]) -> None:
    """Sequences of several lengths in one block say what each says alone, at its own scored positions."""
    model, lengths = load(folder(name)), (5, 11, 7)
    trials = text(3)
    scored = torch.zeros_like(trials.scored)
    for row, length in enumerate(lengths):
        scored[row, length - 2 : length] = True
    padded = replace(trials, scored=scored, tokens=torch.where(scored.flip(1).cumsum(1).flip(1) > 0, trials.tokens, 1))
    run = model.run([padded], record=(s.RESID_POST,), n_recorded=3)
    for row, length in enumerate(lengths):
        alone = Trials(**{**vars(padded.rows(slice(row, row + 1))), **_cut(padded, row, length)})
        single = model.run([alone], record=(s.RESID_POST,), n_recorded=1)
        torch.testing.assert_close(run.at(s.RESID_POST)[:, row], single.at(s.RESID_POST)[:, 0], atol=ATOL, rtol=ATOL)
        torch.testing.assert_close(model.logits(padded)[row], model.logits(alone)[0], atol=ATOL, rtol=ATOL)


def _cut(trials: Trials, row: int, length: int) -> dict[str, Tensor]:
    names = ("tokens", "scored", "predictive", "belief", "labels")
    return {name: vars(trials)[name][row : row + 1, :length] for name in names}
