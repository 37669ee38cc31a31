"""Modes of torch around a call, weights that were changed after loading, and tokenizers whose JSON is odd."""

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import bayesgeom
from bayesgeom.core import default_dtype
from benchmarks.fault_models import ODD, SMALL
from benchmarks.faults import Accepted, Case

NAME, N = "mess3-small", 8
KEPT = 120  # of the odd fields of a tokenizer; each takes half a second


def calls() -> dict[str, Callable[[Any], Any]]:
    """Functions of a model whose reports hold numbers."""
    b = bayesgeom
    return {
        "diagnose": lambda model: b.diagnose(model, n=N, n_untrained=1),
        "ablate": lambda model: b.ablate(model, battery="mlps", n=N),
        "intervene": lambda model: b.intervene(model, n=24),
        "relabeling": lambda model: b.relabeling_invariance(model, n=N),
        "evidence": lambda model: b.evidence_response(model, ages=(0, 2), n=N),
        "laws": lambda model: b.gradient_laws(model, n=N),
    }


def modes(_folder: Path) -> list[Case]:
    """Every call in every mode: the same numbers, or a refusal."""
    around: Mapping[str, Callable[[], Any]] = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "meta": lambda: torch.device("meta"),
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "float64": lambda: default_dtype(torch.float64),
        "bfloat16": lambda: default_dtype(torch.bfloat16),
    }
    plain: dict[str, np.ndarray] = {}

    def act(name: str, mode: str) -> None:
        call = calls()[name]
        if name not in plain:
            plain[name] = numbers(call(bayesgeom.load(NAME)))
        model = bayesgeom.load(NAME)
        with around[mode]():
            found = numbers(call(model))
        if not np.allclose(found, plain[name], rtol=1e-4, atol=1e-6, equal_nan=True):
            raise Accepted(f"other numbers in {mode}")

    return [Case(f"{name} in {mode}", partial(act, name, mode)) for name in calls() for mode in around]


def numbers(result: Any) -> np.ndarray:
    """Return all estimates of a report or a diagnosis in one array."""
    return result.to_pandas()["value"].to_numpy(float)


def changed_weights(_folder: Path) -> list[Case]:
    """Every change after loading: the numbers and the hash are those of the weights that are there, or a refusal."""
    changes: Mapping[str, Callable[[torch.nn.Module], Any]] = {
        "mul_": lambda net: [own.data.mul_(1.5) for own in net.parameters()],
        "zero_": lambda net: next(net.parameters()).data.zero_(),
        "half": lambda net: net.half(),
        "double": lambda net: net.double(),
        "copy_": lambda net: net.load_state_dict({key: own.flip(0) for key, own in net.state_dict().items()}),
        "another tensor": lambda net: setattr(net.embed, "weight", torch.nn.Parameter(net.embed.weight.detach() * 2)),
        "a block less": lambda net: net.blocks.__delitem__(-1),
        "a block more": lambda net: net.blocks.append(copy.deepcopy(net.blocks[-1])),
        "nan": lambda net: next(net.parameters()).data.fill_(float("nan")),
    }

    def act(name: str, change: str) -> None:
        model = bayesgeom.load(NAME)
        call, before = calls()[name], model.spec.weights_hash
        call(model)
        changes[change](model.module)
        found = call(model)
        fresh = bayesgeom.as_model(copy.deepcopy(model.module))
        fresh.task = model.task
        if not np.allclose(numbers(found), numbers(call(fresh)), rtol=1e-4, atol=1e-6, equal_nan=True):
            raise Accepted("the numbers are not those of the changed module")
        if found.provenance["model"]["weights_hash"] == before:
            raise Accepted("the provenance has the former hash")

    return [Case(f"{change}, then {name}", partial(act, name, change)) for change in changes for name in calls()]


def tokenizers(folder: Path) -> list[Case]:
    """A Hugging Face directory whose `tokenizer.json` has one odd value: it loads, or one sentence names the file."""
    whole = folder / "whole"
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).save_pretrained(whole)
    own = Tokenizer(models.WordLevel({f"w{at}": at for at in range(31)}, unk_token="w0"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=own).save_pretrained(whole)
    text = json.loads((whole / "tokenizer.json").read_text())
    cases = [(path, value) for path in paths(text) for value in ODD]

    def act(path: tuple[Any, ...], value: Any) -> None:
        damaged = folder / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(whole, damaged)
        changed = json.loads((whole / "tokenizer.json").read_text())
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (damaged / "tokenizer.json").write_text(json.dumps(changed))
        bayesgeom.load(damaged)

    kept = random.Random("odd tokenizers").sample(cases, min(KEPT, len(cases)))
    return [Case(f"{'/'.join(map(str, path))} = {value!r}"[:80], partial(act, path, value)) for path, value in kept]


def paths(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a tree of JSON."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inside:
        yield (*at, key)
        yield from paths(value, (*at, key))
