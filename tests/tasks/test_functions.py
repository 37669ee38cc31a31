"""Tasks from two functions: the same numbers as a task class gives, and one sentence for each wrong function."""

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.core.errors import InvalidArgument, TaskMismatch
from bayesgeom.core.run import NO_LABEL
from bayesgeom.core.verdict import Reason
from bayesgeom.tasks import StickyMarkov, WindTunnel, from_functions
from bayesgeom.tasks.base import ExchangeableTask, task_from_config, task_kinds

CHAIN = StickyMarkov(n_states=5, length=7)
Array = np.ndarray


def draw(n: int, rng: np.random.Generator) -> Array:
    """Symbols of the chain, drawn step by step."""
    chain, symbols = CHAIN.chain().numpy(), np.empty((n, 7), dtype=int)
    state = rng.integers(5, size=n)
    for position in range(7):
        shown = rng.random(n) < 1 - CHAIN.noise
        symbols[:, position] = np.where(shown, state, rng.integers(5, size=n))
        state = (chain[state].cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=4)
    return symbols


def predict(tokens: Array) -> Array:
    """The filter of the chain, sequence by sequence."""
    chain, found = CHAIN.chain().numpy(), np.empty((*tokens.shape, 5))
    shows = (1 - CHAIN.noise) * np.eye(5) + CHAIN.noise / 5
    for row, sequence in enumerate(tokens):
        belief = np.full(5, 0.2)
        for position, token in enumerate(sequence):
            belief = belief * shows[:, token]
            belief = belief / belief.sum() @ chain
            found[row, position] = belief @ shows
    return found


def made(**known: Any) -> WindTunnel:
    return from_functions(draw, predict, **{"d_vocab": 5, **known})


def test_its_posterior_is_that_of_the_class_on_the_same_sequences() -> None:
    trials = made().sample(11, seed=3)
    symbols = torch.cat([trials.tokens, trials.tokens[:, :1]], dim=1)  # the class takes the last label, too
    torch.testing.assert_close(trials.predictive, CHAIN.trials(symbols).predictive)


def test_labels_have_the_distribution_of_the_exact_probabilities() -> None:
    trials = made().sample(4001, seed=1)
    drawn = torch.nn.functional.one_hot(trials.labels, 5).double()
    error = (drawn - trials.predictive).mean(dim=0) / (trials.predictive * (1 - trials.predictive)).mean(dim=0).sqrt()
    assert float(error.abs().max()) * 4001**0.5 < 4.5


def test_a_seed_decides_every_draw_and_a_longer_stream_begins_with_a_shorter_one() -> None:
    task = made()
    one, longer, other = (
        torch.cat([block.tokens for block in task.stream(n, seed=seed)]) for n, seed in ((150, 5), (301, 5), (150, 6))
    )
    assert torch.equal(one, longer[:150]) and not torch.equal(one, other)


@pytest.mark.parametrize("where", [[2, 5], np.isin(np.arange(7), (2, 5)), np.tile(np.isin(np.arange(7), (2, 5)), 1)])
def test_scored_positions_are_indices_or_truth_values(where: Any) -> None:
    trials = from_functions(lambda n, rng: (draw(n, rng), where), predict, d_vocab=5).sample(3, seed=0)
    assert trials.scored[0].nonzero()[:, 0].tolist() == [2, 5]
    assert trials.predictive[~trials.scored].isnan().all() and (trials.labels[~trials.scored] == NO_LABEL).all()


def test_answers_are_ids_of_their_own_and_tensors_are_taken() -> None:
    task = from_functions(
        lambda n, rng: torch.tensor(draw(n, rng)), lambda t: torch.tensor(predict(t)), d_vocab=10, answers=range(5, 10)
    )
    trials = task.sample(3, seed=0)
    assert trials.answers.tolist() == [5, 6, 7, 8, 9] and int(trials.labels.min()) >= 5


def test_it_is_diagnosed_ablated_and_saved_and_no_file_gives_it_back(tmp_path: Path) -> None:
    task = made(name="ring")
    sizes: dict[str, Any] = {"n_layers": 1, "n_heads": 2, "d_model": 8, "d_mlp": 8}
    net = bayesgeom.TransformerConfig(d_vocab=5, n_ctx=7, **sizes).build(seed=0)
    diagnosis = bayesgeom.diagnose(net, task, n=17, n_untrained=0)
    assert {"calibration", "key_overlap", "belief_readout"} <= set(diagnosis)
    diagnosis.save(tmp_path / "saved")
    stored = bayesgeom.load_report(tmp_path / "saved").provenance["task"]
    assert stored == json.loads(json.dumps(task.config()), object_hook=dict) | {
        key: tuple(stored[key]) for key in ("answers", "inputs", "functions")
    }
    assert bayesgeom.ablate(net, task, battery="layers", n=17).n == 17
    assert "ring" not in task_kinds() and "functions" not in task_kinds()
    for reload in (
        lambda: task_from_config(stored),
        lambda: bayesgeom.capture(net, task, out=tmp_path / "capture", n=8),
    ):
        with pytest.raises(InvalidArgument, match="task 'ring' was made of two functions"):
            reload()
    assert not (tmp_path / "capture").exists()
    with pytest.raises(TaskMismatch, match="draw no pairs"):
        bayesgeom.intervene(net, task, n=16)
    with pytest.raises(InvalidArgument, match=r"no parameter 'n_ids' to vary\. It has: none"):
        bayesgeom.sweep(task, "n_ids", [5, 6])


def test_other_functions_have_another_fingerprint_and_equal_ones_the_same() -> None:
    def flatter(tokens: Array) -> Array:
        return 0.9 * predict(tokens) + 0.02

    one, other = made(), from_functions(draw, flatter, d_vocab=5, answers_follow=False)
    assert one.config() == made().config() and one.config()["fingerprint"] != other.config()["fingerprint"]
    assert one == copy.deepcopy(one) and one != other


def seeded(seed: int | None) -> Callable[[int, Any], Array]:
    return lambda n, rng: draw(n, np.random.default_rng(seed))


def noisy(tokens: Array) -> Any:
    share = np.random.default_rng().random((*tokens.shape, 1))
    return (1 - share) * predict(tokens) + share / 5


@pytest.mark.parametrize(
    ("drawing", "predicting", "says"),
    [
        (lambda n: 1, predict, r"draw failed: TypeError: .* takes 1 positional argument but 2 were given"),
        (lambda n, rng: torch.randint(5, (n, 7), generator=rng), predict, "draw failed: TypeError"),
        (lambda n, rng: draw(n, rng) / 1.0, predict, r"draw returned float64 of shape \(16, 7\)"),
        (lambda n, rng: draw(n, rng).T, predict, r"draw returned int64 of shape \(7, 16\) for 16 sequences"),
        (lambda n, rng: "abc", predict, r"draw returned a str for 16 sequences: return token ids"),
        (lambda n, rng: draw(n, rng) + 1, predict, r"draw returned ids 1 … 5; d_vocab = 5 allows 0 … 4"),
        (lambda n, rng: (draw(n, rng), [7]), predict, "as scored positions .* return indices below 7"),
        (seeded(None), predict, "draw returns other sequences for the same seed"),
        (seeded(0), predict, "draw returns the same sequences for every seed"),
        (draw, lambda t: predict(t)[..., 0], r"predict returned float64 of shape \(16, 7\) .* of shape \(16, 7, 5\)"),
        (draw, lambda t: np.log(predict(t)), "no distribution for position 0 of sequence 0: its least entry is -"),
        (draw, lambda t: predict(t) * 0.9, r"its sum 0\.9"),
        (draw, lambda t: predict(t) + np.nan, "its least entry is nan"),
        (draw, lambda t: predict(t[:, ::-1])[:, ::-1], r"predict sees later tokens: with other tokens after position"),
        (draw, lambda t: t["x"], "predict failed: IndexError"),
        (draw, noisy, "other probabilities for the same sequence when it is called again"),
        (draw, lambda t: np.tile(predict(t).mean(0), (len(t), 1, 1)), "for the same sequence in another batch"),
    ],
)
def test_a_wrong_function_is_named_when_the_task_is_made(drawing: Any, predicting: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        from_functions(drawing, predicting, d_vocab=5)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"answers": [0]}, "answers must be two or more distinct ids"),
        ({"answers": [0, 9]}, "answers must be two or more distinct ids below d_vocab = 5"),
        ({"answers": [0, 1]}, r"predict returned .* return probabilities of shape \(16, 7, 2\), for 2 answers"),
        ({"d_vocab": 1}, "pass d_vocab=…, the number of token ids, from 2 to 10,000,000; got 1"),
        ({"d_vocab": 2**31}, "from 2 to 10,000,000; got 2147483648"),
        ({"d_vocab": 2**31, "answers": [0, 1]}, "from 2 to 10,000,000; got 2147483648"),
        ({"d_vocab": 2**62}, "from 2 to 10,000,000"),
        ({"answers": [1, 1]}, "answers must be two or more distinct ids"),
        ({"answers": [-1, 1]}, "answers must be two or more distinct ids"),
        ({"d_vocab": None}, "from 2 to 10,000,000; got None"),
        ({"name": "hmm"}, "a task is named 'hmm' already"),
    ],
)
def test_wrong_options_are_named(known: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        made(**known)


def test_a_function_that_fails_on_impossible_sequences_is_checked_on_shorter_ones() -> None:
    def strict(tokens: Array) -> Array:  # every sequence repeats its first token
        if not (tokens == tokens[:, :1]).all():
            raise ValueError("impossible")
        found = np.full((*tokens.shape, 2), 0.5)
        found[..., 0] += 0.1 * tokens.shape[1] / 7
        found[..., 1] -= 0.1 * tokens.shape[1] / 7
        return found

    with pytest.raises(InvalidArgument, match="predict sees later tokens"):
        from_functions(lambda n, rng: np.repeat(rng.integers(2, size=(n, 1)), 7, axis=1), strict, d_vocab=2)


def flips(n: int, rng: np.random.Generator) -> Array:
    return (rng.random((n, 16)) < rng.beta(2, 5, (n, 1))).astype(int)


def bias(tokens: Array, *, late: int = 0, of: tuple[float, float] = (2, 5)) -> Array:
    """Probabilities of a coin whose bias has a beta prior; `late` leaves the last flip out."""
    heads = tokens.cumsum(1) - late * tokens
    p = (of[0] + heads) / (sum(of) + np.arange(1 - late, tokens.shape[1] + 1 - late))
    return np.stack([1 - p, p], axis=-1)


@pytest.mark.parametrize(
    ("drawing", "predicting", "says"),
    [
        (flips, lambda t: bias(t, late=1), "a token repeats the one before it with probability"),  # it is calibrated
        (flips, lambda t: bias(t)[..., ::-1], "bits a token are expected from its probabilities"),
        (flips, lambda t: bias(t, of=(1, 1)), "predict does not fit the"),
        (draw, lambda t: np.roll(predict(t), 1, axis=-1), "predict does not fit the"),
        (
            draw,
            lambda t: np.tile(np.eye(5)[0], (*t.shape, 1)),
            r"probability 0 to token \d, .* pass answers_follow=False",
        ),
    ],
)
def test_probabilities_of_other_tokens_than_those_drawn_are_refused(drawing: Any, predicting: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        from_functions(drawing, predicting, d_vocab=5 if drawing is draw else 2)


def test_exact_probabilities_are_never_refused() -> None:
    for salt in range(40):

        def own(n: int, rng: np.random.Generator, salt: int = salt) -> Array:
            return flips(n, np.random.default_rng([salt, int(rng.integers(2**31))]))

        assert from_functions(own, bias, d_vocab=2).n_pos == 16


def test_rare_tokens_refuse_no_exact_probabilities() -> None:
    rates = np.r_[1 - 1e-3, np.full(10, 1e-4)]
    for salt in range(20):

        def own(n: int, rng: np.random.Generator, salt: int = salt) -> Array:
            return np.random.default_rng([salt, int(rng.integers(2**31))]).choice(11, size=(n, 13), p=rates)

        assert from_functions(own, lambda t: np.tile(rates, (*t.shape, 1)), d_vocab=11).d_vocab == 11


def test_an_answer_that_is_not_the_next_token_is_taken_when_it_is_said() -> None:
    def parity(tokens: Array) -> Array:
        return np.eye(2)[tokens.cumsum(1) % 2]

    with pytest.raises(InvalidArgument, match="answers_follow=False"):
        from_functions(flips, parity, d_vocab=2)
    trials = from_functions(flips, parity, d_vocab=2, answers_follow=False).sample(5, seed=0)
    assert torch.equal(trials.labels, trials.tokens.cumsum(1) % 2)


@cache
def free() -> WindTunnel:
    return from_functions(flips, bias, d_vocab=2, exchangeable=True)


def test_tokens_in_any_order_are_evidence_as_in_the_class() -> None:
    """The same coin as `Dice`, but for its prior: orders, continuations and replaced evidence against its urn."""
    task = free()
    assert isinstance(task, ExchangeableTask) and task.n_evidence == 16 and task.is_exchangeable
    trials, order = task.sample(7, seed=1), torch.arange(16).flip(0).expand(7, -1)
    other = task.reordered(trials, order)
    assert torch.equal(other.tokens, trials.tokens.flip(1))
    torch.testing.assert_close(other.predictive[:, -1], trials.predictive[:, -1])
    rows, read = task.continued(trials, 4)
    assert rows.tokens.shape == (28, 16) and read.tolist() == [[4, 4, 5, 5]] * 7
    exact = rows.predictive.reshape(7, 4, 16, 2)
    mixed = torch.einsum("na,nab->nb", exact[:, 0, 4], exact[:, 2:, 5])
    torch.testing.assert_close(mixed, exact[:, 1, 4])  # a martingale
    keep = torch.arange(16) >= 12
    many = task.sample(1201, seed=2)
    again = task.replace_evidence(many, keep, torch.Generator().manual_seed(0))
    assert torch.equal(again.tokens[:, 12:], many.tokens[:, 12:])
    heads = many.tokens[:, 12:].sum(dim=1)
    expected = (2 + heads) / (7 + 4)  # of each of the others, given the kept ones
    error = (again.tokens[:, :12].double().mean(dim=1) - expected).mean()
    assert abs(float(error)) < 0.03 and not torch.equal(again.tokens, many.tokens)


def test_an_audit_of_exchangeable_functions_measures_what_is_free() -> None:
    def late(tokens: torch.Tensor) -> torch.Tensor:
        counts = torch.nn.functional.one_hot(tokens, 2).double()
        return (counts.cumsum(dim=1) + torch.tensor([5.0, 2.0]) + 2 * counts).log()

    found = bayesgeom.audit(late, free(), n=32)
    assert (
        float(found.order_spread) > 0.01 and float(found.martingale_gap) > 0.01 and np.isfinite(found.response.value[0])
    )
    assert found.discount.reason_at() == Reason.NOT_COMPUTED and "discount" not in [o.metric for o in found.headlines()]
    exact = bayesgeom.audit(lambda t: torch.from_numpy(bias(t.numpy())).log(), free(), n=32)
    assert float(exact.order_spread) == pytest.approx(0, abs=1e-6) == float(exact.martingale_gap)


def sticky(tokens: np.ndarray) -> np.ndarray:
    """A chain that stays with probability 0.8, and forgets after the last token."""
    last = np.where(np.arange(tokens.shape[1]) < tokens.shape[1] - 1, 0.6 * tokens, 0.3)[:, :, None]
    return np.concatenate([0.8 - last, 0.2 + last], axis=2)


def stays(n: int, rng: np.random.Generator) -> np.ndarray:
    return (rng.random((n, 8)) < np.r_[0.5, np.full(7, 0.2)]).cumsum(axis=1) % 2


@pytest.mark.parametrize(
    ("drawing", "predicting", "known", "says"),
    [
        (stays, sticky, {"d_vocab": 2}, "the first . of sequence"),
        (draw, predict, {"d_vocab": 5}, "predict reads the order of the tokens"),
        (flips, bias, {"d_vocab": 2, "answers_follow": False}, "needs tokens that are all answers"),
        (lambda n, rng: (flips(n, rng), [3, 4]), bias, {"d_vocab": 2}, "every position scored"),
    ],
)
def test_what_is_not_exchangeable_is_refused(drawing: Any, predicting: Any, known: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        from_functions(drawing, predicting, exchangeable=True, **known)
