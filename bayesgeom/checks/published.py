"""Numbers that the papers report, for the quantities that reports measure; `published.toml` declares each once."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, final

FILE = "published.toml"
NOT_COMPARABLE = ("not published for", "published for")  # how a cell begins that holds a reason instead of a number
_SIZES = {"n_layers": "{} layers", "n_heads": "{} heads", "d_model": "width {:,}", "n_parameters": "{:,} parameters"}


@final
@dataclass(frozen=True, kw_only=True)
class PublishedValue:
    """A published number: the report, metric and label that it belongs to, its source, and the source's task and model.

    Empty `tasks` and `architectures` stand for any. A parameter of a task is one value or a list of alternatives, where
    the empty list stands for None. `claim` is the id of the claim that names the same numbers.
    """

    report: str
    metric: str
    value: str
    source: str
    model: str
    label: str = ""
    tasks: tuple[Mapping[str, Any], ...] = ()
    architectures: tuple[str, ...] = ()
    claim: str = ""

    @property
    def words(self) -> str:
        """Return the number with architecture and task, as for the reason why it is not comparable."""
        return f"{self.value} ({', '.join([*self.architectures, *map(_task_text, self.tasks)])})"

    @property
    def note(self) -> str:
        """Return source, task and model as a sentence."""
        on = f" on {' and '.join(str(task['name']) for task in self.tasks)}" if self.tasks else ""
        return f"{self.source}{on}: {self.model}."


@cache
def published_values() -> tuple[PublishedValue, ...]:
    """Return all published numbers, in the order of the file."""
    known = tomllib.loads(resources.files("bayesgeom.checks").joinpath(FILE).read_text(encoding="utf-8"))
    entries: list[dict[str, Any]] = known["value"]
    tasks = (tuple(known["task"][name] for name in entry.get("tasks", ())) for entry in entries)
    return tuple(
        PublishedValue(**(entry | {"tasks": own, "architectures": tuple(entry.get("architectures", ()))}))
        for entry, own in zip(entries, tasks, strict=True)
    )


def published_cell(report: str, metric: str, label: str, provenance: Mapping[str, Any]) -> tuple[str, str]:
    """Return what was published about one number of a report, and a note on source, task and model.

    Args:
        report: Name of the report.
        metric: The number's field.
        label: The number's label.
        provenance: Provenance of the report, with its task and model.

    Returns:
        The published number, or why none is comparable: "not published for mess3", "not published for lstm on this
        task", or the parameters of the task that differ.
        Both texts are empty if nothing was published about the quantity.

    Example:
        >>> task, model = {"name": "bijection", "n_values": 5}, {"architecture": "lstm"}
        >>> published_cell("calibration", "entropy_mae_bits", "", {"task": task, "model": model})[0]
        'published for n_values=20; here n_values=5'
    """
    found = [own for own in published_values() if (own.report, own.metric) == (report, metric) and own.label in label]
    task, model = provenance.get("task") or {}, provenance.get("model") or {}
    if not task.get("name") and any(own.tasks for own in found):
        return "", ""
    kind = "transformer" if model.get("n_heads") else model.get("architecture")
    of_task = [own for own in found if _is_among(own.tasks, {"name": task.get("name")})]
    of_kind = [own for own in of_task if not own.architectures or kind in own.architectures]
    comparable = [own for own in of_kind if _is_among(own.tasks, task)]
    others = (
        (f"{NOT_COMPARABLE[0]} {task.get('name')}", found, of_task),
        (f"{NOT_COMPARABLE[0]} {kind or 'this architecture'} on this task", of_task, of_kind),
        (_differences([own for entry in of_kind for own in entry.tasks], task), of_kind, comparable),
    )
    for reason, before, alike in others:
        if before and not alike:
            return reason, f"Published: {'; '.join(own.words for own in before)}."
    here = ", ".join(text.format(model[name]) for name, text in _SIZES.items() if model.get(name))
    notes = [own.note for own in comparable]
    return "; ".join(own.value for own in comparable), " ".join([*notes, f"Here: {here}."] if notes and here else notes)


def _is_among(tasks: tuple[Mapping[str, Any], ...], known: Mapping[str, Any]) -> bool:
    """Return whether no stated parameter of one of the tasks differs from what is known; also if none is stated."""
    return not tasks or any(
        all(_allows(task[name], known[name]) for name in task.keys() & known.keys()) for task in tasks
    )


def _differences(tasks: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> str:
    """Return the parameters in which the most similar published tasks of the same name differ from the known one."""
    same = [task for task in tasks if task["name"] == known.get("name")]
    differing = [[name for name in task if name in known and not _allows(task[name], known[name])] for task in same]
    names = min(differing, key=len, default=[])
    stated: dict[str, list[object]] = {name: [] for name in names}
    for task in (own for own, others in zip(same, differing, strict=True) if others == names):
        for name in names:
            values = (task[name] or [None]) if isinstance(task[name], list) else [task[name]]
            stated[name] += [value for value in values if value not in stated[name]]
    published = ", ".join(f"{name}={_parameter_text(values)}" for name, values in stated.items())
    return f"{NOT_COMPARABLE[1]} {published}; here {', '.join(f'{name}={_own_text(known[name])}' for name in names)}"


def _own_text(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


def _allows(stated: object, own: object) -> bool:
    """Return whether a task's own parameter is the stated one or among the stated alternatives; [] stands for None."""
    value = list(own) if isinstance(own, tuple) else own
    if not isinstance(stated, list):
        return value == stated
    return value in stated if stated else value is None


def _task_text(task: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{name}={_parameter_text(own)}" for name, own in task.items() if name != "name")
    return f"{task['name']} with {sizes}" if sizes else str(task["name"])


def _parameter_text(stated: object) -> str:
    return " or ".join(map(str, stated or [None])) if isinstance(stated, list) else str(stated)
