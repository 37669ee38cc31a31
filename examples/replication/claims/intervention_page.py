"""The generated parts of `interventions.md`, from the numbers of every intervention in `results/interventions.csv`.

A row of the file is one layer of one intervention, with the command that made it.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bayesgeom.core.text import number_text
from bayesgeom.report.render import markdown

if TYPE_CHECKING:
    import pandas as pd

TABLE = Path(__file__).parents[1] / "results" / "interventions.csv"
CAUSAL, UNDECIDED, NOT_IDENTIFIED, NOT_MEASURED = "causal", "undecided", "not identified", "not measured"
VERDICTS = (CAUSAL, "by construction", "inert", UNDECIDED, NOT_IDENTIFIED)  # the strongest first
FITS, FITTED = ("LEACE", "covariance", "trained swap"), ("entropy", "belief")
CAN_HOLD = ("LEACE", "covariance")  # fits that can hold other quantities fixed
SUBSPACES = {"entropy": "(entropy", "belief": "(belief", "key frame": "frame", "J-space": "Jacobian"}
_GIVEN, _BOTH = re.compile(r", given (.*)\)$"), "position and answer"


@cache
def interventions() -> "pd.DataFrame":
    """Return the table: one row for each layer of each intervention."""
    import pandas as pd

    return pd.read_csv(TABLE)


def measured() -> str:
    """Return which subspaces were measured in which checkpoint, and how."""
    table = interventions()
    how = table.site.map({"carried": "carried"}).fillna("stream")
    how = how.mask(table.positions.str.contains("later") & (how == "stream"), "later")
    how = how.mask(table.kind == "erase onwards", "onwards")
    rows = []
    for name, own in table.groupby("checkpoint", sort=False):
        chosen = [how[own.index[own.subspace.str.contains(label, regex=False)]] for label in SUBSPACES.values()]
        rows.append((str(name), *(", ".join(found.unique()) or "–" for found in chosen)))
    return markdown(("checkpoint", *SUBSPACES), rows)


def fits() -> str:
    """Return the verdict of a swap along each fit in the residual stream of transformers, over all positions."""
    table = interventions()
    is_stream = (table.site == "resid_pre") & ~table.positions.str.contains("later")
    swaps = table[(table.is_transformer == 1) & (table.kind == "swap") & is_stream]
    rows = [
        (f"`{name}`", *(_fit(own, kind, quantity) for quantity in FITTED for kind in FITS))
        for name, own in swaps.groupby("checkpoint", sort=False)
    ]
    return markdown(("checkpoint", *(f"{quantity}: {kind}" for quantity in FITTED for kind in FITS)), rows)


def _fit(swaps: "pd.DataFrame", kind: str, quantity: str) -> str:
    """The strongest verdict of one fit, with its layers."""
    own = swaps[swaps.subspace.str.match(rf"{kind} \({quantity}(\)|, rank)")]
    if own.empty:
        of_quantity = swaps[swaps.subspace.str.contains(f"({quantity}", regex=False)]
        return NOT_IDENTIFIED if (of_quantity.verdict == NOT_IDENTIFIED).any() else NOT_MEASURED
    own = own[own.subspace == own.subspace.iloc[0]]
    strongest = min(own.verdict, key=VERDICTS.index)
    at = own.layer[own.verdict == strongest]
    return strongest if strongest in (UNDECIDED, NOT_IDENTIFIED) else f"{strongest} in {_layers(at)}"


def causes() -> str:
    """Return every layer in which entropy or belief is causal, and whether it survives with both held fixed."""
    table = interventions()
    rows = []
    for (name, site, positions), place in table[table.kind != "erase onwards"].groupby(
        ["checkpoint", "site", "positions"], sort=False
    ):
        for (_, subspace), own in place.groupby(["command", "subspace"], sort=False):
            causal = own.layer[own.verdict == CAUSAL].tolist()
            if causal and subspace.startswith(FITS) and not _GIVEN.search(subspace):
                cells = (f"`{name}`", subspace, site, positions, _layers(causal), _survives(place, subspace, causal))
                rows.append((own.index[0], cells))
    head = ("checkpoint", "subspace", "site", "positions", "causal in", "survives given position and answer")
    return markdown(head, [cells for _, cells in sorted(rows)])


def _survives(place: "pd.DataFrame", subspace: str, causal: list[int]) -> str:
    """The verdicts of the same swap in these layers, for each choice of what is held fixed."""
    if not subspace.startswith(CAN_HOLD):
        return "no such fit"
    held = {}
    for other, own in place.groupby("subspace", sort=False):
        if (given := _GIVEN.search(other)) and _GIVEN.sub(")", other) == subspace:
            held[given[1]] = _verdicts(own.drop_duplicates("layer", keep="last"), causal)
    both = held.pop(_BOTH, "")
    alone = [f"given {names}{'' if ' and ' in names else ' alone'}: {text}" for names, text in held.items()]
    return "; ".join(filter(None, (both, *alone))) or NOT_MEASURED


def _verdicts(own: "pd.DataFrame", layers: list[int]) -> str:
    """The verdicts in some layers; "yes" stands for "causal". Undecided ones have the R² that is left."""
    found: dict[str, list[int]] = {}
    rows = own.set_index("layer")
    for at in layers:
        verdict = rows.verdict.get(at, NOT_MEASURED)
        found.setdefault("yes" if verdict == CAUSAL else verdict, []).append(at)
    texts = {verdict: f"{verdict} in {_layers(at)}" for verdict, at in found.items()}
    if UNDECIDED in found:
        left = " ".join(number_text(float(rows.r2_after[at])) for at in found[UNDECIDED])
        texts[UNDECIDED] += f" (R² left {left})"
    return "; ".join(texts.values())


def _layers(layers: Iterable[int]) -> str:
    at: Iterator[str] = map(str, layers)
    listed = ", ".join(at)
    return f"layer{'s' * (', ' in listed)} {listed}"


PARTS: dict[str, Callable[[], str]] = {"measured": measured, "fits": fits, "causes": causes}
