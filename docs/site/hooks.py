"""Hooks of the site: pages that lie outside docs/, notebooks, the gallery, the reference, the live page and search."""

import gzip
import json
import os
import posixpath
import re
import tomllib
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
STUDY = "examples/replication"
# Where a page of the site comes from, if not from the file of the same name in docs/.
PAGES = {
    "index.md": "docs/site/home.md",
    "contents.md": "docs/index.md",
    "readme.md": "README.md",
    "security.md": "docs/SECURITY.md",
    "changelog.md": "CHANGELOG.md",
    "contributors.md": "AGENTS.md",
    "benchmarks.md": "benchmarks/README.md",
    "study/index.md": f"{STUDY}/README.md",
    **{f"study/{path.name}": f"{STUDY}/{path.name}" for path in (ROOT / STUDY).glob("*.md") if path.stem != "README"},
    **{f"notebooks/{path.stem}.md": f"examples/{path.name}" for path in (ROOT / "examples").glob("*.ipynb")},
}
SHOWN_AT = {origin: page for page, origin in PAGES.items()}
# Where the repository lies stands in pyproject.toml alone.
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
PLOTS = ROOT / "bayesgeom/report/assets/plotly-cartesian.min.js.gz"  # a third of the whole library
COLAB = REPOSITORY.replace("https://github.com/", "https://colab.research.google.com/github/") + "/blob/main"
PLOTLY, WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_config(config: Any) -> Any:
    """Offer a choice of versions where mike stores them: elsewhere each page would ask for a list that is not there."""
    if "MIKE_DOCS_VERSION" not in os.environ:
        del config.extra["version"]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere, and the reference."""
    for page, origin in PAGES.items():
        if (former := files.get_file_from_path(page)) is not None:
            files.remove(former)
        path = ROOT / origin
        text = path.read_text(encoding="utf-8")
        content = _page(json.loads(text), source=origin) if path.suffix == ".ipynb" else text
        files.append(File.generated(config, page, content=content))
    gallery = sorted((ROOT / "examples/gallery").glob("*.ipynb"))
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # each notebook runs in a process of its own
        for path, content in zip(gallery, threads.map(_executed, gallery), strict=True):
            files.append(File.generated(config, f"gallery/{path.stem}.md", content=content))
    for name, text in _reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in sorted((ROOT / STUDY).glob("plots/*")):
        files.append(File.generated(config, f"study/plots/{path.name}", abs_src_path=str(path)))
    for kind, name in (("stylesheets", "site.css"), ("javascripts", "figures.js")):
        files.append(File.generated(config, f"{kind}/{name}", abs_src_path=str(ROOT / "docs/site" / name)))
    files.append(File.generated(config, "javascripts/plotly.min.js", content=gzip.decompress(PLOTS.read_bytes())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links between files of the repository lead to pages of the site, or else to the repository."""
    here = page.file.src_uri
    origin = PAGES.get(here, f"docs/{here}")
    if origin == PAGES["index.md"]:
        return markdown

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[1]))
        page_of = SHOWN_AT.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if page_of is None and target.startswith(f"{STUDY}/plots/"):
            page_of = target.replace(STUDY, "study")
        if page_of is None:
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return f"{REPOSITORY}/{kind}/main/{target}{link[2] or ''}"
        return posixpath.relpath(page_of, posixpath.dirname(here) or ".") + (link[2] or "")

    return _LINK.sub(moved, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put the live page of a small transformer into the first page."""
    if PAGES.get(page.file.src_uri) != PAGES["index.md"]:
        return html
    import bayesgeom
    from bayesgeom.diagnosis.live import live_html

    before, mark, after = html.partition("<!-- live -->")
    assert mark, "the first page has no place for the live page"
    return before + live_html(bayesgeom.load("mess3-small"), is_part=True) + after


@event_priority(-100)  # after the search plugin has written its index
def on_post_build(config: Any) -> None:
    """Let the search find a name with or without its accents: the index gets both, and shows one."""
    path = Path(config.site_dir) / "search/search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    for section in index["docs"]:
        words = {word: _without_accents(word) for word in re.findall(r"\w+", section["text"])}
        plain = sorted({bare for word, bare in words.items() if bare != word})
        section["text"] += f"<span hidden>{' '.join(plain)}</span>" if plain else ""
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _without_accents(word: str) -> str:
    return "".join(sign for sign in unicodedata.normalize("NFD", word) if not unicodedata.combining(sign))


def _reference() -> dict[str, str]:
    """Return the pages of the reference: the public functions, and the tasks."""
    import bayesgeom
    from bayesgeom import tasks

    def page(title: str, opening: str, module: ModuleType) -> str:
        parts, groups = [f"# {title}", opening], _groups(module)
        for purpose, names in groups.items():
            parts += [f"## {purpose}", *(entry for name in names for entry in _entries(getattr(module, name)))]
        return "\n\n".join(parts)

    return {
        "functions": page("Functions", "`help(bayesgeom.NAME)` prints the same.", bayesgeom),
        "tasks": page("Tasks", "Names of `bayesgeom.tasks`. [Which task](../tasks.md) compares them.", tasks),
    }


def _groups(module: ModuleType) -> dict[str, list[str]]:
    """Return a module's public names by purpose, as its docstring lists them; last those that are in no list."""
    groups, purpose = dict[str, list[str]](), ""
    for line in (module.__doc__ or "").splitlines():
        if re.fullmatch(r"\w.*:", line):
            purpose = line[:-1]
        elif purpose and (listed := re.match(r" {4}(\w+(?:, \w+)*) {2,}\S", line)):
            groups.setdefault(purpose, []).extend(listed[1].split(", "))
    grouped = {name for names in groups.values() for name in names}
    offered = [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]
    return groups | {"Classes": sorted(set(offered) - grouped)}


def _entries(member: Any) -> list[str]:
    """Return the entry of a public name, and one for what its docstring leaves to `Options`."""
    entries = [f"::: {member.__module__}.{member.__name__}"]
    if "`Options`" in (member.__doc__ or ""):
        heading = f"Options of {member.__name__}"
        options = f"    options: {{ heading: {heading}, toc_label: {heading}, heading_level: 4 }}"
        entries.append(f"::: {member.__module__}.Options\n{options}")
    return entries


def _executed(path: Path) -> str:
    """Run a notebook of the gallery, and return it as a page; its figures are drawn by plotly in the browser."""
    notebook: Any = nbformat.read(path, as_version=4)
    # One thread each, since one notebook runs on each core: two threads each took several times as long.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PLOTLY_RENDERER": "plotly_mimetype", "PYTHONPATH": str(ROOT)}
    NotebookClient(notebook, timeout=600).execute(env=environment)
    return _page(notebook, source=f"examples/gallery/{path.name}")


def _page(notebook: Any, *, source: str) -> str:
    """Return a notebook as a page: text with a link to Colab, code, and what was printed or drawn."""
    parts = list[str]()
    for cell in notebook["cells"]:
        text = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            link = "" if parts or "gallery" not in source else f"\n\n[Open in Colab]({COLAB}/{source}){{ .md-button }}"
            parts.append(text + link)
            continue
        if "google.colab" in text:  # it installs the package there, and does nothing elsewhere
            continue
        parts.append(f"```python\n{text}\n```")
        parts += [_output(output, f"{source}-{len(parts)}-{i}") for i, output in enumerate(cell["outputs"])]
    wide = "---\nhide: [toc]\n---"  # figures of two panels take the room
    return "\n\n".join([wide, *filter(None, parts)])


def _output(output: Any, key: str) -> str:
    """Return what a cell printed or drew; nothing for progress on stderr."""
    data = output.get("data", {})
    if output.get("name") == "stderr" or WIDGET in data:
        return ""
    if PLOTLY in data:
        figure = json.dumps(data[PLOTLY]).replace("</", "<\\/")
        place = re.sub(r"\W", "-", key)
        stored = f'<script type="application/json" data-figure="{place}">{figure}</script>'
        return f'<div class="figure"><div id="{place}"></div></div>\n{stored}'
    if "image/png" in data:
        return f'<img alt="figure" src="data:image/png;base64,{_text(data["image/png"]).strip()}">'
    if "text/html" in data:
        return f'<div class="output" markdown="0">{_text(data["text/html"])}</div>'
    printed = _text(output.get("text", data.get("text/plain", "")))
    return f"```text\n{printed.rstrip()}\n```" if printed.strip() else ""


def _text(lines: str | list[str]) -> str:
    return "".join(lines)
