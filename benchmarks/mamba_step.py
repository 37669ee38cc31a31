"""A training step of our Mamba and of Hugging Face's slow path, same sizes, same weights, same batch; as a ratio.

A step is forward, cross-entropy, backward and AdamW. Without compiled kernels transformers runs Mamba through autograd,
one slice of the sequence at a time; ours runs the same recurrence with a backward pass by hand. Sides alternate within
a process; before any is timed, their losses and gradients are compared. Fails below the limit.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from bayesgeom.models.native.mamba import EPS, Mamba, MambaConfig

LIMIT = 10.0  # times faster than the slow path
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Slow(nn.Module):
    """Hugging Face's Mamba of these sizes with these weights."""

    def __init__(self, ours: Mamba) -> None:
        super().__init__()
        self.whole = huggingface_twin(ours)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.whole(input_ids=tokens).logits
        return logits


def huggingface_twin(ours: Mamba) -> nn.Module:
    """Return Hugging Face's Mamba of these sizes with these weights; tests compare with it, too."""
    import transformers

    config = ours.config
    twin: nn.Module = transformers.MambaForCausalLM(
        transformers.MambaConfig(
            vocab_size=config.d_vocab,
            hidden_size=config.d_model,
            state_size=config.d_state,
            num_hidden_layers=config.n_layers,
            expand=config.expand,
            conv_kernel=config.d_conv,
            time_step_rank=config.rank,
            layer_norm_epsilon=EPS,
            residual_in_fp32=False,
            use_cache=False,
            tie_word_embeddings=True,
        )
    )
    weights = {their_name(name): tensor for name, tensor in ours.state_dict().items()}
    twin.load_state_dict(weights | {"lm_head.weight": weights["backbone.embeddings.weight"]})
    return twin


def their_name(name: str) -> str:
    """Return the name of a parameter in Hugging Face's Mamba."""
    for ours, theirs in (("embed.", "embeddings."), ("blocks.", "layers."), ("ln_final.", "norm_f.")):
        name = name.replace(ours, theirs)
    return f"backbone.{name}"


def loss_of(module: nn.Module, tokens: Tensor, products: str) -> Tensor:
    """Cross-entropy of each next token."""
    with torch.autocast("cpu", torch.bfloat16, enabled=products == "bfloat16"):
        logits = module(tokens)
    return nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), tokens[:, 1:].flatten())


def step(module: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, products: str, clock: str) -> float:
    """Seconds of one optimizer step."""
    start = CLOCKS[clock]()
    loss_of(module, tokens, products).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return CLOCKS[clock]() - start


def disagreement(ours: Mamba, theirs: Slow, tokens: Tensor) -> float:
    """Largest difference of a gradient, as a share of that gradient's largest entry, and of the loss."""
    losses = [loss_of(module, tokens, "float32") for module in (ours, theirs)]
    for loss in losses:
        loss.backward()
    largest = abs(float((losses[0] - losses[1]).detach()))
    own = {their_name(name): parameter for name, parameter in ours.named_parameters()}
    for name, parameter in theirs.whole.named_parameters():
        grad = own[name].grad
        assert grad is not None and parameter.grad is not None
        largest = max(largest, float((grad - parameter.grad).abs().max() / parameter.grad.abs().max()))
        grad.zero_()
        parameter.grad.zero_()
    return largest


def main() -> None:
    """Compare, print, and fail below the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--positions", type=int, default=37)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = MambaConfig(d_vocab=40, n_ctx=args.positions, n_layers=args.layers, d_model=args.width)
    ours = config.build(seed=0)
    theirs = Slow(ours)
    tokens = torch.randint(40, (args.batch_size, args.positions), generator=torch.Generator().manual_seed(0))
    print(f"loss and gradients disagree by at most {disagreement(ours, theirs, tokens[:8]):.1e}")
    sides = {
        (name, products): (module, torch.optim.AdamW(module.parameters(), lr=1e-4), products)
        for products in ("float32", "bfloat16")
        for name, module in (("ours", ours), ("slow path", theirs))
    }
    taken: dict[tuple[str, str], list[float]] = {side: [] for side in sides}
    for index in range(args.rounds + 1):  # the first round warms up
        for side, (module, optimizer, products) in sides.items():
            seconds = step(module, optimizer, tokens, products, args.clock)
            if index:
                taken[side].append(seconds)
    medians = {side: statistics.median(values) for side, values in taken.items()}
    for side, seconds in medians.items():
        print(f"{', '.join(side):24} {1e3 * seconds:9.0f} ms a step")
    ratios = [medians["slow path", products] / medians["ours", products] for products in ("float32", "bfloat16")]
    print(f"faster by {ratios[0]:.1f} in float32, {ratios[1]:.1f} in bfloat16 (limit {LIMIT:g})")
    if min(ratios) < LIMIT:
        sys.exit(f"below the limit of {LIMIT:g}")


if __name__ == "__main__":
    main()
