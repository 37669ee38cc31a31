"""Hooks of the site: pages that lie outside docs/, notebooks, the reference, and the live viewer."""

import json
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.structure.files import File, Files

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
IMAGES = ("image/png", "image/svg+xml")
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere, and the reference."""
    for page, origin in PAGES.items():
        if (former := files.get_file_from_path(page)) is not None:
            files.remove(former)
        path = ROOT / origin
        text = _notebook(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for name, text in _reference().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in sorted((ROOT / STUDY).glob("plots/*")):
        files.append(File.generated(config, f"study/plots/{path.name}", abs_src_path=str(path)))
    files.append(File.generated(config, "stylesheets/site.css", abs_src_path=str(ROOT / "docs/site/site.css")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
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
            return f"{config.extra['repository']}/{kind}/main/{target}{link[2] or ''}"
        return posixpath.relpath(page_of, posixpath.dirname(here) or ".") + (link[2] or "")

    return _LINK.sub(moved, markdown)


def on_post_build(config: Any) -> None:
    """Make the live viewer of the first page."""
    page = str(Path(config.site_dir) / "viewer.html")
    subprocess.run([sys.executable, "-m", "bayesgeom", "view", "bijection-v20", "--out", page], check=True, cwd=ROOT)


def _reference() -> dict[str, str]:
    """Return the pages of the reference: the public functions, and the tasks."""
    import bayesgeom
    from bayesgeom import tasks

    def page(title: str, opening: str, module: ModuleType) -> str:
        offered = [getattr(module, name) for name in sorted(module.__all__)]
        named = [f"::: {own.__module__}.{own.__name__}" for own in offered if not isinstance(own, ModuleType)]
        return "\n\n".join([f"# {title}", opening, *named])

    return {
        "functions": page("Functions", "`help(bayesgeom.NAME)` prints the same.", bayesgeom),
        "tasks": page("Tasks", "Names of `bayesgeom.tasks`. [Which task](../tasks.md) compares them.", tasks),
    }


def _notebook(path: Path) -> str:
    """Return a stored notebook as a page: text, code, and what was printed or drawn."""
    parts = list[str]()
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            printed = "".join(output.get("text", []) or data.get("text/plain", []))
            image = next((data[kind] for kind in IMAGES if kind in data), None)
            if "text/html" in data and image is None:
                parts.append(f'<div class="output" markdown="0">{"".join(data["text/html"])}</div>')
            elif image is not None:
                parts.append(f'<img alt="figure" src="data:image/png;base64,{"".join(image).strip()}">')
            elif printed.strip():
                parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts)
