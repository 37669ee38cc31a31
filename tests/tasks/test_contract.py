"""What every wind tunnel keeps to, present and future: nothing is registered, discovery finds them."""

import copy
import dataclasses
import json
from functools import cache

import pytest
import torch

from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.plugins import discover
from bayesgeom.core.run import NO_LABEL, Trials, concatenate
from bayesgeom.stats.information import kl_bits
from bayesgeom.tasks.base import WindTunnel, task_from_config, task_from_text
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.process import Mess3, Process

N = 37


def made_by_default() -> dict[str, WindTunnel]:
    """Every task that can be made without a parameter; the others are made below."""
    # mypy: an abstract class as a value is what discovery is about.
    kinds = discover("bayesgeom.tasks", WindTunnel)  # type: ignore[type-abstract]
    return {name: kind() for name, kind in kinds.items() if not _has_required_fields(kind)}


def _has_required_fields(kind: type) -> bool:
    fields = dataclasses.fields(kind)
    return any(f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING for f in fields)


TASKS = made_by_default() | {"process": Process(Mess3(x=0.05, a=0.85).labeled().numpy())}
every_task = pytest.mark.parametrize("name", TASKS)
every_task_by_default = pytest.mark.parametrize("name", made_by_default())


@cache
def drawn(name: str) -> Trials:
    return TASKS[name].sample(N, seed=3)


def at_scored(trials: Trials) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact predictive, and the place of the label in it."""
    targets = trials.at_scored(trials.labels)
    return trials.at_scored(trials.predictive), (targets[..., None] == trials.answers).double().argmax(-1)


@every_task
def test_a_task_says_whether_it_has_a_posterior(name: str) -> None:
    assert TASKS[name].has_posterior == drawn(name).has_posterior


def test_a_task_whose_sequences_say_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bijection, "has_posterior", False)
    with pytest.raises(InvalidArgument, match="has_posterior = False, but its sequences have 3 answers"):
        Bijection(n_values=3, n_pairs=2).sample(1, seed=0)


def test_the_tasks_of_the_papers_are_among_them() -> None:
    assert {"bijection", "hmm", "recall", "mess3", "process", "sticky-markov", "modular-recurrence"} <= TASKS.keys()


@every_task
def test_tokens_and_answers_are_ids_of_the_vocabulary(name: str) -> None:
    task, trials = TASKS[name], drawn(name)
    assert trials.tokens.shape == (N, task.n_pos)
    for ids in (trials.tokens, trials.answers, *trials.token_sets.values()):
        assert int(ids.min()) >= 0 and int(ids.max()) < task.d_vocab
    assert len(trials.answers.unique()) == len(trials.answers)
    labels = task.token_labels()
    assert len(labels) == len(set(labels)) == task.d_vocab
    assert trials.token_sets, "the geometry of keys needs named ids"


@every_task
def test_posteriors_are_distributions_where_scored_and_nan_elsewhere(name: str) -> None:
    trials = drawn(name)
    for exact in (trials.predictive, trials.belief):
        scored = trials.at_scored(exact)
        assert exact.dtype == torch.float64 and float(scored.min()) >= 0
        torch.testing.assert_close(scored.sum(-1), torch.ones(N, trials.n_scored).double(), atol=1e-12, rtol=0)
        assert exact[~trials.scored].isnan().all()
    assert (trials.labels[~trials.scored] == NO_LABEL).all()


@every_task
def test_labels_are_possible_and_as_frequent_as_predicted(name: str) -> None:
    trials = TASKS[name].sample(400, seed=4)
    exact, targets = at_scored(trials)
    assert torch.isin(trials.at_scored(trials.labels), trials.answers).all()
    given = exact.gather(2, targets[..., None])[..., 0]
    assert given.min() > 0
    surprise = given.mean(1) - exact.square().sum(-1).mean(1)  # 0 on average, if labels are as frequent as predicted
    assert abs(float(surprise.mean())) < 5 * float(surprise.std()) / 400**0.5 + 1e-12


@every_task
def test_baselines_are_finite_predictors_that_know_less(name: str) -> None:
    trials = drawn(name)
    exact, _ = at_scored(trials)
    baselines = TASKS[name].baseline_predictives(trials)
    assert baselines
    for baseline_name, baseline in baselines.items():
        assert baseline.shape == exact.shape and baseline.dtype == torch.float64, baseline_name
        torch.testing.assert_close(
            baseline.sum(-1), torch.ones_like(baseline[..., 0]), atol=1e-12, rtol=0, msg=baseline_name
        )
        cost = float(kl_bits(exact, baseline.log()).mean())
        assert 1e-6 < cost < 20, f"{baseline_name} costs {cost} bits"


@every_task
def test_relations_look_back(name: str) -> None:
    trials = drawn(name)
    later = torch.arange(trials.tokens.shape[1]) > trials.scored_positions()[:, :, None]
    assert trials.relations
    for relation_name, related in trials.relations.items():
        assert related.shape == (N, trials.n_scored, trials.tokens.shape[1]), relation_name
        assert not (related & later).any() and related.any(), relation_name


@every_task
def test_a_seed_decides_the_trials(name: str) -> None:
    again, other = (TASKS[name].sample(N, seed=seed) for seed in (3, 4))
    for field in ("tokens", "labels", "predictive"):
        assert torch.equal(vars(again)[field].nan_to_num(), vars(drawn(name))[field].nan_to_num())
    assert not torch.equal(other.tokens, drawn(name).tokens)


@every_task
def test_pairs_share_scored_positions_and_answers(name: str) -> None:
    original, donor = TASKS[name].sample_pair(N, seed=5)
    assert torch.equal(original.scored, donor.scored) and torch.equal(original.answers, donor.answers)
    assert original.tokens.shape == donor.tokens.shape and not torch.equal(original.labels, donor.labels)
    for trials in (original, donor):
        exact, targets = at_scored(trials)
        assert exact.gather(2, targets[..., None]).min() > 0, "its own posterior allows its answers"


@every_task
def test_cut_and_joined_trials_are_the_same_trials(name: str) -> None:
    trials = drawn(name)
    joined = concatenate([trials.rows(slice(0, 5)), trials.rows(slice(5, N))])
    for field in ("tokens", "scored", "labels", "belief", "predictive"):
        assert torch.equal(vars(joined)[field].nan_to_num(), vars(trials)[field].nan_to_num())
    assert all(torch.equal(joined.relations[key], related) for key, related in trials.relations.items())
    assert joined.statistics.keys() == trials.statistics.keys()
    for key, values in trials.statistics.items():
        assert torch.equal(joined.statistics[key].isnan(), ~trials.scored)
        assert torch.equal(joined.statistics[key].nan_to_num(), values.nan_to_num())


@every_task
def test_a_task_comes_back_from_its_config(name: str) -> None:
    task = TASKS[name]
    assert task_from_config(json.loads(json.dumps(task.config()))) == task
    assert task.name == name and hash(task) == hash(task_from_config(task.config()))


@every_task
def test_20_0_pairs_are_refused_when_the_task_is_made(name: str) -> None:
    """By the constructor's own check; the type checks of the tests would refuse the value earlier."""
    task = TASKS[name]
    whole = [field.name for field in dataclasses.fields(task) if field.type is int]  # type: ignore[arg-type]
    assert whole
    for field in whole:
        odd, value = copy.copy(task), float(vars(task)[field])
        object.__setattr__(odd, field, value)
        with pytest.raises(InvalidArgument, match=rf"task '{name}': {field} must be int, got {value}"):
            odd.__post_init__()  # type: ignore[attr-defined]


@every_task_by_default
def test_a_task_goes_by_its_name_on_the_command_line(name: str) -> None:
    assert task_from_text(name) == TASKS[name]


@every_task
def test_pages_open_with_the_words_and_an_example_of_a_task(name: str) -> None:
    task = TASKS[name]
    words = task.in_words()
    assert "{" not in words["sentence"] and "{model}" in words["question"]
    if task.has_posterior:
        assert set(words["example"]) <= set(task.token_labels()) and 0 < len(words["example"]) <= 12
        shares = [share for (share,) in words["answers"].values()]
        assert shares == sorted(shares, reverse=True) and 0 < sum(shares) < 1.001
        trials = task.sample(2, seed=3)
        model = [0.0] * (len(trials.answers) - 1) + [1.0]
        answers = task.in_words(trials, model)["answers"]
        assert (task.token_labels()[int(trials.answers[-1])], 1.0) in [(name, own[1]) for name, own in answers.items()]
