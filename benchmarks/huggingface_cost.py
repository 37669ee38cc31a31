"""What watching a Hugging Face model costs, as ratios from one run on this machine.

    (a) time:   model.run that records keys, values, patterns and the residual stream before and after all 12 blocks of
                a Llama (d_model 256, random weights, 16×64 tokens), against the plain Hugging Face forward pass with
                eager attention                                                                     at most 1.4
    (b) memory: peak of diagnose(n_untrained=0) on 4,000 prompts against the peak on 400                  at most 1.1
    (c) --large: a Llama of a billion parameters, random weights, bfloat16, diagnosed end to end    under 16 GB

In (a) the sides alternate and medians are compared. A run that is asked for every position also reduces 16×64×32,000
logits to entropies; one that is asked for the last position, as prompts are, makes no others, and is compared with a
plain pass that makes no others (`logits_to_keep=1`). (b) and (c) are processes of their own, and their peaks are
what the kernel says (ru_maxrss).
"""

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from diagnose_cost import GB, IMPORT, seconds, usage, verdict

import bayesgeom
from bayesgeom.core import run as s
from bayesgeom.core.run import Trials
from bayesgeom.models.base import Model
from bayesgeom.models.huggingface.model import HFModel
from bayesgeom.tasks.base import candidates
from bayesgeom.tasks.evidence import LabeledEvidence
from bayesgeom.tasks.prompts import Prompts

RECORDED = (s.K, s.V, s.PATTERN, s.RESID_PRE, s.RESID_POST)
N, N_POS, N_FEW, N_MANY = 16, 64, 400, 4_000
MARKS = (":", ",", "_", "<unk>", "<s>")


def llama(dtype: torch.dtype = torch.float32, **sizes: int) -> Any:
    """A Llama with random weights."""
    import transformers

    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        config = transformers.LlamaConfig(max_position_embeddings=2_048, **sizes)
        return transformers.LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def middling() -> Any:
    """The shape of (a)."""
    return llama(
        vocab_size=32_000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=4,
    )


def small() -> Any:
    """The shape of (b)."""
    return llama(
        vocab_size=1_000,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


def billion() -> Any:
    """The shape of Llama 3.2 1B; its tied embeddings count once."""
    return llama(
        torch.bfloat16,
        vocab_size=128_256,
        hidden_size=2_048,
        intermediate_size=8_192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
    )


def tokenizer() -> Any:
    """One id for each of the words that text tasks choose from."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = dict.fromkeys((*MARKS, *candidates("words"), *candidates("labels"), *map(chr, range(65, 91))))
    whole = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="<unk>")


def generated(n: int) -> list[str]:
    """Prompts of 12 … 20 words, no two alike."""
    words, generator = candidates("words"), torch.Generator().manual_seed(0)
    rows = torch.randint(len(words), (n, 20), generator=generator).tolist()
    return [" ".join(words[i] for i in row[: 12 + number % 9]) for number, row in enumerate(rows)]


def random_trials(d_vocab: int, *, n_scored: int) -> Trials:
    """Tokens of which nobody knows the posterior, the last `n_scored` positions scored."""
    tokens = torch.randint(d_vocab, (N, N_POS), generator=torch.Generator().manual_seed(0))
    nothing = torch.zeros(N, N_POS, 0, dtype=torch.float64)
    scored = (torch.arange(N_POS) >= N_POS - n_scored).expand(N, N_POS).contiguous()
    return Trials(
        tokens=tokens,
        scored=scored,
        answers=tokens.new_zeros(0),
        predictive=nothing,
        belief=nothing,
        labels=torch.full_like(tokens, -1),
        token_sets={},
        relations={},
    )


def time_ratio(rounds: int) -> None:
    """(a): all sides once to warm up, then in turn."""
    hf = middling()
    hf.set_attn_implementation("eager")
    model: Model = HFModel(hf)
    last, every = (random_trials(32_000, n_scored=k) for k in (1, N_POS))

    @torch.no_grad()
    def plain(**options: int) -> None:
        hf(input_ids=last.tokens, use_cache=False, **options)

    sides: dict[str, Callable[[], object]] = {
        "forward every": plain,
        "forward last": lambda: plain(logits_to_keep=1),
        "last": lambda: model.run([last], record=RECORDED, n_recorded=N),
        "every": lambda: model.run([every], record=RECORDED, n_recorded=N),
    }
    taken = alternating(sides, rounds)
    print(f"(a) time, {N}×{N_POS} tokens, {', '.join(site.name for site in RECORDED)} of 12 layers, {rounds} rounds")
    for side in ("every", "last"):
        watched, bare = taken[side], taken[f"forward {side}"]
        ratio, pairs = (
            statistics.median(watched) / statistics.median(bare),
            [a / b for a, b in zip(watched, bare, strict=True)],
        )
        kept = verdict(ratio, 1.4)
        print(f"    logits at {side:5} position   forward {statistics.median(bare):.3f} s   run / forward {ratio:.3f}")
        print(f"    … round by round {min(pairs):.3f} … {max(pairs):.3f}   ({kept})")
    print()


def alternating(sides: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side, round by round, after one round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds + 1):
        for name, work in sides.items():
            spent = seconds(work, time.perf_counter)
            if index:
                taken[name].append(spent)
    return taken


def memory_ratio(rounds: int) -> None:
    """(b): the two sizes in turn, on prompts and on labeled evidence."""
    idle = usage(sys.executable, "-c", IMPORT).peak_bytes
    print(
        f"(b) peak memory of diagnose(n_untrained=0), medians of {rounds} processes; imports alone {idle / GB:.2f} GB"
    )
    for task in ("prompts", "evidence"):
        peaks: dict[int, list[int]] = {N_FEW: [], N_MANY: []}
        for _ in range(rounds):
            for n, found in peaks.items():
                found.append(usage(sys.executable, __file__, "--child", task, "--n", str(n)).peak_bytes)
        few, many = (statistics.median(found) for found in peaks.values())
        sizes = f"n = {N_FEW}: {few / GB:.3f} GB   n = {N_MANY:,}: {many / GB:.3f} GB"
        above = (many - idle) / (few - idle)
        print(f"    {task:10} {sizes}   ratio {many / few:.3f} ({verdict(many / few, 1.1)}), above imports {above:.3f}")
    print()


def large(n: int) -> None:
    """(c): both text tasks, each in a process of its own."""
    print(f"(c) a Llama of 1.2 billion parameters in bfloat16, n = {n}, built, attached and diagnosed")
    for task in ("large-evidence", "large-prompts"):
        used = usage(sys.executable, __file__, "--child", task, "--n", str(n))
        peak = used.peak_bytes / GB
        print(f"    {task.removeprefix('large-'):10} {used.seconds:6.1f} s   peak {peak:.2f} GB ({verdict(peak, 16)})")


def child(task: str, n: int) -> None:
    """One diagnosis, in a process whose peak the kernel tells."""
    start = time.perf_counter()
    model = HFModel(billion() if task.startswith("large-") else small(), tokenizer=tokenizer())
    attached = time.perf_counter()
    chosen = Prompts(texts=generated(n)) if task.endswith("prompts") else LabeledEvidence()
    diagnosis = bayesgeom.diagnose(model, chosen, n=n, n_untrained=0)
    print(f"attached in {attached - start:.1f} s, diagnosed in {time.perf_counter() - attached:.1f} s", file=sys.stderr)
    print(diagnosis, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of (a); (b) takes about half as many")
    parser.add_argument("--large", action="store_true", help="(c) alone: needs about 6 GB")
    parser.add_argument("--n", type=int, default=64, help="sequences of (c)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.n)
        return
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    print(f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    if given.large:
        large(given.n)
        return
    time_ratio(given.rounds)
    memory_ratio(max(1, (given.rounds + 1) // 2))


if __name__ == "__main__":
    main()
