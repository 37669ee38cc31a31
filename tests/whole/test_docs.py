"""The documentation is true: its code runs, its links lead somewhere, what it names exists.

A comment before a code block says what the tests do with it; readers do not see it.

    <!-- runs -->           run it, in one namespace per page, in an empty folder, with tiny checkpoints and a nanoGPT
    <!-- file: PATH -->     what the file of this path holds, to the letter
    <!-- output -->         what the block before prints, to the letter
    <!-- output: words -->  the same but for numbers, spacing, answers, verdicts and which baseline leads

`python -m tests.whole.test_docs README.md` writes into a page what its blocks print with the shipped checkpoints.
"""

import contextlib
import inspect
import io
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, final

import pytest
import torch
from torch import nn

import bayesgeom
from bayesgeom.cli import COMMANDS, Machines, Source
from bayesgeom.core.plugins import discover, plugin_values
from bayesgeom.core.run import Trials
from bayesgeom.measurements.base import Probe
from bayesgeom.models.base import Model
from bayesgeom.subspaces.base import Sample
from bayesgeom.tasks.base import WindTunnel
from tests.models.own_modules import WIDTH, NanoGPT
from tests.structure.source import ROOT, assert_none
from tests.structure.test_machine_paths import project_files
from tests.third_party.installed import PACKAGE, install
from tests.tiny import tiny_checkpoints, tiny_folder

__all__ = ["tiny_checkpoints", "tiny_folder"]  # fixtures

FOLDERS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/replication/*.md")
# Pages of the site alone are checked when it is built.
PAGES = sorted(path for folder in FOLDERS for path in ROOT.glob(folder) if path.parent != ROOT / "docs/site")
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]+?) -->\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
MARKS = re.compile(r"runs|output|output: words|file: tests/third_party/[\w/]+\.(?:py|toml)")


@final
@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its mark, if it has one, its language, its text and the line on which that begins."""

    mark: str
    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    return [
        Block(
            mark=match["mark"] or "",
            language=match["language"].strip(),
            text=match["text"],
            line=page.count("\n", 0, match.start("text")),
        )
        for match in BLOCK.finditer(page)
    ]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# Code runs as written.


def words(text: str) -> list[str]:
    """What is left of a text without numbers, rules, spacing, verdicts and their notes; baselines in one order."""
    text = re.sub(r"\d+ (?:below|at|above)(?=,| \w)|; Welch bound[^;)]*", " ", text)  # small models have a Welch bound
    text = re.sub(r"(?m) +(?:yes|no)\*?$", "", text)  # verdicts
    starts = "Matches|Close to|Partly|No|Undecided|Yes|In part|Not shown|Not identified"
    text = re.sub(rf"(?m)^(?:{starts})\b.*(?:\n(?!\n).*)*?\.$", "", text)  # an answer, which may take two lines
    text = re.sub(
        r"[^\n]*\b(?:beats|beat)\s+every\s+baseline;(?:.|\n(?!\n))*?\)\.", "", text
    )  # one without words of its own
    text = re.sub(r"(?m)^\*: .*$", "", text)  # untrained stand-ins give answers half of their probability
    bare = re.sub(r"[-+−]?\d[\d.,]*(?:e[-+−]?\d+)?|nan|[─…–,]", " ", text)
    return re.sub(r"\(([^()]*;[^()]*)\)", lambda baselines: _in_one_order(baselines[1]), bare).split()


def _in_one_order(baselines: str) -> str:
    return "; ".join(sorted(" ".join(baseline.split()) for baseline in baselines.split(";")))


def outputs(page: str, name: str) -> Iterator[tuple[Block, str]]:
    """Run a page's marked blocks in order; each output block, with what was really printed before it."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        if block.mark == "runs":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("\n" * block.line + block.text, name, "exec"), namespace)
            printed = out.getvalue()
        elif block.mark.startswith("output"):
            yield block, printed


def run_page(page: str, name: str) -> None:
    """Run a page; **raises** where a block fails or prints something else than the page says."""
    for block, printed in outputs(page, name):
        if block.mark == "output":
            assert printed == block.text, f"{name}:{block.line} prints\n{printed}"
        else:
            assert words(printed) == words(block.text), f"{name}:{block.line} prints\n{printed}"


def refreshed(page: str, name: str) -> str:
    """The page with the outputs that it prints now, numbers included."""
    for block, printed in list(outputs(page, name)):
        page = page.replace(f"```{block.language}\n{block.text}```", f"```{block.language}\n{printed}```")
    return page


def quoted_files(page: str) -> list[tuple[str, str]]:
    """Paths in the repository of the files that a page quotes, each with the text that the page gives."""
    return [(own.mark.removeprefix("file: "), own.text) for own in blocks(page) if own.mark.startswith("file: ")]


def differing_files(page: str) -> Iterator[str]:
    """Files that a page quotes and that hold something else."""
    for path, text in quoted_files(page):
        if not (ROOT / path).is_file() or read(ROOT / path) != text:
            yield f"{path} is not what the page quotes"


RUNNABLE = [
    path for path in PAGES if any(own.mark for own in blocks(read(path))) and path != ROOT / "docs/extending.md"
]  # of the guide, each block runs alone
SLOW = ("ablations", "architectures", "dynamics", "interventions", "training")
LONG = {"README.md"} | {f"docs/{own}.md" for own in SLOW}


class GPT(NanoGPT):
    """A nanoGPT with the vocabulary and the length of its configuration, as the README's `model.py` has one."""

    def __init__(self, config: SimpleNamespace) -> None:
        torch.manual_seed(0)
        super().__init__(SimpleNamespace(flash=True, **vars(config)))
        self.lm_head = nn.Linear(WIDTH, config.vocab_size, bias=False)
        self.transformer.wte = nn.Embedding(config.vocab_size, WIDTH, _weight=self.lm_head.weight)
        self.transformer.wpe = nn.Embedding(config.block_size, WIDTH)


@pytest.fixture(autouse=True)
def nanogpt(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("model")
    module.GPT, module.GPTConfig = GPT, SimpleNamespace
    monkeypatch.setitem(sys.modules, "model", module)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.examples if label(path) in LONG else ()) for path in RUNNABLE],
    ids=label,
)
def test_page_runs_as_written(
    path: Path, tmp_path: Path, tiny_checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(read(path), label(path))


# The first code of a guide takes little time: with tiny checkpoints and a limit that leaves room for a busy machine.

ELSEWHERE = {
    "servers": "a server",
    "clusters": "a cluster",
    "pretrained": "a directory with weights",
    "security": "a model of the hub",
    "figures": "a browser for Python",
}  # what their first code needs
SECONDS = 30


def first_code(page: str) -> Block | None:
    return next((block for block in blocks(page) if block.language == "python"), None)


def guides() -> list[Path]:
    """The pages of the site's section "Guides"."""
    section = re.search(r"(?ms)^  - Guides:\n(.*?)^  - ", read(ROOT / "mkdocs.yml"))
    assert section is not None
    names = re.findall(r": ([\w-]+)\.md$", section[1], re.MULTILINE)
    return [ROOT / f"docs/{name}.md" for name in names if name not in ELSEWHERE]


def test_the_first_code_of_each_guide_is_run() -> None:
    assert len(guides()) > 18
    missing = [path for path in guides() if (block := first_code(read(path))) is None or block.mark != "runs"]
    assert_none(f"{label(path)}: its first code is not run" for path in missing)


@pytest.mark.examples
@pytest.mark.parametrize("path", guides(), ids=label)
def test_the_first_code_of_a_guide_takes_little_time(
    path: Path, tmp_path: Path, tiny_checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    block = first_code(read(path))
    assert block is not None
    start = time.process_time()  # of this process: others may keep the machine busy
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile("\n" * block.line + block.text, label(path), "exec"), {"__name__": "__main__"})
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("path", PAGES, ids=label)
def test_quoted_files_are_the_files(path: Path) -> None:
    assert_none(differing_files(read(path)))


def unbuildable(folder: Path) -> Iterator[str]:
    """What a build of this folder would miss: hatchling ships the folder of the project's name, if it is a package."""
    project = tomllib.loads(read(folder / "pyproject.toml"))["project"]
    package = project["name"].replace("-", "_")
    if not (folder / package / "__init__.py").is_file():
        yield f"there is no {package}/__init__.py, so hatchling does not know which files to ship"
    for target in (each for group in project["entry-points"].values() for each in group.values()):
        if not (folder / target.partition(":")[0].replace(".", "/")).with_suffix(".py").is_file():
            yield f"the entry point {target} names no file"


def test_the_guide_quotes_or_links_every_file_of_the_package() -> None:
    page, folder = read(ROOT / "docs/extending.md"), ROOT / "tests/third_party"
    files = {path.relative_to(ROOT).as_posix() for path in (folder / PACKAGE).glob("*.py") if path.stem != "__init__"}
    quoted = [path for path, _ in quoted_files(page)]
    assert len(quoted) == len(set(quoted)) and set(quoted) <= {*files, "tests/third_party/pyproject.toml"}
    assert_none(f"{path} is neither quoted nor linked" for path in files - {*quoted} if f"(../{path})" not in page)


def test_the_example_package_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "tests/third_party", tmp_path / "package", ignore=shutil.ignore_patterns("__pycache__"))
    assert_none(unbuildable(tmp_path / "package"))
    if find_spec("hatchling") is not None:  # in build environments; nothing is downloaded
        monkeypatch.chdir(tmp_path / "package")
        assert import_module("hatchling.build").build_wheel(str(tmp_path)).endswith(".whl")


def test_the_guide_names_what_a_task_and_a_model_must_define_and_what_a_sample_offers() -> None:
    page = read(ROOT / "docs/extending.md")
    given = {field.name for field in fields(Trials) if field.default is MISSING}
    offered = {name for name in vars(Sample) if name[0] != "_"} | {field.name for field in fields(Sample)}
    required = {*WindTunnel.__abstractmethods__, *Model.__abstractmethods__}
    assert len(offered) > 8 and len(required) > 11
    missing = [
        name for name in {*given, *offered, *required} if not re.search(rf"`{name}\b|def {name}\b|\b{name}=", page)
    ]
    assert_none(f"docs/extending.md does not name {name}" for name in missing)


@pytest.mark.examples
def test_each_block_of_the_guide_runs_alone(
    tmp_path: Path, tiny_checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install(tmp_path / "site", monkeypatch)
    alone = [block for block in blocks(read(ROOT / "docs/extending.md")) if block.mark == "runs"]
    assert len(alone) >= 7
    for block in alone:
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile("\n" * block.line + block.text, "docs/extending.md", "exec"), {"__name__": "__main__"})


def test_every_mark_is_known() -> None:
    marked = [(label(path), block) for path in PAGES for block in blocks(read(path)) if block.mark]
    assert_none(f"{name}:{block.line}: {block.mark}" for name, block in marked if not MARKS.fullmatch(block.mark))


# Links lead somewhere.


def anchors(page: str) -> set[str]:
    """The anchors that headings make, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(BLOCK, "", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def anchors_in(path: Path) -> frozenset[str]:
    """Those of a file, which many pages may link."""
    return frozenset(anchors(read(path)))


def broken_links(page: str, path: Path) -> Iterator[str]:
    """Relative links and images of a page at `path` to files or headings that do not exist."""
    text = re.sub(BLOCK, "", page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<img src="([^"]+)"', text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        goal = (path.parent / file).resolve()
        if not goal.exists():
            yield f"{path.name}: {target} does not exist"
        elif anchor and anchor not in (anchors_in(goal) if file else anchors(page)):
            yield f"{path.name}: {target} has no such heading"


@pytest.mark.parametrize("path", PAGES, ids=label)
def test_links_lead_somewhere(path: Path) -> None:
    assert_none(broken_links(read(path), path))


@pytest.mark.parametrize("link", ["nowhere.md", "README.md#nowhere", "#nowhere"])
def test_a_broken_link_is_found(link: str) -> None:
    assert len(list(broken_links(f"# Here\n\n[there]({link})\n", ROOT / "planted.md"))) == 1
    assert len(list(broken_links(f'# Here\n\n<img src="{link}">\n', ROOT / "planted.md"))) == 1


# What is named exists.


def code(page: str) -> Iterator[str]:
    """Inline code, and the lines of blocks that are no Python."""
    for block in blocks(page):
        if block.language != "python":
            yield from (line.strip().removeprefix("$ ") for line in block.text.splitlines())
    yield from re.findall(r"`([^`\n]+)`", re.sub(BLOCK, "", page))


def unknown_commands(page: str) -> Iterator[str]:
    """Commands, options, make targets and files that a page names and that do not exist."""
    commands: dict[str, Callable[..., Any]] = {
        **COMMANDS,
        **plugin_values("bayesgeom.commands", FunctionType, taken=COMMANDS),
    }
    targets = set(re.findall(r"^([a-z0-9-]+):", read(ROOT / "Makefile"), re.MULTILINE))
    for text in code(page):
        if match := re.match(r"bayesgeom ([a-z][a-z-]*)\b(.*)", text):
            command = commands.get(match[1])
            if command is None:
                yield f"{text}: no such command"
                continue
            own = set(inspect.signature(command).parameters) | {"out"}
            shared = {field.name for field in fields(Source)} if "source" in own else set()
            shared |= {field.name for field in fields(Machines)} if "machines" in own else set()
            known = {name.replace("_", "-") for name in own | shared} | {"help"}
            yield from (f"{text}: no option --{o}" for o in re.findall(r"--([a-z-]+)", match[2]) if o not in known)
        elif (match := re.match(r"make ([a-z0-9-]+)", text)) and match[1] not in targets:
            yield f"{text}: no such target"
        elif re.fullmatch(r"(bayesgeom|tests|docs|examples|benchmarks)/[\w./-]*", text) and not (ROOT / text).exists():
            yield f"{text}: no such file"


@pytest.mark.parametrize("path", PAGES, ids=label)
def test_commands_and_files_exist(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if quoted_files(read(path)):
        install(tmp_path / "site", monkeypatch)
    assert_none(unknown_commands(read(path)))


@pytest.mark.parametrize(
    "page", ["`bayesgeom digest x`", "```sh\nbayesgeom diagnose x --m 3\n```\n", "`make tea`", "`bayesgeom/nowhere.py`"]
)
def test_an_unknown_command_is_found(page: str) -> None:
    assert len(list(unknown_commands(page))) == 1


def test_every_probe_has_a_page_that_is_linked() -> None:
    # mypy: an abstract class as a value is what discovery is about.
    names = discover("bayesgeom.probes", Probe)  # type: ignore[type-abstract]
    assert_none(f"docs/probes/{name}.md is missing" for name in names if not (ROOT / f"docs/probes/{name}.md").exists())
    for page, prefix in ((ROOT / "README.md", "docs/"), (ROOT / "docs/index.md", "")):
        text = read(page)
        missing = [name for name in names if f"({prefix}probes/{name}.md)" not in text]
        assert_none(f"{label(page)} does not link {name}" for name in missing)


# A fresh machine.


def test_the_readme_opens_with_the_two_commands_of_a_fresh_machine() -> None:
    page = read(ROOT / "README.md")
    address = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]["urls"]["Repository"]
    first = blocks(page)[0]
    lines = [line.partition("#")[0].strip() for line in first.text.splitlines()]
    assert lines == [f"git clone {address} && cd bayesgeom", "make demo", "make test"] and first.line < 15
    assert lines[2] in read(ROOT / ".ci/run").splitlines()


def installs_by_name(text: str) -> list[str]:
    """Where a text installs the package by its name from an index, on which anybody could register that name."""
    return re.findall(r"pip install[^`\n]*?(?<![/\w])bayesgeom(?![^`\n]* @ git\+)[^`\n]*", text)


def test_nothing_recommends_to_install_the_package_by_its_name() -> None:
    for allowed in (
        "pip install .",
        "pip install '.[fetch]' in the clone",
        "%pip install 'NAME[fetch] @ git+URL'",
    ):
        assert not installs_by_name(allowed.replace("NAME", "bayesgeom"))
    for planted in ("pip install NAME", "%pip install -q 'NAME[fetch]'", "pip install -U numpy NAME"):
        assert installs_by_name(planted.replace("NAME", "bayesgeom"))
    pages = [path for path in project_files(ROOT) if path.suffix in (".md", ".py", ".ipynb")]
    assert_none(f"{label(path)}: {line}" for path in pages for line in installs_by_name(read(path)))


# The page of files lists what a run directory holds.


def test_files_page_lists_what_is_saved(tmp_path: Path, tiny_checkpoints: Path) -> None:
    page = read(ROOT / "docs/files.md")
    diagnosis = bayesgeom.diagnose("bijection-v20", n=8, n_untrained=0, probes=["calibration"])
    diagnosis.save(tmp_path / "run")
    files = [path.name for folder in (tmp_path / "run", tiny_checkpoints / "hmm-s5") for path in folder.iterdir()]
    columns = [name for name in diagnosis.to_pandas().columns if not name.startswith("task.")]
    named = [*files, *columns, "task.name", *diagnosis.provenance]
    assert_none(f"docs/files.md does not say what {name} is" for name in named if f"`{name}`" not in page)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        target = Path(argument).resolve()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            fresh = refreshed(read(target), argument)
        target.write_text(fresh, encoding="utf-8")
