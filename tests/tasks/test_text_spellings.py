"""Wind tunnels in words with answers of several tokens, and with answers in turns of a chat."""

import copy
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerFast

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, TaskMismatch
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import as_model
from bayesgeom.tasks.base import WindTunnel, task_from_config, task_from_text
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.change_point import ChangePoint
from bayesgeom.tasks.dice import Dice
from bayesgeom.tasks.evidence import BoundEvidence, LabeledEvidence
from bayesgeom.tasks.hmm import HMM
from bayesgeom.tasks.in_context import BoundInContext, InContext
from tests.families import lively
from tests.tasks.test_trials import assert_equal
from tests.tasks.tokenizers import BYTES_AND_MERGES, pair_tokenizer

CHAT = (
    "{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
COIN, COLORS, WIDTH = Dice(n_faces=2, length=7), ("rot", "grün", "青"), BYTES_AND_MERGES + 3
IN_WORDS: dict[str, tuple[WindTunnel, tuple[str, ...], str]] = {
    "coin": (COIN, ("heads", "tails"), "Flips of one coin, whose bias is unknown."),
    "urn": (Dice(n_faces=3, length=5), COLORS, "Balls drawn from an urn and put back."),
    "change point": (ChangePoint(n_symbols=3, length=5), ("12", "137", "8"), ""),
    "map": (Bijection(n_values=3, n_pairs=2), ("a", "bb", "ccc", "Eins", "zwei", "drei"), ""),
}


def chat_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = copy.deepcopy(pair_tokenizer())
    tokenizer.chat_template = CHAT
    return tokenizer


def bound(name: str, **options: Any) -> BoundInContext:
    task, symbols, about = IN_WORDS[name]
    return InContext(task=task, symbols=symbols, about=about, **options).bind(chat_tokenizer(), d_vocab=WIDTH)


@pytest.fixture(scope="module")
def model() -> Model:
    config = transformers.LlamaConfig(
        vocab_size=WIDTH,
        max_position_embeddings=401,
        hidden_size=28,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return as_model(lively(transformers.LlamaForCausalLM(config)), tokenizer=chat_tokenizer())


FORMS: list[dict[str, Any]] = [
    {},
    {"style": "chat"},
    {"style": "instruct"},
    {"style": "chat", "turns": True},
    {"style": "instruct", "turns": True},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", IN_WORDS)
def test_every_form_holds_the_same_sequences_and_their_posterior(name: str, form: dict[str, Any]) -> None:
    world, task = bound(name, **form), IN_WORDS[name][0]
    bare, trials = task.sample(11, seed=3), world.sample(11, seed=3)
    assert trials.tokens.shape == (11, world.n_pos)
    assert torch.equal(trials.at_scored(trials.predictive), bare.at_scored(bare.predictive))
    back = world.unrendered(trials)
    assert torch.equal(back.tokens, bare.tokens) and torch.equal(back.labels, bare.labels)
    assert torch.equal(back.answers, bare.answers) and torch.equal(back.scored, bare.scored)
    assert all(torch.equal(back.relations[key], related) for key, related in bare.relations.items())
    again = task_from_config(json.loads(json.dumps(world.config())))
    assert_equal(again.sample(5, seed=1), world.sample(5, seed=1))


@pytest.mark.parametrize("name", IN_WORDS)
def test_turns_are_the_chat_of_the_template_and_are_queried_where_an_answer_begins(name: str) -> None:
    world, (task, symbols, _), tokenizer = bound(name, style="chat", turns=True), IN_WORDS[name], chat_tokenizer()
    bare, trials = task.sample(3, seed=0), world.sample(3, seed=0)
    for row in range(3):
        words = [symbols[i] for i in bare.tokens[row].tolist()]
        is_scored = bare.scored[row].tolist()
        chat, inputs = list[dict[str, str]](), ["Continue the sequence."]
        for at, word in enumerate(words):
            if at and is_scored[at - 1]:
                chat.append({"role": "assistant", "content": word})
                inputs = list[str]()
            else:
                inputs.append(word)
            if is_scored[at]:
                chat.append({"role": "user", "content": "\n".join(inputs) or "Next."})
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ends = trials.scored_positions()[row].tolist()
        assert tokenizer.decode(trials.tokens[row, : ends[-1] + 1].tolist()) == text
        assert all(tokenizer.decode(trials.tokens[row, : end + 1].tolist()).endswith("</s><assistant>") for end in ends)


def test_the_explanation_names_the_task_the_symbols_and_the_answers() -> None:
    text = chat_tokenizer().decode(list(bound("coin", style="instruct").prefix))
    assert text == (
        "<user>Flips of one coin, whose bias is unknown. The symbols are heads, tails. Continue the sequence: write "
        "only the next symbol, which is heads or tails.</s><assistant>"
    )
    said = chat_tokenizer().decode(list(bound("map", style="instruct").prefix))
    assert "after each key predict its value." in said and "which is Eins, zwei or drei." in said


def test_probabilities_of_answers_are_sums_of_products_over_their_tokens(model: Model) -> None:
    symbols = ("heads|Heads|Kopf hoch", "tails")
    world = InContext(task=COIN, symbols=symbols, style="chat", turns=True).bind(chat_tokenizer(), d_vocab=WIDTH)
    trials = world.sample(5, seed=0)
    run = model.run([trials], n_recorded=5)
    assert max(len(ids) for each in trials.spellings for ids in each) > 2 and len(trials.spellings[0]) == 3
    for row, query in ((0, 0), (2, 3), (4, 6)):
        start = trials.tokens[row, : int(trials.scored_positions()[row, query]) + 1]
        probability = []
        for spelled in trials.spellings:
            total = 0.0
            for ids in spelled:
                whole = torch.cat([start, torch.tensor(ids)])
                with torch.no_grad():
                    steps = model.module(input_ids=whole[None]).logits[0].double().log_softmax(-1)
                total += float(steps[len(start) - 1 : -1].gather(1, torch.tensor(ids)[:, None]).sum().exp())
            probability.append(total)
        both = sum(probability)
        assert run.behavior.off_answer_prob[row, query] == pytest.approx(1 - both, abs=1e-5)
        found = run.log_answers[row, query].exp().tolist()
        assert found == pytest.approx([one / both for one in probability], rel=1e-3)


def test_beginnings_of_answers_run_once_and_give_what_whole_passes_give(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = InContext(task=COIN, symbols=("Vorderseite", "Rückseite")).bind(chat_tokenizer(), d_vocab=WIDTH)
    trials, counts = world.sample(5, seed=0), list[int]()
    starts = {ids[:length] for each in trials.spellings for ids in each for length in range(1, len(ids))}
    assert len(starts) > 5
    embedding: Any = model.module.get_submodule("model.embed_tokens")
    lookup = embedding.forward

    def counted(ids: torch.Tensor) -> Any:
        counts.append(ids.numel())
        return lookup(ids)

    monkeypatch.setitem(vars(embedding), "forward", counted)
    model.run([trials], n_recorded=5)  # which proves the cache
    counts.clear()
    shared, n_shared = model.run([trials], n_recorded=5), sum(counts)
    monkeypatch.setattr(model, "_prefixes", None)
    counts.clear()
    whole, n_whole = model.run([trials], n_recorded=5), sum(counts)
    torch.testing.assert_close(shared.log_answers, whole.log_answers, atol=1e-5, rtol=1e-5)
    assert n_whole > len(starts) * trials.n_scored * trials.tokens.numel() and n_shared < n_whole / 4


def test_one_token_answers_given_as_spellings_have_the_probabilities_of_tokens(model: Model) -> None:
    plain = InContext(task=COIN, symbols=("dax", "wug")).bind(chat_tokenizer(), d_vocab=WIDTH).sample(5, seed=0)
    assert not plain.spellings
    spelled = tuple(((i,),) for i in plain.answers.tolist())
    runs = [model.run([own], n_recorded=5) for own in (plain, replace(plain, spellings=spelled))]
    torch.testing.assert_close(runs[0].log_answers, runs[1].log_answers)


CONTROLS = ["none", "filler", "shuffled", "masked", "remap"]


@pytest.mark.parametrize("control", CONTROLS)
def test_evidence_in_turns_is_the_chat_of_the_template_with_the_same_posterior(control: Any) -> None:
    spec, tokenizer = LabeledEvidence(k_max=3, reliability=0.8, n_words=8, control=control), chat_tokenizer()
    plain = spec.bind(tokenizer, d_vocab=WIDTH)
    world = replace(spec, style="chat", turns=True).bind(tokenizer, d_vocab=WIDTH)
    assert isinstance(plain, BoundEvidence) and isinstance(world, BoundInContext)
    shown, trials = plain.sample(11, seed=3), world.sample(11, seed=3)
    assert trials.tokens.shape == (11, world.n_pos) and world.n_pos <= int(trials.ends().max()) + 16
    for name in ("predictive", "belief"):
        exact = [own.at_scored(vars(own)[name]) for own in (shown, trials)]
        assert torch.equal(*exact)
    for row in range(11):
        lines = tokenizer.decode(shown.tokens[row].tolist()).split(",")
        pairs = [[part.strip() for part in line.split(":")] for line in lines]
        chat = [{"role": "user", "content": f"Continue the list.\n{pairs[0][0]}"}]
        for (_, label), (word, _) in pairwise(pairs):
            chat += [{"role": "assistant", "content": label}, {"role": "user", "content": word}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert tokenizer.decode(trials.tokens[row, : int(trials.ends()[row])].tolist()) == text
    back = world.unrendered(trials)
    assert torch.equal(back.tokens, world.task.sample(11, seed=3).tokens)
    again = task_from_config(json.loads(json.dumps(world.config())))
    assert_equal(again.sample(5, seed=1), world.sample(5, seed=1))
    baselines = [task.baseline_predictives(own) for task, own in ((plain, shown), (world, trials))]
    assert baselines[0].keys() == baselines[1].keys()
    assert all(torch.equal(baselines[0][name], baselines[1][name]) for name in baselines[0])


def test_labels_of_evidence_may_have_several_tokens(model: Model) -> None:
    labels, tokenizer = ("grün", "青"), chat_tokenizer()
    world = LabeledEvidence(k_max=3, n_words=8, labels=labels).bind(tokenizer, d_vocab=WIDTH)
    trials = world.sample(5, seed=0)
    assert [len(ids) for ((ids),) in trials.spellings] == [4, 4]
    text = tokenizer.decode(trials.tokens[0, : int(trials.ends()[0])].tolist())
    assert {part.split(":")[1].strip() for part in text.split(",")[:-1]} <= {*labels}
    run = model.run([trials], n_recorded=5)
    torch.testing.assert_close(run.log_answers.exp().sum(-1), torch.ones(5, 4, dtype=torch.float64))
    with pytest.raises(InvalidArgument, match=r"share the tokens \[\d+.*\], so that no probability"):
        LabeledEvidence(k_max=3, n_words=8, labels=("grün", "grün hoch")).bind(tokenizer, d_vocab=WIDTH)
    with pytest.raises(InvalidArgument, match="needs 2 labels"):
        LabeledEvidence(k_max=3, n_words=8, labels=("grün", "grün")).bind(tokenizer, d_vocab=WIDTH)
    with pytest.raises(InvalidArgument, match="turns=True needs style='chat' or 'instruct'"):
        LabeledEvidence(turns=True)


def test_answers_that_are_tokens_have_a_lens_whatever_the_inputs_are(model: Model) -> None:
    task = InContext(task=Bijection(n_values=2, n_pairs=2), symbols=("Kopf hoch", "grün", "dax", "wug"), style="chat")
    trials = task.bind(chat_tokenizer(), d_vocab=WIDTH).sample(5, seed=0)
    assert not trials.spellings and chat_tokenizer().decode(trials.answer_ids.tolist()) == " dax wug"
    assert bayesgeom.diagnose(model, task, probes=["posterior_lens"], n=8, n_untrained=0).keys() == {"posterior_lens"}


@pytest.mark.exhaustive
def test_a_diagnosis_measures_what_reads_no_single_logit(model: Model) -> None:
    task = InContext(task=COIN, symbols=("Vorderseite", "Rückseite"), style="instruct", turns=True)
    diagnosis = bayesgeom.diagnose(model, task, n=24, n_untrained=0)
    assert {"calibration", "belief_readout", "evidence_response"} <= diagnosis.keys()
    assert "posterior_lens" in diagnosis.inapplicable
    assert "several tokens" in diagnosis.inapplicable["posterior_lens"]
    assert diagnosis.skipped.keys() <= {"initialization"}


def test_answers_of_several_tokens_are_calibrated_and_refused_where_single_logits_are_read(model: Model) -> None:
    task = InContext(task=COIN, symbols=("Vorderseite", "Rückseite"), style="chat")
    diagnosis = bayesgeom.diagnose(model, task, probes=["calibration"], n=8, n_untrained=0)
    assert "the prompt may be at fault" in str(diagnosis.answer)
    for call in (bayesgeom.ablate, bayesgeom.contributions):
        with pytest.raises(TaskMismatch, match="answers of several tokens"):
            call(model, task, n=8)


def test_words_are_given_in_the_text_of_a_task() -> None:
    text = "dice-in-context:n_faces=2,symbols=yes|Yes+12,style=instruct,turns=true,about=Flips of a coin."
    expected = InContext(
        task=Dice(n_faces=2), symbols=("yes|Yes", "12"), style="instruct", turns=True, about="Flips of a coin."
    )
    assert task_from_text(text) == expected
    assert task_from_text("evidence:labels=grün+青,ks=1+2") == LabeledEvidence(labels=("grün", "青"), ks=(1, 2))
    assert task_from_text("evidence:labels=1+") == LabeledEvidence(labels=("1",))


SHARED = [("dax", "dax"), ("tails|dax", "dax"), ("Kopf", "Kopf hoch"), ("dax|dax hoch", "wug")]


@pytest.mark.parametrize("symbols", SHARED)
def test_tokens_that_two_answers_share_are_refused(symbols: tuple[str, str]) -> None:
    with pytest.raises(InvalidArgument, match=r"^the symbols .* share the tokens \[\d+.*\], so that no probability"):
        InContext(task=COIN, symbols=symbols).bind(chat_tokenizer(), d_vocab=WIDTH)


def test_turns_need_a_chat_and_answers_that_are_shown() -> None:
    with pytest.raises(InvalidArgument, match="turns=True needs style='chat' or 'instruct', and no separator"):
        InContext(task=COIN, turns=True)
    hidden = InContext(task=HMM(n_states=3, n_symbols=2, length=5), style="chat", turns=True)
    with pytest.raises(InvalidArgument, match=r"hmm does not show its answers.*leave turns out"):
        hidden.bind(chat_tokenizer(), d_vocab=WIDTH).sample(2, seed=0)
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = CHAT.replace("<assistant>{% endif", "<assistant><think>{% endif")
    with pytest.raises(InvalidArgument, match="rewrites earlier turns: use turns=False"):
        InContext(task=COIN, style="chat", turns=True).bind(tokenizer, d_vocab=WIDTH)
