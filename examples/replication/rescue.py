"""Rescue beyond the loss horizon: put a donor's state at a trained position into a later position (claim C5).

Both sequences follow the same rule. At the last position with a loss the network has inferred it from the donor; from
the recipient, some positions later, it has not. A *matched* donor shows the recipient's number there, so its state
already holds the recipient's answer. A *crossed* donor shows another number: with its state, the recipient's own answer
follows only if the state holds the rule and the recipient's number is read elsewhere. *whole* replaces the residual
stream after a block; *update* replaces what blocks have added to the embedding, so that the recipient's number stays.
With a matched donor both are the same, because both sequences show the same number.
"""

import math
from pathlib import Path
from typing import Annotated

import torch
import tyro
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformer_lens.hook_points import HookPoint

import bayesgeom
from bayesgeom.core import InvalidArgument
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.tasks import ModularRecurrence
from examples.replication.sweeps import TABLE, Row, append, numbered

KINDS = {"matched": ("whole",), "crossed": ("whole", "update")}
LATER = 6  # positions from the donor's place to the recipient's, as published


def rescue(
    checkpoint: Annotated[str, tyro.conf.Positional],
    /,
    *,
    horizon: int = 5,
    n: int = 1_000,
    seed: int = 0,
    table: Path = TABLE,
) -> None:
    """Transplant states from the last position with a loss, and append the shares of right answers to the table.

    Args:
        checkpoint: A transformer that was trained with a loss on the first positions only.
        horizon: Number of these positions.
        n: Number of pairs of sequences.
        seed: Seed of the sequences.
        table: The table of the sweeps.
    """
    model = bayesgeom.load(checkpoint)
    module, task = model.module, model.task
    if not isinstance(module, Transformer) or not isinstance(task, ModularRecurrence) or task.opaque:
        raise InvalidArgument(f"{checkpoint} is no transformer of this package on a recurrence of integer tokens.")
    place = horizon - 1  # of the donor
    recipients, *donors = sequences(task, place, n, seed)
    own = recipients[:, place + LATER + 1]
    rows = [_row("none", 0, "share_own", _answers(module, recipients, place + LATER) == own)]
    for (name, kinds), shown in zip(KINDS.items(), donors, strict=True):
        _, cache = module.run_with_cache(shown)
        for block, kind in ((block, kind) for block in range(module.config.n_layers) for kind in kinds):
            state = cache[f"blocks.{block}.hook_resid_post"][:, place]
            if kind == "update":  # the recipient's own embedding stays
                state = state - cache["hook_embed"][:, place] + module.embed(recipients[:, place + LATER])
            answers = _answers(module, recipients, place + LATER, block, state)
            rows.append(_row(f"{kind}, {name}", block + 1, "share_own", answers == own))
            rows.append(_row(f"{kind}, {name}", block + 1, "share_of_donor", answers == shown[:, place + 1]))
    append(table, rows)
    for row in rows:
        print(f"{row.at} {row.setting}: {row.quantity} {row.value:.3f} [{row.lower:.3f}, {row.upper:.3f}]")


def sequences(
    task: ModularRecurrence, place: int, n: int, seed: int
) -> tuple[Int64[Tensor, "pair number"], Int64[Tensor, "pair number"], Int64[Tensor, "pair number"]]:
    """Return recipients, matched and crossed donors, which follow the same rules, with the numbers of each.

    No factor is 0 or 1, and no sequence rests at one number. At `place`, a matched donor shows what its recipient shows
    `LATER` positions later, and a crossed donor another number.
    """
    p, generator = task.modulus, torch.Generator().manual_seed(seed)
    factor, offset, start, other = torch.randint(p, (4, 16 * n), generator=generator)

    def after(number: Int64[Tensor, " pair"], steps: int) -> Int64[Tensor, "pair number"]:
        numbers = [number]
        for _ in range(steps):
            numbers.append((factor * numbers[-1] + offset) % p)
        return torch.stack(numbers, dim=1)

    recipients = after(start, task.length)
    matched, crossed = (after(own, place + 1) for own in (recipients[:, LATER], other))
    moves = [own[:, 0] != own[:, 1] for own in (recipients, crossed)]
    is_used = (factor > 1) & moves[0] & moves[1] & (matched[:, 0] != crossed[:, 0])
    return recipients[is_used][:n], matched[is_used][:n], crossed[is_used][:n]


@torch.no_grad()
def _answers(
    module: Transformer,
    tokens: Int64[Tensor, "pair number"],
    place: int,
    block: int = 0,
    state: Float[Tensor, "pair d"] | None = None,
) -> Int64[Tensor, " pair"]:
    """Return the most probable number after `place`, with a state put in there after a block."""

    def put(resid: Float[Tensor, "pair pos d"], **_: HookPoint) -> Float[Tensor, "pair pos d"]:
        return resid if state is None else torch.cat([resid[:, :place], state[:, None], resid[:, place + 1 :]], dim=1)

    site = f"blocks.{block}.hook_resid_post"
    logits: Tensor = module.run_with_hooks(tokens[:, : place + 1], fwd_hooks=[(site, put)])
    return logits[:, -1].argmax(dim=1)


def _row(at: str, block: int, quantity: str, is_right: Bool[Tensor, " pair"]) -> Row:
    named = Row(sweep="rescue", architecture="transformer", setting=f"block {block}", seed=0, lr=math.nan)
    return numbered(named, at, quantity, is_right.double())
