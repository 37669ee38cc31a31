"""Edits in several layers at once, through the Hugging Face path: against plain hooks, on labeled evidence too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from bayesgeom.cli import main
from bayesgeom.core.errors import InvalidArgument
from bayesgeom.core.run import RESID_PRE, Trials, V
from bayesgeom.interventions.design import Design
from bayesgeom.interventions.engine import N_MEAN
from bayesgeom.interventions.joint import JointIntervention, orthogonal_to
from bayesgeom.interventions.report import UNEDITED, JointInterventionReport
from bayesgeom.interventions.run import intervene
from bayesgeom.interventions.verdicts import joint_verdict
from bayesgeom.models.base import Model
from bayesgeom.models.resolve import as_model
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.stats.behavior import answer_log_probabilities
from bayesgeom.stats.information import entropy_bits, kl_bits
from bayesgeom.stats.subspace import random_subspaces
from bayesgeom.subspaces import fits
from bayesgeom.subspaces.base import InterventionSite
from bayesgeom.subspaces.quantity import ENTROPY
from bayesgeom.tasks.base import derived_seed
from bayesgeom.tasks.evidence import LabeledEvidence
from tests.families import lively
from tests.interventions.test_huggingface import D_HEAD, N_KV, N_LAYERS, llama
from tests.interventions.worlds import TASK
from tests.tasks.tokenizers import word_tokenizer

N = 11
BOTH = InterventionSite(RESID_PRE, (0, 1))


@pytest.fixture(scope="module")
def hf() -> Any:
    return llama()


@pytest.fixture(scope="module")
def model(hf: Any) -> Model:
    return as_model(hf)


@pytest.fixture(scope="module")
def reader() -> Model:
    """A tiny Llama with a tokenizer."""
    import transformers

    tokenizer = word_tokenizer()
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer) + 3, "hidden_size": 60, "intermediate_size": 29, "num_hidden_layers": 3}
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=6, num_key_value_heads=3, bos_token_id=None, eos_token_id=None, pad_token_id=None
    )
    return as_model(lively(transformers.LlamaForCausalLM(config)).eval(), tokenizer=tokenizer)


def edited_pass(
    hf: Any, trials: Trials, axes: dict[int, Tensor], means: dict[int, Tensor]
) -> tuple[Tensor, dict[int, Tensor]]:
    """Logits at the scored rows, with each layer's input moved to its mean along its axis; and that input before."""
    arriving: dict[int, Tensor] = {}

    def cut(layer: int) -> Any:
        def hook(_module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
            arriving[layer] = args[0]
            if layer not in means:
                return args
            return (args[0] - (args[0] - means[layer]) @ axes[layer] @ axes[layer].T, *args[1:])

        return hook

    handles = [block.register_forward_pre_hook(cut(i)) for i, block in enumerate(hf.model.layers)]
    with torch.no_grad():
        logits = hf(input_ids=trials.tokens, use_cache=False).logits
    for handle in handles:
        handle.remove()
    return trials.at_scored(logits), {layer: trials.at_scored(x) for layer, x in arriving.items()}


def scores(logits: Tensor, trials: Trials) -> np.ndarray:
    log_answers, _ = answer_log_probabilities(logits, trials)
    exact = trials.at_scored(trials.predictive)
    error = (entropy_bits(log_answers.exp()) - entropy_bits(exact)).abs()
    return np.array([float(kl_bits(exact, log_answers).mean()), float(error.mean())])


def role_means(hf: Any, job: JointIntervention) -> dict[int, Tensor]:
    blocks = list(job.single.task.stream(N_MEAN, seed=derived_seed(job.single.seed, 10)))
    found = {}
    for layer in range(N_LAYERS):
        held: list[Tensor] = []
        for trials in blocks:
            handle = hf.model.layers[layer].register_forward_pre_hook(lambda m, a, h=held: h.append(a[0]) or None)
            with torch.no_grad():
                hf(input_ids=trials.tokens, use_cache=False)
            handle.remove()
        mean, is_scored = torch.cat(held).mean(dim=0), blocks[0].scored[0]
        found[layer] = torch.stack([mean[is_scored == role].mean(dim=0) for role in is_scored])
    return found


def order(points: Tensor, axis: Tensor, entropy: np.ndarray) -> float:
    """|Spearman|, where coordinates that differ by rounding are equal."""
    along = (points.double() @ axis.double())[..., 0].flatten().numpy()
    return float(abs(spearmanr((along / np.abs(along).max()).round(6), entropy).statistic))


def test_numbers_are_those_of_plain_hooks(hf: Any, model: Model) -> None:
    places = [InterventionSite(RESID_PRE, (1,)), BOTH]
    report = intervene(model, TASK, "covariance:entropy", sites=places, kind="remove", n=N)
    job = JointIntervention.of(model, TASK, fits.covariance(), sites=places, design=Design("remove"), n=N, seed=0)
    axes = {at: s.basis.float() for at, s in job.single.fit.fitted(job.single.sample(), range(N_LAYERS)).items()}
    means, (trials,) = role_means(hf, job), TASK.stream(N, seed=derived_seed(0, 8))
    plain, arriving = edited_pass(hf, trials, axes, {})
    exact = entropy_bits(trials.at_scored(trials.predictive)).flatten().numpy().round(9)
    unchanged = report.unedited_kl_bits.value, report.unedited_entropy_error_bits.value
    np.testing.assert_allclose(unchanged, scores(plain, trials), atol=1e-5)
    unedited = report.axis_correlation.baseline(UNEDITED).value[0]
    for layer in range(N_LAYERS):
        expected = order(arriving[layer], axes[layer], exact)
        assert unedited[layer, 0] == pytest.approx(expected, abs=1e-3)
    for row, place in enumerate(places):
        logits, found = edited_pass(hf, trials, axes, {i: means[i] for i in place.layers or ()})
        np.testing.assert_allclose(
            (report.kl_increase_bits.value[row], report.entropy_error_increase_bits.value[row]),
            scores(logits, trials) - scores(plain, trials),
            atol=1e-5,
            err_msg=str(place),
        )
        for layer in range(N_LAYERS):
            expected = order(found[layer], axes[layer], exact)
            assert report.axis_correlation.value[row, layer, 0] == pytest.approx(expected, abs=1e-3)
    assert report.sets == ("1", "0+1") and np.abs(report.kl_increase_bits.value).min() > 1e-5, "something changed"
    for row in (0, 1):  # what arrives first has not been edited
        np.testing.assert_allclose(report.axis_correlation.value[row, 0, :2], unedited[0, :2])


def test_an_edit_at_values_is_one_of_all_key_heads_together(reader: Model) -> None:
    task, axis = LabeledEvidence(k_max=2, n_words=7), fits.covariance()
    report = intervene(reader, task, axis, sites=[InterventionSite(V, (1, 2))], kind="remove", n=5)
    assert report.site == "v" and np.abs(report.kl_increase_bits.ceiling).min() > 0
    with pytest.raises(InvalidArgument, match=rf"rank 19 of {N_KV * D_HEAD} in layer 0: no subspace of that rank"):
        intervene(reader, task, "random:19", sites=[InterventionSite(V, (0,))], kind="remove", n=5)
    with pytest.raises(InvalidArgument, match=r"layer 0 holds the same vector at every scored position, so covariance"):
        intervene(reader, task, axis, sites=[InterventionSite(V, (0, 1))], kind="remove", n=5)


def test_orthogonal_subspaces_are_orthogonal_and_random() -> None:
    own = random_subspaces(13, 3, draws=1, seed=0)[0]
    drawn = orthogonal_to(own, draws=5, seed=1)
    assert drawn.shape == (5, 13, 3) and float((own.T @ drawn).abs().max()) < 1e-12
    torch.testing.assert_close(drawn.mT @ drawn, torch.eye(3, dtype=torch.float64).expand(5, 3, 3))
    assert float((drawn[0] - drawn[1]).abs().max()) > 0.1


def test_the_axis_of_standardized_vectors_has_their_score(model: Model) -> None:
    """Its coordinate is the standardized PC1 score, up to scale; that of the plain PC1 is not."""
    fit = fits.entropy_axis("pc1_standardized")
    job = JointIntervention.of(model, TASK, fit, sites=[BOTH], design=Design("remove"), n=2, seed=0)
    sample = job.single.sample()
    points = sample.points(1).numpy()
    unit = (points - points.mean(axis=0)) / points.std(axis=0)
    first = np.linalg.svd(unit, full_matrices=False)[2][0]
    axis = job.single.fit.fitted(sample, (1,))[1].basis.numpy()[:, 0]
    score, along = unit @ first, (points - points.mean(axis=0)) @ axis
    assert abs(np.corrcoef(score, along)[0, 1]) == pytest.approx(1, abs=1e-9)
    plain = fits.entropy_axis("pc1").fitted(sample, (1,))[1].basis.numpy()[:, 0]
    assert abs(float(axis @ plain)) < 0.999
    assert float(along @ (sample.values(ENTROPY)[:, 0].numpy() - sample.values(ENTROPY)[:, 0].numpy().mean())) > 0


@pytest.mark.parametrize(
    ("value", "beyond", "most", "text"),
    [
        (2.0, 1.0, 1.5, "costs more than chance"),
        (1.0, 0.5, 1.5, "costs no more than chance"),
        (2.0, -1.0, 1.5, "undeci"),
        (1.0, np.nan, 1.5, "undeci"),
    ],
)
def test_verdicts_follow_the_rule(value: float, beyond: float, most: float, text: str) -> None:
    assert joint_verdict(value, beyond, most).startswith(text)


def test_subspaces_of_several_layers_are_fitted_on_as_many_sequences_as_are_named(model: Model) -> None:
    few, more, default = (
        intervene(model, TASK, "covariance:entropy", sites=[BOTH], kind="remove", n=N, **given)
        for given in ({"n_fit": 32}, {"n_fit": 1_024}, dict[str, int]())
    )
    np.testing.assert_array_equal(more.kl_increase_bits.value, default.kl_increase_bits.value)
    assert not np.array_equal(few.kl_increase_bits.value, default.kl_increase_bits.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"kind": "swap"}, InvalidArgument, r"kind must be one of remove, keep, add; 'swap' edits one layer at a time"),
        ({"n": 1}, InvalidArgument, r"at least 2 for a correlation; got 1"),
        (
            {"sites": [BOTH, InterventionSite(V, (0,))]},
            InvalidArgument,
            r"sites must hold at least one site, all at one hook point",
        ),
        ({"kind": Design("remove")}, InvalidArgument, r"a list of sites takes kind=.*Design"),
        ({"sites": [InterventionSite(RESID_PRE, (0, 2))]}, InvalidArgument, r"layers \[0, 2\]: choose at least one of"),
    ],
)
def test_mistakes_are_named(model: Model, arguments: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        intervene(model, TASK, **{"sites": [BOTH], "kind": "remove", "n": 3, **arguments})


@pytest.fixture(scope="module")
def directory(reader: Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny Llama and its tokenizer, saved."""
    path = tmp_path_factory.mktemp("reader")
    reader.module.save_pretrained(path)  # type: ignore[operator]
    word_tokenizer().save_pretrained(path)
    return str(path)


def command(directory: str, *more: str) -> int:
    task = "evidence:k_max=2,n_words=7"
    return main(["intervene", directory, "--task", task, "--subspace", "entropy_axis", "--kind", "remove", *more])


@pytest.mark.exhaustive
def test_layers_joined_by_a_plus_are_edited_at_once_from_the_shell(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    assert command(directory, "--layers", "1,1+2", "--site", "v", "--n", "4", "--out", str(out)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "remove decoder (entropy), layer 1 " in printed and "layers 1+2" in printed
    found = Diagnosis.load(out)
    assert list(found) == ["joint_intervention"] and found[JointInterventionReport].sets == ("1", "1+2")
    assert found.provenance["arguments"]["layers"] == "1,1+2" and found.provenance["arguments"]["site"] == "v"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--layers", "1-2"), "--layers takes whole numbers joined by , or +"),
        (("--layers", "1+7"), "layers [1, 7]: choose at least one of"),
        (("--site", "nowhere"), "there is no site named 'nowhere'"),
        (
            ("--site", "v", "--layers", "1"),
            "an intervention can edit resid_pre, z, attn_out, resid_mid, mlp_out, resid_post",
        ),
        (("--layers", "0"), "layer 0 holds the same vector at every scored position"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(
    directory: str, more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(directory, *more, "--n", "3") == 2
    assert message in capsys.readouterr().err
