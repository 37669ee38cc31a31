"""The generated tables and plots of `sweeps.md`, from `results/sweeps.csv` and the reports of claims C1 to C7."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from statistics import mean
from typing import TypeVar

import numpy as np

from bayesgeom.core.text import number_text
from bayesgeom.measurements.calibration import CalibrationReport
from bayesgeom.report.diagnosis import Diagnosis
from bayesgeom.report.render import markdown
from bayesgeom.scorecards.worlds import NAMED
from bayesgeom.stats.bootstrap import seed_interval
from examples.replication.claims.plots import line, svg, text
from examples.replication.sweeps import KEYS, MIXED, TABLE, Row, read

RESULTS = TABLE.parent / "claims"
BOUNDARY = {  # reports at all 16 positions
    "integer tokens": "calibration-recurrence",
    "opaque tokens": "calibration-recurrence-opaque",
    "a loss at 1 to 5": "calibration-recurrence-first5",
    "the same, 5 % of later labels": "calibration-recurrence-first5-labels5",
}
PANELS = {"pool": "sequences of the pool", "fresh": "sequences of new chains"}
COLORS = {"transformer": "#1b6ca8", "mamba": "#c1432e", "mamba2": "#b8860b", "rwkv": "#1b7f5c", "lstm": "#6b4c9a"}
_NEAR = {"memorizing": (193, 96, 40), "generalizing": (27, 108, 168)}
_LEFT, _TOP, _CELL, _ROW, _GAP = 90.0, 34.0, 52.0, 26.0, 70.0  # pixels
Key = TypeVar("Key", str, float, tuple[str, float], tuple[str, int], tuple[int, int])
_END = -1  # the last measured step of each training
_STRONG = 0.1  # bits at which the color of a cell is full


@cache
def rows(sweep: str) -> Sequence[Row]:
    """Return the rows of a sweep."""
    return [row for row in read() if row.sweep == sweep]


def pools() -> str:
    """Return, for each pool at its last step, the KL to both observers, and the least KL to the generalizing one."""
    head = (
        "chains",
        "seeds",
        "to memorizing, pool",
        "to generalizing, pool",
        "to generalizing, new",
        "least",
        "at step",
    )
    found = list[tuple[str, ...]]()
    for pool, own in _by(rows("pools"), lambda row: row.setting).items():
        seeds = _by(own, lambda row: str(row.seed))
        last = [_last(of, at, observer) for at, observer in _SHOWN for of in seeds.values()]
        shown = [_over(last[i * len(seeds) : (i + 1) * len(seeds)]) for i in range(len(_SHOWN))]
        trained = [[row for row in _of(of, "fresh", "generalizing") if row.step] for of in seeds.values()]
        lowest = [min(of, key=lambda row: row.value) for of in trained]
        steps = sorted({row.step for row in lowest})
        least = _over([row.value for row in lowest])
        found.append((pool.removeprefix("pool "), str(len(seeds)), *shown, least, ", ".join(map(str, steps))))
    return f"{markdown(head, found)}\n\n{threshold()}"


_SHOWN = (("pool", "memorizing"), ("pool", "generalizing"), ("fresh", "generalizing"))


def threshold() -> str:
    """Return the pool size at which the trained network is as near to one observer as to the other, over seeds."""
    found = [crossing(own) for own in _by(rows("pools"), lambda row: str(row.seed)).values()]
    sizes = [size for size in found if size is not None]
    if not sizes:
        return "No seed crosses from one observer to the other between these pools."
    logs = np.log2(sizes)
    middle, low, high = (2.0 ** float(own) for own in (logs.mean(), *seed_interval(logs)))
    seeds = f" ({', '.join(map(number_text, sizes))} by seed)" if len(sizes) > 1 else ""
    interval = "" if math.isnan(low) else f", 95 % interval {number_text(low)} to {number_text(high)} over seeds"
    crossed = f"{len(sizes)} of {len(found)} seeds"
    return f"Pool size at the crossing, on its own sequences: {number_text(middle)} chains{seeds}{interval}; {crossed}."


def crossing(own: Sequence[Row]) -> float | None:
    """Return the pool size where the difference of both KLs changes sign at the last step, interpolated in log K."""
    ends = sorted(
        (
            math.log2(int(pool.removeprefix("pool "))),
            _last(of, "pool", "memorizing") - _last(of, "pool", "generalizing"),
        )
        for pool, of in _by(own, lambda row: row.setting).items()
    )
    for (x0, y0), (x1, y1) in itertools.pairwise(ends):
        if y0 < 0 <= y1:
            return float(2 ** (x0 + (x1 - x0) * y0 / (y0 - y1)))
    return None


def pools_plot() -> str:
    """Return the heat map: pools by steps, colored by the nearer observer."""
    own = rows("pools")
    sizes = sorted(_by(own, lambda row: row.setting), key=lambda name: int(name.removeprefix("pool ")))
    last = {key: max(row.step for row in of) for key, of in _by(own, lambda row: (row.setting, row.seed)).items()}
    is_last = {row: row.step == last[row.setting, row.seed] for row in own}
    steps = [*sorted({row.step for row in own if row.at and not is_last[row]}), _END]
    parts, top = list[str](), _TOP
    for at, title in PANELS.items():
        parts.append(
            text(_LEFT, top - 8, f"KL to the memorizing minus KL to the generalizing observer (bits), {title}")
        )
        for i, pool in enumerate(sizes):
            y = top + _ROW * i
            parts.append(text(_LEFT - 8, y + 17, f"K = {pool.removeprefix('pool ')}", anchor="end"))
            for j, step in enumerate(steps):
                of_cell = [row for row in own if (row.setting, row.at) == (pool, at)]
                here = [row for row in of_cell if (is_last[row] if step == _END else row.step == step)]
                values = [mean(row.value for row in here if row.quantity == f"kl_to_{name}") for name in _NEAR if here]
                if values:
                    far = values[0] - values[1]
                    color = _NEAR["memorizing" if far < 0 else "generalizing"]
                    parts += _cell(_LEFT + _CELL * j, y, f"{far:+.3f}".replace("-", "−"), color, abs(far) / _STRONG)
        top += _ROW * len(sizes)
        names = ["end" if step == _END else f"{step:,}" for step in steps]
        parts += [text(_LEFT + _CELL * (j + 0.5), top + 15, name, anchor="middle") for j, name in enumerate(names)]
        parts.append(text(_LEFT + _CELL * len(steps) / 2, top + 31, "training step", anchor="middle"))
        top += _GAP
    return svg(
        "KL to the memorizing minus that to the generalizing observer", _LEFT + _CELL * len(steps) + 12, top - 30, parts
    )


def _cell(x: float, y: float, label: str, color: tuple[int, int, int], strength: float) -> list[str]:
    """A cell of a heat map, between white and its color."""
    shade = "#" + "".join(f"{round(255 + (part - 255) * min(1.0, strength)):02x}" for part in color)
    ink = "#ffffff" if strength > 0.75 else "#222222"
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{_CELL - 1:.1f}" height="{_ROW - 1:.1f}" fill="{shade}"/>',
        text(x + _CELL / 2, y + 17, label, anchor="middle", color=ink, size=11),
    ]


def capacity() -> str:
    """Return, for each architecture, training and rate, the pairs learned and the share of stored values named."""
    sizes, found = sorted(_shares(rows("capacity"))), list[tuple[str, ...]]()
    head = ("architecture", "parameters", "training", "lr", "named", *(f"{n} pairs" for n in sizes))
    for (name, lr), own in _by(rows("capacity"), lambda row: (f"{row.architecture} {row.setting}", row.lr)).items():
        n, shares = next(row.value for row in own if row.quantity == "parameters"), _shares(own)
        learned = [p for p in sizes if shares[p] >= NAMED]
        up_to = f"{max(learned)} pairs" if learned else "none"
        cells = (number_text(shares[p]) for p in sizes)
        found.append((name.split()[0], f"{n:,.0f}", name.split()[-1], f"{lr:g}", up_to, *cells))
    return markdown(head, found)


def capacity_plot() -> str:
    """Return the chart: share of stored values named against the number of stored pairs, at each best rate."""
    swept = [row for row in rows("capacity") if row.setting == f"{KEYS} keys, muon"]
    sizes, parts = sorted(_shares(swept)), list[str]()
    left, top, width, height = 70.0, 20.0, 520.0, 300.0

    def at(n: int, share: float) -> tuple[float, float]:
        span = math.log2(sizes[-1] / sizes[0])
        return left + width * math.log2(n / sizes[0]) / span, top + height * (1 - share)

    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = at(sizes[0], share)[1]
        parts += [line(left, y, left + width, y, "#e3e3e3"), text(left - 8, y + 4, f"{100 * share:g} %", anchor="end")]
    for n in sizes:
        parts.append(text(at(n, 0)[0], top + height + 18, str(n), anchor="middle"))
    parts.append(text(left + width / 2, top + height + 38, "stored pairs", anchor="middle"))
    lines = {"one of the stored values": ("#9a9a9a", [(n, 1 / n) for n in sizes])}
    for name, own in _by(swept, lambda row: row.architecture).items():
        rates = _by(own, lambda row: (row.setting, row.lr)).values()
        shares = [[found[n] for n in sizes] for found in map(_shares, rates)]
        lines[name] = (COLORS[name], list(zip(sizes, max(shares, key=sum), strict=True)))
    for i, (name, (color, points)) in enumerate(lines.items()):
        ends = [at(n, share) for n, share in points]
        parts += [line(*a, *b, color, width=2) for a, b in itertools.pairwise(ends)]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in ends]
        parts += [line(left + width + 20, top + 10 + 22 * i, left + width + 44, top + 10 + 22 * i, color, width=3)]
        parts.append(text(left + width + 52, top + 14 + 22 * i, name))
    return svg("Share of stored values named against the number of stored pairs", 800, top + height + 56, parts)


def depth() -> str:
    """Return the KL to the exact observer for each number of layers and each length."""
    found = _depths()
    layers, lengths = (sorted(set(own)) for own in zip(*found, strict=True))
    head = ("layers", *(f"{n} symbols" for n in lengths))
    return markdown(head, [(str(d), *(_over(found.get((d, n), [])) for n in lengths)) for d in layers])


def depth_plot() -> str:
    """Return the heat map: layers by lengths, colored by KL on a logarithmic scale."""
    found = {place: mean(own) for place, own in sorted(_depths().items())}
    layers, lengths = (sorted(set(own)) for own in zip(*found, strict=True))
    least, span = min(found.values()), math.log(max(found.values()) / min(found.values()))
    parts = [text(_LEFT, _TOP - 8, "KL to the exact observer (bits)")]
    parts += [
        text(_LEFT - 8, _TOP + _ROW * i + 17, f"{d} layer{'s' * (d > 1)}", anchor="end") for i, d in enumerate(layers)
    ]
    for (d, n), value in found.items():
        x, y = _LEFT + _CELL * lengths.index(n), _TOP + _ROW * layers.index(d)
        strength = math.log(value / least) / span if span else 0.0
        parts += _cell(x, y, f"{value:.2g}", _NEAR["memorizing"], strength)
    bottom = _TOP + _ROW * len(layers)
    parts += [text(_LEFT + _CELL * (j + 0.5), bottom + 15, str(n), anchor="middle") for j, n in enumerate(lengths)]
    parts.append(text(_LEFT + _CELL * len(lengths) / 2, bottom + 31, "symbols in a sequence", anchor="middle"))
    return svg("KL by layers and length", max(360.0, _LEFT + _CELL * len(lengths) + 12), bottom + 42, parts)


def _depths() -> dict[tuple[int, int], list[float]]:
    """KL of every seed, by layers and length, from settings such as "depth 2 length 8"."""
    own = [row for row in rows("depth") if row.quantity == "kl_bits"]
    found = _by(own, lambda row: (int(row.setting.split()[1]), int(row.setting.split()[-1])))
    return {place: [row.value for row in of] for place, of in found.items()}


def mixed() -> str:
    """Return the KL on each of two processes in one context, next to that of a network trained on it alone."""
    found = list[tuple[str, ...]]()
    own = [row for row in rows("mixed") if row.quantity == "kl_bits"]
    for name, process in zip(("first", "second"), MIXED, strict=True):
        both = [row.value for row in own if (row.setting, row.at) == ("both", name)]
        alone = [row.value for row in own if row.setting == name]
        found.append((f"`{process}`", str(len(both)), _over(both), _over(alone)))
    return markdown(("process", "seeds", "KL in one context with the other", "KL alone"), found)


def boundary() -> str:
    """Return the KL of each transformer on the modular recurrence, by position."""
    found = list[tuple[str, ...]]()
    for name, folder in BOUNDARY.items():
        if (RESULTS / folder).is_dir():
            report = Diagnosis.load(RESULTS / folder)[CalibrationReport]
            parts = (report.kl_bits_by_position, report.entropy_mae_bits_by_position)
            for quantity, own in zip(("KL", "entropy error"), parts, strict=True):
                found.append((name, quantity, *map(number_text, np.ravel(own.value).tolist())))
    places = len(found[0]) - 2 if found else 0
    return markdown(("trained on", "bits", *(str(1 + place) for place in range(places))), found)


def _part(name: str, table: Callable[[], str], title: str = "") -> Callable[[], str]:
    """The part of a sweep: its table and, with a title, its plot, once it has rows."""
    plot = f"\n\n![{title}](plots/{name}.svg)" if title else ""
    return lambda: f"{table()}{plot}" if rows(name) else "Not trained yet."


PARTS: Mapping[str, Callable[[], str]] = {
    "pools": _part("pools", pools, "Which observer is nearer, by pool and step"),
    "capacity": _part("capacity", capacity, "Share of stored values named against stored pairs"),
    "depth": _part("depth", depth, "KL by layers and length"),
    "mixed": _part("mixed", mixed),
    "boundary": boundary,
}
DRAWN: Mapping[str, Callable[[], str]] = {"pools": pools_plot, "capacity": capacity_plot, "depth": depth_plot}


def plots() -> dict[str, str]:
    """Return the plot of every sweep that has rows."""
    return {name: draw() for name, draw in DRAWN.items() if rows(name)}


def _shares(own: Iterable[Row]) -> dict[int, float]:
    """Share of stored values named at each number of pairs, at the end of a training."""
    measured = (row for row in own if row.quantity == "share_named" and "trained" not in row.at)
    return {int(row.at.split()[0]): row.value for row in measured}


def _of(own: Iterable[Row], at: str, observer: str) -> list[Row]:
    return [row for row in own if row.at == at and row.quantity == f"kl_to_{observer}"]


def _last(own: Iterable[Row], at: str, observer: str) -> float:
    return max(_of(own, at, observer), key=lambda row: row.step).value


def _over(values: Sequence[float]) -> str:
    """The mean over seeds with their range; a dash for a cell that was not trained."""
    if not values:
        return "–"
    least, most = number_text(min(values)), number_text(max(values))
    return number_text(mean(values)) + (f" ({least} to {most})" if len(values) > 1 else "")


def _by(own: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    groups: dict[Key, list[Row]] = {}
    for row in own:
        groups.setdefault(key(row), []).append(row)
    return groups
