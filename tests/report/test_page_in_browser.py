"""The page in a browser: short, drawn when it opens, readable without a script, by keyboard, on paper, at 400 px.

`axe.min.js.gz` is axe-core 4.14.1 of npm, unchanged, under the Mozilla Public License 2.0.
"""

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom import load_report
from bayesgeom.circuits.patching import PatchReport
from bayesgeom.report.estimate import Estimate
from tests.browser import Browsing
from tests.pages import READINGS
from tests.report.test_theme import TEXT_CONTRAST, contrast

pytestmark = pytest.mark.exhaustive
MOST_WORDS, MOST_SCREENS = 700, 6
SLOW = 120_000  # milliseconds for dozens of figures on a machine that does other things, too
WORDS = """() => {
  let count = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { textContent, parentElement } = walker.currentNode;
    if (parentElement.closest("script, style, noscript") || !parentElement.checkVisibility()) continue;
    count += textContent.split(/\\s+/).filter(Boolean).length;
  }
  return count;
}"""
ALL_DRAWN = "document.querySelectorAll('figure .plot').length === document.querySelectorAll('.js-plotly-plot').length"
NAMELESS = """() => [...document.querySelectorAll("nav, a, button, summary")]
  .filter((own) => !(own.getAttribute("aria-label") || own.textContent).trim()).length"""
COLORS = """() => [...document.querySelectorAll("h1, h2, h3, p, a, b, span, td, th, summary, button")]
  .filter((own) => own.checkVisibility() && !own.closest("#viewer, .gauge") && own.innerText?.trim())
  .map((own) => {
    let back = own;
    while (back && getComputedStyle(back).backgroundColor === "rgba(0, 0, 0, 0)") back = back.parentElement;
    return [getComputedStyle(own).color, getComputedStyle(back || document.body).backgroundColor, own.innerText];
  })"""


@cache
def shipped() -> str:
    """The page of a shipped model with everything that a diagnosis measures."""
    with torch.random.fork_rng():
        return bayesgeom.diagnose("bijection-v20", n=24, n_untrained=0, ablations=True).to_html()


def hexadecimal(color: str) -> str:
    return "#" + "".join(f"{int(part):02x}" for part in color[color.index("(") + 1 : -1].split(",")[:3])


@pytest.mark.parametrize("width", [400, 1280])
def test_a_page_is_short_and_never_wider_than_the_window(width: int, browser_page: Browsing) -> None:
    page = browser_page(shipped(), width=width)
    page.wait_for_function("!document.getElementById('viewer') || document.getElementById('viewer').children.length")
    assert 50 < page.evaluate(WORDS) <= MOST_WORDS
    if width == 1280:
        assert page.evaluate("document.documentElement.scrollHeight") <= MOST_SCREENS * 900
    page.evaluate("document.querySelectorAll('details').forEach((own) => { own.open = true; })")
    page.wait_for_function(ALL_DRAWN, timeout=SLOW)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert not browser_page.requests and not browser_page.errors


def test_a_section_draws_when_it_opens_by_key_or_link(browser_page: Browsing) -> None:
    page = browser_page(shipped())
    assert page.locator(".js-plotly-plot").count() == 0
    page.locator("#calibration > summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#calibration .js-plotly-plot .main-svg")
    drawn = page.locator(".js-plotly-plot").count()
    page.locator(".beside a[href='#ablation']").click()
    page.wait_for_selector("#ablation .js-plotly-plot .main-svg")
    assert (
        page.evaluate("document.getElementById('ablation').open")
        and 1 <= drawn < page.locator(".js-plotly-plot").count()
    )


def test_labels_of_the_gauge_lie_inside_and_apart(browser_page: Browsing) -> None:
    for width in (400, 700, 1280):
        page = browser_page(shipped(), width=width)
        boxes: list[Any] = [own.bounding_box() for own in page.locator(".gauge .lane").all()]
        assert len(boxes) >= 3 and all(own["x"] >= 0 and own["x"] + own["width"] <= width for own in boxes)
        for at, one in enumerate(boxes):
            for other in boxes[:at]:
                is_beside = one["x"] >= other["x"] + other["width"] or other["x"] >= one["x"] + one["width"]
                assert is_beside or abs(one["y"] - other["y"]) >= 0.8 * one["height"]


AXE = "axe.run().then((found) => found.violations.map((own) => [own.id, own.nodes.map((node) => node.html)]))"
PAGES = (
    "shipped",
    "dynamics-bijection",
    "length-hmm",
    "relabeling/hmm-s5",
    "claims/audit-bijection-v20",
    "claims/gradients-bijection-v20",
    "interventions/hmm-s5/leace-belief",
)


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(name: str, browser_page: Browsing) -> None:
    html = shipped() if name == "shipped" else load_report(READINGS / name).to_html()
    page = browser_page(html, width=400 if name.startswith("claims") else 1280, dark="hmm" in name)
    page.evaluate("document.querySelectorAll('details').forEach((own) => { own.open = true; })")
    page.wait_for_function(ALL_DRAWN, timeout=SLOW)
    page.evaluate(gzip.decompress((Path(__file__).parent / "axe.min.js.gz").read_bytes()).decode())
    assert page.evaluate(AXE) == []
    page.evaluate("document.querySelectorAll('.plot').forEach((own) => { own.removeAttribute('aria-label'); })")
    assert [rule for rule, _ in page.evaluate(AXE)] == ["role-img-alt"], "it sees figures without a name"


STOPS = """() => [...document.querySelectorAll(".modebar-btn")]
  .filter((own) => own.checkVisibility({ visibilityProperty: true })).length"""


def test_the_tools_of_a_plot_are_tab_stops_once_it_is_entered(browser_page: Browsing) -> None:
    page = browser_page(load_report(READINGS / "relabeling" / "hmm-s5").to_html())
    page.wait_for_selector(".js-plotly-plot .main-svg")
    page.mouse.move(1, 1)
    assert page.evaluate(STOPS) == 0 < page.locator(".modebar-btn").count()
    page.locator(".plot").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.className").startswith("modebar-btn") and page.evaluate(STOPS) > 3
    assert page.locator(".plot").first.get_attribute("role") == "group"
    page.keyboard.press("Escape")
    assert page.evaluate(STOPS) == 0 and page.evaluate("document.activeElement.classList.contains('plot')")


OPENING = """async () => {
  document.querySelectorAll("details").forEach((own) => { own.open = true; });
  for (let at = 0; at < 2; at++) await new Promise((ready) => requestAnimationFrame(() => setTimeout(ready)));
  return document.querySelectorAll(".js-plotly-plot").length;
}"""


def test_opening_all_sections_waits_for_the_figures_near_the_window_alone(browser_page: Browsing) -> None:
    page = browser_page(shipped())
    assert page.evaluate(OPENING) < page.locator("figure .plot").count() / 2
    page.wait_for_function(ALL_DRAWN, timeout=SLOW)


@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_contrast(dark: bool, browser_page: Browsing) -> None:
    page = browser_page(shipped(), dark=dark)
    found = page.evaluate(COLORS)
    assert len(found) > 50
    for color, back, text in found:
        assert contrast(hexadecimal(color), hexadecimal(back)) >= TEXT_CONTRAST, text


def test_headings_are_in_order_and_controls_have_names(browser_page: Browsing) -> None:
    page = browser_page(shipped())
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((own) => own.tagName)")
    assert levels[0] == "H1" and levels.count("H1") == 1 and "H2" in levels
    assert page.evaluate(NAMELESS) == 0


def test_tables_are_there_without_a_script(browser_page: Browsing) -> None:
    context = browser_page.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    path = browser_page.folder / "plain.html"
    path.write_text(shipped(), encoding="utf-8")
    page.goto(path.as_uri())
    page.locator("#calibration > summary").click()
    assert page.locator("#calibration table").is_visible() and page.locator("noscript").last.is_visible()
    first = page.locator("#inside table.first tbody tr")
    shares = np.array([[float(own) for own in row.split()[-2:]] for row in first.all_inner_texts()])
    assert (shares >= 0).all() and (shares.sum(axis=0) <= 1.002).all() and (np.abs(np.diff(shares)) < 0.1).all()
    assert "The viewer needs JavaScript" in page.inner_text("#inside")
    context.close()


def test_paper_holds_every_figure_with_a_break_before_each_section(browser_page: Browsing) -> None:
    """Printing waits for the load event, and this one for the figures."""
    page = browser_page(shipped(), dark=True)
    n_sections = page.locator("details.section").count()
    assert page.pdf().count(b"/Type /Page\n") > n_sections
    assert page.evaluate(ALL_DRAWN)
    assert page.locator("details[open]").count() == 0, "what was closed is closed again"
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('.gauge i')).printColorAdjust") == "exact"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 31, 35)", "dark pages print in black"
    assert not page.locator(".modebar:visible, #viewer .bar:visible").count()


def test_a_single_report_is_drawn_at_once(browser_page: Browsing) -> None:
    found = load_report(READINGS / "interventions" / "hmm-s5" / "leace-belief")
    page = browser_page(found.to_html(), width=400, dark=True)
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert page.locator(".says").inner_text().startswith("Undecided: swapping LEACE")
    assert page.locator(".beside").count() == 0
    assert page.locator("tbody tr:visible").count() == 12 and page.locator("details.more").count() >= 2


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("prompt", ["2 3 5 7 1 =", "<s> <b> a <sub> a &lt;", "100 2000 2026-11-01 $x$ %{y} 1e3"])
def test_a_map_has_a_column_for_every_token_whatever_it_is(prompt: str, width: int, browser_page: Browsing) -> None:
    tokens, shares = tuple(prompt.split()), np.linspace(0.1, 0.9, 18).reshape(3, 6)
    report = PatchReport(
        recovered=Estimate.of(shares),
        recovered_by_head=Estimate.of(np.zeros((3, 0, 6))),
        patched_bits=Estimate.of(shares),
        clean_bits=Estimate.of(1.0),
        corrupted_bits=Estimate.of(0.0),
        tokens=tokens,
        site="resid_pre",
        metric="log_odds",
        n=8,
    )
    page = browser_page(report.to_html(), width=width)
    page.wait_for_selector(".js-plotly-plot .main-svg")
    names = [f"{at} {token}" for at, token in enumerate(tokens, start=1)]
    labels, title = page.locator(".xtick text").all_text_contents(), page.locator(".xtitle").first.text_content()
    if labels == [str(at) for at in range(1, 7)]:  # numbered, as a name is too long
        labels = [name for name in names if name.replace(" ", "") in (title or "").replace(" ", "")]
    assert [label.replace(" ", "") for label in labels] == [name.replace(" ", "") for name in names]
    plot: Any = page.locator(".nsewdrag").first.bounding_box()
    cells: list[Any] = [own.bounding_box() for own in page.locator(".scatterlayer text").all()]
    middles = [own["x"] + own["width"] / 2 - plot["x"] for own in cells]
    assert len(cells) == 18 and {round(12 * own / plot["width"]) for own in middles} == {1, 3, 5, 7, 9, 11}
    assert f"at L2, {tokens[-1]}" in page.inner_text("main") and not browser_page.errors
