"""Hugging Face directories, built tiny from configs, with one field of one file odd, and models of other kinds."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

import bayesgeom
from benchmarks.fault_files import TASK
from benchmarks.faults import Case

SMALL: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 12, "intermediate_size": 13, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 3, "max_position_embeddings": 17,
}  # fmt: skip
GPT2: dict[str, Any] = {"vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 17}
ODD: tuple[Any, ...] = (None, True, -1, 0, 1, 5, 2**70, 1.5, 1e308, "", "x", [], [1], {}, {"x": 1}, {"rope_type": "x"})
KEPT = 1200  # of the odd fields; the whole list is longer


def decoders() -> dict[str, Callable[[], Any]]:
    """Causal language models: these load, and one field of their files is then changed."""
    t = transformers
    return {
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SMALL)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(**GPT2)),
        "gpt-neox": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**{**SMALL, "num_attention_heads": 3})),
        "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**SMALL)),
        "mamba": lambda: t.MambaForCausalLM(
            t.MambaConfig(vocab_size=31, hidden_size=12, num_hidden_layers=2, state_size=4)
        ),
    }


def others() -> dict[str, Callable[[], Any]]:
    """Models of other kinds, and decoders without a part."""
    t = transformers
    bert = {**SMALL, "num_attention_heads": 3}
    t5 = t.T5Config(vocab_size=31, d_model=12, d_kv=4, d_ff=13, num_layers=2, num_heads=3)
    return {
        "T5": lambda: t.T5ForConditionalGeneration(t5),
        "T5 encoder": lambda: t.T5EncoderModel(t5),
        "BERT": lambda: t.BertForMaskedLM(t.BertConfig(**bert)),
        "BERT classifier": lambda: t.BertForSequenceClassification(t.BertConfig(**bert)),
        "BERT decoder": lambda: t.BertLMHeadModel(t.BertConfig(**bert, is_decoder=True)),
        "Llama classifier": lambda: t.LlamaForSequenceClassification(t.LlamaConfig(**SMALL)),
        "Llama without a head": lambda: t.LlamaModel(t.LlamaConfig(**SMALL)),
        "GPT-2 without a head": lambda: t.GPT2Model(t.GPT2Config(**GPT2)),
        "GPT-2 classifier": lambda: t.GPT2ForSequenceClassification(t.GPT2Config(**GPT2)),
        "Llama of no layer": lambda: t.LlamaForCausalLM(t.LlamaConfig(**{**SMALL, "num_hidden_layers": 0})),
        "GPT-2 of no layer": lambda: t.GPT2LMHeadModel(t.GPT2Config(**{**GPT2, "n_layer": 0})),
        "Llama of one id": lambda: t.LlamaForCausalLM(t.LlamaConfig(**{**SMALL, "vocab_size": 1})),
        "Llama of one position": lambda: t.LlamaForCausalLM(t.LlamaConfig(**{**SMALL, "max_position_embeddings": 1})),
        "ViT": lambda: t.ViTModel(
            t.ViTConfig(
                hidden_size=12,
                num_hidden_layers=1,
                num_attention_heads=3,
                intermediate_size=13,
                image_size=8,
                patch_size=4,
            )
        ),
        "BART": lambda: t.BartForConditionalGeneration(
            t.BartConfig(
                vocab_size=31,
                d_model=12,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=3,
                decoder_attention_heads=3,
                encoder_ffn_dim=13,
                decoder_ffn_dim=13,
                max_position_embeddings=17,
            )
        ),
        "half precision": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SMALL)).half(),
        "float64": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SMALL)).double(),
    }


def saved(make: Callable[[], Any], path: Path) -> Path:
    """The directory of a model, its weights drawn with a seed."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        make().save_pretrained(path)
    return path


def measured(path: Path) -> None:
    """Load and diagnose a directory."""
    model = bayesgeom.load(path)
    bayesgeom.diagnose(model, TASK, n=2, n_untrained=0)


def huggingface(folder: Path) -> Iterator[Case]:
    """Every other kind; then decoders with one odd field, a seeded choice of them."""
    for name, make in others().items():
        yield Case(name, lambda name=name, make=make: measured(saved(make, folder / name)))
    odd = [(name, *own) for name, make in decoders().items() for own in fields(saved(make, folder / name))]
    special = [
        own
        for own in odd
        if own[2] in ("rope_scaling", "rope_parameters", "dtype", "torch_dtype", "hidden_act", "activation_function")
    ]
    rest = [own for own in odd if own not in special]
    for name, file, key, value in special + random.Random("huggingface").sample(rest, KEPT - len(special)):

        def act(name: str = name, file: str = file, key: str = key, value: Any = value) -> None:
            copy = folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder / name, copy)
            held = json.loads((copy / file).read_text()) if (copy / file).is_file() else {}
            (copy / file).write_text(json.dumps({**held, key: value}))
            measured(copy)

        yield Case(f"{name}: {file}: {key} = {value!r:.40}", act)


def fields(path: Path) -> Iterator[tuple[str, str, Any]]:
    """File, key and odd value of every change."""
    for file, further in (
        ("config.json", ("rope_scaling", "torch_dtype", "quantization_config", "auto_map", "text_config", "head_dim")),
        ("generation_config.json", ("max_length", "do_sample", "cache_implementation", "temperature")),
        ("tokenizer_config.json", ("tokenizer_class", "auto_map", "model_max_length", "extra_special_tokens")),
    ):
        held = json.loads((path / file).read_text()) if (path / file).is_file() else {}
        for key in dict.fromkeys((*held, *further)):
            for value in ODD:
                yield file, key, value
