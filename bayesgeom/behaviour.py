"""From answer log-probabilities to `Behaviour`: the one place where predictions are scored against the posterior."""

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from bayesgeom.activations import Behaviour
from bayesgeom.information import NATS_PER_BIT, entropy_bits, kl_bits, total_variation
from bayesgeom.trials import Trials


def behaviour(
    trials: Trials,
    log_answers: Float64[Tensor, "batch query_pos answer"],
    leak: Float64[Tensor, "batch query_pos"],
) -> Behaviour:
    """Score natural-log answer probabilities, normalised over the answers, against the trials' exact predictive."""
    exact = trials.at_scored(trials.predictive)
    model = log_answers.exp()
    asked = trials.at_scored(trials.realised)[..., None]
    realised = (trials.answers == asked).double().argmax(-1, keepdim=True)
    return Behaviour(
        exact_entropy_bits=_array(entropy_bits(exact)),
        model_entropy_bits=_array(entropy_bits(model)),
        kl_bits=_array(kl_bits(exact, log_answers)),
        total_variation=_array(total_variation(exact, model)),
        leak=_array(leak),
        answer_log2=_array(log_answers.gather(-1, realised)[..., 0] / NATS_PER_BIT),
        correct=_array((log_answers.argmax(-1, keepdim=True) == realised)[..., 0].double()),
    )


def answer_log_probabilities(
    logits: Float[Tensor, "batch query_pos d_vocab"], trials: Trials
) -> tuple[Float64[Tensor, "batch query_pos answer"], Float64[Tensor, "batch query_pos"]]:
    """Natural-log probabilities renormalised over the answers, in float64, and the leak: the probability elsewhere."""
    log_all = logits.double().log_softmax(-1)
    log_answers = log_all[..., trials.answers]
    inside = log_answers.logsumexp(-1, keepdim=True)
    return log_answers - inside, torch.expm1(inside[..., 0].clamp_max(0.0)).abs()


def predicted_behaviour(trials: Trials, probabilities: Float64[Tensor, "batch query_pos answer"]) -> Behaviour:
    """What a predictor with these answer probabilities and no leak is worth."""
    return behaviour(trials, probabilities.log(), torch.zeros_like(probabilities[..., 0]))


def merged(parts: list[Behaviour]) -> Behaviour:
    """One behaviour out of those of consecutive blocks."""
    return Behaviour(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def _array(values: Float[Tensor, "batch query_pos"]) -> Float[np.ndarray, "sequence position"]:
    return values.detach().cpu().numpy()
