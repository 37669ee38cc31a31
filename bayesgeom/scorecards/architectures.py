"""What a scorecard trains: `make(d_vocab, n_ctx)`, a name, or a configuration of Hugging Face.

The named architectures have about 100,000 parameters without embeddings, in two layers. Those of Hugging Face run its
reference code.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, final

import torch
from torch import nn

from bayesgeom.core import InvalidArgument, unknown_name
from bayesgeom.core.errors import quoted
from bayesgeom.core.plugins import Contained
from bayesgeom.models.config import ModelConfig, config_from_dict, quiet

Make = Callable[[int, int], nn.Module]
_SIZES = {"n_layers": 2, "d_model": 64}
_WIDE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_GROUPS = {"num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 128}
# Sizes of this package's architectures, and configurations of Hugging Face, which name their `model_type`.
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "transformer": {**_SIZES, "n_heads": 4, "d_mlp": 256, "positions": "rotary", "tied": False},
    "lstm": {"n_layers": 2, "d_model": 78, "tied": False},
    "mamba": {"n_layers": 2, "d_model": 80, "tied": False},
    "mamba2": {"n_layers": 2, "d_model": 80, "d_head": 20},
    "rwkv": {**_SIZES, "d_mlp": 216},
    "gated-delta-net": {
        **(_WIDE | _GROUPS),
        "model_type": "qwen3_next",
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "layer_types": ["linear_attention"] * 2,
        "num_experts": 0,
        "mlp_only_layers": [0, 1],
    },
    "rg-lru": {
        **_WIDE,
        "model_type": "recurrent_gemma",
        "hidden_size": 80,
        "lru_width": 80,
        "intermediate_size": 208,
        "block_types": ["recurrent"],
    },
    "lightning-attention": {
        **(_WIDE | _GROUPS),
        "model_type": "minimax",
        "layer_types": ["linear_attention"] * 2,
        "num_local_experts": 1,
        "num_experts_per_tok": 1,
        "block_size": 64,
    },
}


@final
@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A network that can be built for any vocabulary and length.

    `text` is what a worker process builds it from; "" if it exists in this process only. `digest` changes with the file
    that defines it. `bayesgeom.training.steps.built` makes the network.
    """

    name: str
    make: Make
    text: str = ""
    digest: str = ""


def architectures_of(given: object) -> tuple[Architecture, ...]:
    """Return what to train, from one of these or a dictionary of them by name.

    Args:
        given: `make(d_vocab, n_ctx)`, a name of `ARCHITECTURES`, "FILE.py:NAME" or "package.module:NAME" of such a
            function, a `ModelConfig`, or a configuration of Hugging Face, as an object or a dictionary with its
            `model_type`.

    Raises:
        UnknownName: There is no architecture of this name, or the file has no such function.
        InvalidArgument: It is something else.

    Example:
        >>> [own.name for own in architectures_of({"mine": "lstm"})]
        ['mine']
    """
    if isinstance(given, Mapping) and not {"model_type", "architecture"} & set(given):
        return tuple(_named(str(name), one) for name, one in given.items())
    if isinstance(given, list | tuple):
        return tuple(architecture for one in given for architecture in architectures_of(one))
    return (_named("", given),)


def _named(name: str, given: Any) -> Architecture:
    match given:
        case str() if given in ARCHITECTURES:
            return Architecture(name=name or given, make=_maker(given, ARCHITECTURES[given]), text=given)
        case str() if ":" in given:
            return _of_code(name, given)
        case str():
            raise unknown_name("architecture", given, ARCHITECTURES)
        case Mapping():
            kind = str(given.get("model_type", given.get("architecture")))
            return Architecture(name=name or kind, make=_maker(kind, given))
        case ModelConfig():
            return Architecture(name=name or given.name, make=_maker(given.name, given.to_dict()))
        case object(model_type=str() as kind, to_diff_dict=entries) if callable(entries):
            return Architecture(name=name or kind, make=_maker(kind, {**entries(), "model_type": kind}))
        case object(__name__=str() as own) if callable(given):
            return Architecture(name=name or own, make=given)
    raise InvalidArgument(
        f"a scorecard trains from scratch: pass make(d_vocab, n_ctx), one of {', '.join(ARCHITECTURES)}, or a "
        f"configuration of Hugging Face; got {quoted(given)}."
    )


def _maker(name: str, sizes: Mapping[str, Any]) -> Make:
    """Return the function that builds a network of this package, or of Hugging Face where `model_type` is given."""

    def native(d_vocab: int, n_ctx: int) -> nn.Module:
        config = {"architecture": name, **sizes, "d_vocab": d_vocab, "n_ctx": n_ctx}
        return config_from_dict(config).build(seed=torch.initial_seed() % 2**31)

    def of_hugging_face(d_vocab: int, n_ctx: int) -> nn.Module:
        with quiet():
            from transformers import AutoConfig, AutoModelForCausalLM

            absent = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
            given = {**sizes, **absent, "vocab_size": d_vocab, "max_position_embeddings": n_ctx, "use_cache": False}
            net: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given)).float()
        return net

    return of_hugging_face if "model_type" in sizes else native


def _of_code(name: str, text: str) -> Architecture:
    """Return the architecture of a function in a file or module that the user names, which is run."""
    where, _, function = text.rpartition(":")
    path = Path(where)
    with Contained() as importing:
        module = _module_of(path.expanduser().resolve()) if path.suffix == ".py" else importlib.import_module(where)
    if importing.error is not None:
        raise InvalidArgument(f"{where} cannot be imported: {importing.fault}.")
    make = vars(module).get(function)
    if not callable(make):
        raise unknown_name(f"function in {where}", function, [own for own, _ in inspect.getmembers(module, callable)])
    source = Path(module.__file__ or "")
    text = f"{source}:{function}" if path.suffix == ".py" else text
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16] if source.is_file() else ""
    return Architecture(name=name or function, make=make, text=text, digest=digest)


def _module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bayesgeom_scorecard_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses in it look themselves up
    spec.loader.exec_module(module)
    return module
