"""Models of nnsight and nnterp are measured as the modules that they hold."""

from collections.abc import Callable
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import bayesgeom

pytestmark = pytest.mark.filterwarnings("ignore")  # of these packages, about parts of their own

MAKERS: list[tuple[str, bool, Callable[[Any, Any, Any], Any]]] = [
    ("nnsight", False, lambda package, module, _: package.NNsight(module)),
    ("nnsight", True, lambda package, module, tokenizer: package.LanguageModel(module, tokenizer=tokenizer)),
    ("nnterp", True, lambda package, module, tokenizer: package.StandardizedTransformer(module, tokenizer=tokenizer)),
]


@pytest.mark.parametrize(("package", "has_tokenizer", "make"), MAKERS)
def test_a_traced_model_is_measured_as_its_module(
    package: str, has_tokenizer: bool, make: Callable[[Any, Any, Any], Any]
) -> None:
    # nnterp raises ImportError of its own with a version of nnsight that it does not know.
    library = pytest.importorskip(package, exc_type=ImportError)
    sizes = {"vocab_size": 40, "hidden_size": 60, "intermediate_size": 29, "num_hidden_layers": 2}
    ends = {"num_attention_heads": 6, "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": None}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **ends)).eval()
    words = Tokenizer(WordLevel({str(i): i for i in range(40)}, unk_token="0"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0")
    traced, plain = bayesgeom.as_model(make(library, llama, tokenizer)), bayesgeom.as_model(llama)
    assert traced.module is llama and traced.sites == plain.sites
    assert traced.tokenizer is (tokenizer if has_tokenizer else None)
    task = bayesgeom.tasks.Bijection(n_values=20, n_pairs=7)
    first, second = (bayesgeom.diagnose(own, task, n=8, n_untrained=0)["calibration"] for own in (traced, plain))
    assert first == second
