"""Keep the card and the losses of finished trainings whose weights do not ship, and print rows for docs/comparison.md.

    python docs/readings/loss_curves.py recall-64-lstm-quarter-lr1 …

From `runs/train/NAME`, the card goes to `docs/readings/rates/NAME.md`, and one line for each logged step of every stage
to `docs/readings/rates/NAME.jsonl`: the stage's recipe, the step, the loss in nats and the held-out KL in bits.
"""

import json
import shutil
import sys
from pathlib import Path

from bayesgeom.core.text import number_text
from bayesgeom.models.checkpoint_files import CARD, FINISHED
from bayesgeom.training.loop import BEFORE, RECIPE
from bayesgeom.training.state import LOG, read_log

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "docs" / "readings" / "rates"


def losses(folder: Path) -> list[dict[str, object]]:
    """Return the logged steps of all stages of a run, the first stage first."""
    before = losses(folder / BEFORE) if (folder / BEFORE).is_dir() else []
    stage = json.loads((folder / RECIPE).read_text(encoding="utf-8"))["name"]
    kept = ("step", "loss_nats", "kl_bits")
    return [*before, *({"stage": stage} | {key: line[key] for key in kept} for line in read_log(folder / LOG))]


def keep(name: str) -> None:
    """Copy the card and the losses of a run, and print one line per stage: KL by step, in bits."""
    run = ROOT / "runs" / "train" / name
    lines = losses(run)
    shutil.copy2(run / FINISHED / CARD, KEPT / f"{name}.md")
    (KEPT / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    for stage in dict.fromkeys(str(line["stage"]) for line in lines):
        own = [line for line in lines if line["stage"] == stage]
        print(f"{stage}:", ", ".join(f"{line['step']}: {number_text(float(str(line['kl_bits'])))}" for line in own))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        keep(name)
