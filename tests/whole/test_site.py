"""The site that `make docs` has built: it asks for no missing file, its search finds names, its figures are readable.

`make docs` runs these tests, with the site's folder in the environment variable SITE; without it they are skipped.
"""

import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium, missing
from tests.structure.source import ROOT, assert_none

SITE = Path(os.environ.get("SITE", ""))
pytestmark = pytest.mark.skipif("SITE" not in os.environ, reason="no site was built: make docs")
in_browser = pytest.mark.skipif(bool(missing()), reason=missing())

GALLERY = sorted(own.stem for own in ROOT.glob("examples/gallery/*.ipynb"))
# What a reader types, and a page that must be among the results.
SOUGHT = {
    "own model": "extending.html",
    "Raventos": "tasks.html",
    "Raventós": "tasks.html",
    "memorize": "tasks.html",
    "svg": "index.html",
    "latex": "contents.html",
    "Zoology": "scorecard.html",
    "uncertainty": "probes/calibration.html",
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[str]]]:
    """Its address, and the requests that it could not answer."""
    failed: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def send_error(self, *args: Any, **options: Any) -> None:
            failed.append(self.path)
            super().send_error(*args, **options)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(SITE))) as own:
        threading.Thread(target=own.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{own.server_port}", failed
        own.shutdown()


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with chromium() as browser:
        yield browser.new_page()


@in_browser
@pytest.mark.parametrize("query", SOUGHT)
def test_the_search_finds(server: tuple[str, list[str]], window: Any, query: str) -> None:
    window.goto(f"{server[0]}/glossary.html?q={query}")
    window.wait_for_selector(".md-search-result__link", state="attached")
    window.wait_for_function("document.querySelector('.md-search-result__meta').innerText.match(/\\d/)")
    links = window.eval_on_selector_all(".md-search-result__link", "all => all.map(link => link.pathname.slice(1))")
    assert SOUGHT[query] in links


@in_browser
@pytest.mark.parametrize("name", GALLERY)
def test_a_figure_fits_a_narrow_screen_or_says_that_it_scrolls(
    server: tuple[str, list[str]], window: Any, name: str
) -> None:
    window.set_viewport_size({"width": 400, "height": 900})
    window.goto(f"{server[0]}/gallery/{name}.html")
    if "data-figure" in (SITE / f"gallery/{name}.html").read_text(encoding="utf-8"):
        window.wait_for_selector(".js-plotly-plot .main-svg")
        window.wait_for_timeout(500)  # plotly draws once more where text was cut
    state = """all => all.map(own => own.scrollWidth <= own.clientWidth
        ? ![...own.querySelectorAll("svg text")].some(text => {
            const [a, b] = [text.getBoundingClientRect(), own.getBoundingClientRect()];
            return a.left < b.left - 1 || a.right > b.right + 1;
          })
        : !own.previousElementSibling.hidden && own.tabIndex === 0)"""
    assert all(window.eval_on_selector_all(".figure", state))
    assert window.evaluate("document.documentElement.scrollWidth") <= 400


@in_browser
def test_no_page_asks_for_a_missing_file(server: tuple[str, list[str]], window: Any) -> None:
    for name in ("index", "contents", "reference/functions", "gallery/does_it_infer", "notebooks/first_diagnosis"):
        window.goto(f"{server[0]}/{name}.html", wait_until="networkidle")
    assert_none(path for path in server[1] if path != "/favicon.ico")


def test_plotly_is_one_file_of_the_site() -> None:
    bundles = [path for path in SITE.rglob("*.js") if "plotly" in path.name]
    assert len(bundles) == 1 and bundles[0].stat().st_size < 2_000_000
    within = [path for path in SITE.rglob("*.html") if path.stat().st_size > 1_000_000]
    assert_none(f"{path} holds more than text: {path.stat().st_size} bytes" for path in within)


def test_the_reference_is_grouped_and_lists_options() -> None:
    text = (SITE / "reference/functions.html").read_text(encoding="utf-8")
    groups = re.findall(r'<h2 id="([^"]+)"', text)
    assert groups[0] == "load-models-and-reports" and "train" in groups and groups[-1] == "classes"
    assert "Options of wrap" in text and "rebuild" in text and "attn_implementation" in text
