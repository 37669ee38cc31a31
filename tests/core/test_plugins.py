"""Discovery: what a folder and entry points offer, against packages planted on the path."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bayesgeom.core.errors import InvalidArgument, UnknownName
from bayesgeom.core.plugins import discover, find_plugin
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.bijection import Bijection
from bayesgeom.tasks.hmm import HMM

BASE = """
from abc import ABC, abstractmethod

class Base(ABC):
    @abstractmethod
    def act(self): ...
"""
PLUGIN = """
from {package}.base import Base

class {kind}(Base):
    name = {name!r}
    def act(self): ...
"""
Plant = Callable[[dict[str, str]], type]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Writes a package `planted` of these modules, besides its `base`, and returns `planted.base.Base`."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] in ("planted", "guest")]:
        monkeypatch.delitem(sys.modules, name)

    def written(modules: dict[str, str]) -> type:
        (tmp_path / "planted").mkdir()
        for name, text in {"__init__": "", "base": BASE, **modules}.items():
            (tmp_path / "planted" / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        base: type = importlib.import_module("planted.base").Base
        return base

    return written


def plugin(kind: str, name: str) -> str:
    return PLUGIN.format(package="planted", kind=kind, name=name)


def offer(path: Path, group: str, target: str) -> None:
    """An installed distribution with one entry point."""
    info = path / "guest-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nguest = {target}\n")


def test_the_package_discovers_its_own_tasks() -> None:
    tasks = discover("bayesgeom.tasks", WindTunnel)
    assert tasks["bijection"] is Bijection and tasks["hmm"] is HMM
    assert list(tasks) == sorted(tasks)
    assert all(task.name == name for name, task in tasks.items())
    assert all(tasks[name]().sample(2, seed=0).tokens.shape[0] == 2 for name in ("bijection", "hmm"))


def test_saving_a_file_is_all_it_takes(plant: Plant) -> None:
    base = plant({"b": plugin("Second", "two"), "a": plugin("First", "one")})
    assert {name: kind.__name__ for name, kind in discover("planted", base).items()} == {
        "one": "First",
        "two": "Second",
    }
    assert find_plugin("planted", base, "two").__name__ == "Second"


def test_the_base_abstract_classes_and_mere_imports_are_no_plugins(plant: Plant) -> None:
    still_abstract = "from planted.base import Base\nclass Half(Base):\n    name = 'half'\n"
    imports = "from planted.a import First\nnumber = 3\nclass Other:\n    name = 'other'\n"
    base = plant({"a": plugin("First", "one"), "b": still_abstract, "c": imports})
    assert list(discover("planted", base)) == ["one"]


def test_two_classes_of_one_name_are_refused(plant: Plant) -> None:
    base = plant({"a": plugin("First", "same"), "b": plugin("Second", "same")})
    with pytest.raises(InvalidArgument, match=r"two Bases are named 'same': planted\.a and planted\.b\. Rename one"):
        discover("planted", base)


def test_unknown_names_list_those_that_exist(plant: Plant) -> None:
    base = plant({"b": plugin("Second", "two"), "a": plugin("First", "one")})
    with pytest.raises(UnknownName, match=r"there is no Base named 'three'\. There are: one, two\."):
        find_plugin("planted", base, "three")


def test_an_empty_folder_says_so(plant: Plant) -> None:
    with pytest.raises(UnknownName, match=r"there is no Base named 'three'\. There are: \(none\)\."):
        find_plugin("planted", plant({}), "three")


def test_other_packages_offer_theirs_by_entry_point(plant: Plant, tmp_path: Path) -> None:
    base = plant({"a": plugin("First", "one")})
    (tmp_path / "guest.py").write_text(plugin("Guest", "guest"))
    offer(tmp_path, "planted", "guest:Guest")
    assert find_plugin("planted", base, "guest").__module__ == "guest"


def test_an_entry_point_that_takes_a_name_in_use_is_left_out(plant: Plant, tmp_path: Path) -> None:
    base = plant({"a": plugin("First", "one")})
    (tmp_path / "guest.py").write_text(plugin("Guest", "one"))
    offer(tmp_path, "planted", "guest:Guest")
    with pytest.warns(UserWarning, match=r"'guest' .*two Bases are named 'one': planted\.a and guest\. Rename one"):
        assert discover("planted", base)["one"].__module__ == "planted.a"


def test_an_entry_point_to_a_known_class_is_no_duplicate(plant: Plant, tmp_path: Path) -> None:
    base = plant({"a": plugin("First", "one")})
    offer(tmp_path, "planted", "planted.a:First")
    assert list(discover("planted", base)) == ["one"]


def test_a_plugin_without_a_name_is_refused(plant: Plant) -> None:
    base = plant({"a": plugin("First", "one").replace("name = ", "label = ")})
    with pytest.raises(InvalidArgument, match=r"planted\.a\.First has no attribute `name`"):
        discover("planted", base)
