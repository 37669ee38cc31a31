"""A campaign of faults: damaged files, odd configs, invalid calls and arguments. Prints what came of every case.

    python -m benchmarks.faults                       # everything: more than 5,000 cases, some minutes on one core
    python -m benchmarks.faults --groups calls cli    # some groups
    python -m benchmarks.faults --share 0.02          # a seeded sample of each group
    python -m benchmarks.faults --wrong runs/wrong.txt  # lists every wrong case with its error

Outcomes:

- refused: an error of bayesgeom, in one sentence on one line;
- survived: accepted, rightly: the numbers are those of the undamaged file, or the signature allows the value;
- wrong: a foreign exception, more than one line, a hang, or accepted although it is damaged or of another type.

All cases run in one process, each with a time limit. Every group has a seed of its own, so that a share of a group is
the same sample on every machine. Needs the extra `test`: beartype decides, independently of the package's own checks,
whether a value fits an annotation.
"""

import argparse
import contextlib
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from bayesgeom.core.errors import BayesGeomError

_REPORT_SECONDS = 30.0  # between two lines of progress
SECONDS = 60.0  # for one case; sound ones take less than a second
_MEMORY = 24 * 2**30  # of addresses: a case that asks for more ends in an error instead of ending the machine


class Hang(BaseException):
    """A case took longer than its limit. No `Exception`, so that nothing on the way takes it for a fault."""


class Accepted(Exception):
    """What had to be refused was not."""


@dataclass(frozen=True)
class Case:
    """One fault: a label, and what to do. `act` raises `Accepted` where the damage went through."""

    label: str
    act: Callable[[], object]


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    group: str
    label: str
    kind: str
    detail: str = ""


def judged(group: str, case: Case, seconds: float = SECONDS) -> Outcome:
    """Run a case within its time and say what came of it."""
    try:
        with limited(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.act()
    except BayesGeomError as error:
        lines = str(error).count("\n") + 1
        return Outcome(group, case.label, *(("refused", "") if lines == 1 else ("wrong", f"{lines} lines: {error!r}")))
    except Accepted as error:
        return Outcome(group, case.label, "wrong", f"accepted: {error}")
    except Hang:
        return Outcome(group, case.label, "wrong", f"hang: more than {seconds:g} s")
    except Exception as error:  # noqa: BLE001  (whatever comes is what is counted)
        last = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in last if "bayesgeom" in frame.filename]
        place = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"
        text = str(error).splitlines()
        return Outcome(group, case.label, "wrong", f"{type(error).__name__} in {place}: {(text or [''])[0]:.120}")
    return Outcome(group, case.label, "survived")


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Hang` where the body takes longer."""

    def ring(_: int, __: FrameType | None) -> None:
        raise Hang

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)  # again, where the first was swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def groups() -> dict[str, Callable[[Path], Sequence[Case]]]:
    """The cases of every group, made in a folder that it may write."""
    from benchmarks import fault_calls, fault_files, fault_models, fault_outputs, fault_states

    return {
        "checkpoint bytes": fault_files.checkpoint_bytes,
        "checkpoint structure": fault_files.checkpoint_structure,
        "report bytes": fault_files.report_bytes,
        "report structure": fault_files.report_structure,
        "training bytes": fault_files.training_bytes,
        "calls": fault_calls.calls,
        "cli": fault_calls.command_line,
        "huggingface": fault_models.huggingface,
        "outputs": fault_outputs.outputs,
        "streams": fault_outputs.streams,
        "kills": fault_outputs.kills,
        "writers at once": fault_outputs.at_once,
        "modes": fault_states.modes,
        "changed weights": fault_states.changed_weights,
        "tokenizers": fault_states.tokenizers,
    }


def campaign(names: Sequence[str], folder: Path, *, share: float = 1.0, shown: Any = None) -> list[Outcome]:
    """Run a share of every named group and return what came of each case."""
    found = list[Outcome]()
    for name in names:
        (folder / name).mkdir()
        cases = list(groups()[name](folder / name))
        if share < 1:
            draw = random.Random(f"sample of {name}")
            cases = draw.sample(cases, max(1, round(share * len(cases))))
        begun = reported = time.monotonic()
        for place, case in enumerate(cases):
            if time.monotonic() - reported > _REPORT_SECONDS:
                reported = time.monotonic()
                print(f"{name}: {place} of {len(cases)} cases in {reported - begun:.0f} s", file=sys.stderr, flush=True)
            found.append(judged(name, case))
            if shown is not None and found[-1].kind == "wrong":
                print(f"{name} | {case.label} | {found[-1].detail}", file=shown, flush=True)
        print(f"{name}: {len(cases)} cases in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return found


def table(found: Sequence[Outcome]) -> str:
    """The table of the campaign."""
    kinds = ("refused", "survived", "wrong")
    counts = Counter((own.group, own.kind) for own in found)
    names = list(dict.fromkeys(own.group for own in found))
    rows = [(name, *(counts[name, kind] for kind in kinds)) for name in names]
    rows.append(("all", *(sum(row[1 + place] for row in rows) for place in range(len(kinds)))))
    head = f"{'group':24}{'tried':>8}" + "".join(f"{kind:>10}" for kind in kinds)
    return "\n".join(
        [head, *(f"{name:24}{sum(values):8}" + "".join(f"{own:10}" for own in values) for name, *values in rows)]
    )


def main() -> int:
    from benchmarks.fault_calls import warm_up

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="*", default=list(groups()), choices=list(groups()))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--wrong", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        shown = None if asked.wrong is None else stack.enter_context(asked.wrong.open("w", encoding="utf-8"))
        warmed = Path(folder) / "warm-up"
        warmed.mkdir()
        warm_up(warmed)
        found = campaign(asked.groups, Path(folder), share=asked.share, shown=shown)
    print(table(found))
    for detail, count in Counter(own.detail for own in found if own.kind == "wrong").most_common(20):
        print(f"{count:6}  {detail}")
    return int(any(own.kind == "wrong" for own in found))


if __name__ == "__main__":
    from benchmarks.faults import main as run  # so that the cases see the same classes

    sys.exit(run())
