"""The viewer in a browser: what clicks and keys do, and that the numbers shown are those stored."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import bayesgeom
from bayesgeom.core import LOGIT_LENS
from bayesgeom.measurements.inside import inside_report, numbers_of
from bayesgeom.report.diagnosis import Diagnosis
from tests.browser import Browsing
from tests.measurements.test_inside import HEADS, LAYERS, TASK, diagnosis, report, sequences, transformer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.exhaustive
DRAWN = "#viewer .said:not(:empty)"
STEPS = ("sequence", "position", "layer", "head")


def opened(browser_page: Browsing, *, width: int = 1280, dark: bool = False) -> "Page":
    page = browser_page(diagnosis().to_html(), width=width, dark=dark)
    page.wait_for_selector(DRAWN)
    return page


def place(page: "Page") -> tuple[int, ...]:
    """The sequence, scored position, layer and head that are shown, all from 0."""
    texts = [page.inner_text(f"#viewer [data-step={name}] b") for name in STEPS]
    sequence, token, layer, head = (int(text.split()[0]) for text in texts)
    at = list(report().scored[sequence - 1]).index(token - 1)
    return sequence - 1, at, layer, head


def values(page: "Page", selector: str) -> np.ndarray:
    return np.array([float(own) for own in page.eval_on_selector_all(selector, "all => all.map(e => e.dataset.value)")])


def test_numbers_shown_are_those_stored(browser_page: Browsing) -> None:
    page, own = opened(browser_page), report()
    for keys in ("", "PageDown PageDown ArrowLeft", "Home [ [", "ArrowRight ] ArrowDown"):
        for key in keys.split():
            page.press("#viewer .bgv", key)
        sequence, at, layer, head = place(page)
        np.testing.assert_array_equal(values(page, "#viewer .column .exact"), own.exact_probs[sequence, at])
        np.testing.assert_array_equal(values(page, "#viewer .column .model"), own.model_probs[sequence, at])
        lens = values(page, "#viewer .row:not(:has(.of-exact)) .cell").reshape(LAYERS + 1, 7)
        np.testing.assert_array_equal(lens[0], own.model_probs[sequence, at])
        np.testing.assert_array_equal(lens[1:][::-1], own.lens_probs[sequence, :, at])
        effects = own.edited_kl_bits[sequence, ..., at] - own.kl_bits[sequence, at]
        np.testing.assert_allclose(values(page, "#viewer .map .head").reshape(LAYERS, HEADS)[::-1], effects, atol=1e-6)
        attended = own.attention[sequence, layer, head, at]
        shares = values(page, "#viewer .share")
        np.testing.assert_array_equal(shares, np.sort(attended)[::-1][: len(shares)])
        heights = page.eval_on_selector_all("#viewer .column .model", "all => all.map(e => parseFloat(e.style.height))")
        np.testing.assert_allclose(heights, 100 * own.model_probs[sequence, at], atol=1e-3)


def test_keys_alone_reach_everything(browser_page: Browsing) -> None:
    page = opened(browser_page)
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.className") != "bgv":
        page.keyboard.press("Tab")
    seen, said = {place(page)}, {page.inner_text("#viewer .said")}
    for key in ("Home", "PageDown", "ArrowRight", "ArrowUp", "ArrowDown", "[", "]", "PageUp", "End", "ArrowLeft"):
        page.keyboard.press(key)
        seen.add(place(page))
        said.add(page.inner_text("#viewer .said"))
    assert len(seen) == len(said) > 5
    page.keyboard.press("Home")
    assert place(page)[1] == 0
    page.keyboard.press("End")
    assert place(page)[1] == report().scored.shape[1] - 1
    assert page.get_attribute("#viewer .said", "aria-live") == "polite"


def test_a_click_opens_a_position_and_a_head(browser_page: Browsing) -> None:
    page = opened(browser_page)
    page.click("#viewer .map [data-layer='0'][data-head='2']")
    assert place(page)[2:] == (0, 2)
    page.click("#viewer .tokens [data-place='1']")
    assert place(page)[1] == 1
    box = page.locator("#viewer .entropy").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] - 1, box["y"] + 5)
    assert place(page)[1] == report().scored.shape[1] - 1
    page.click("#viewer [data-step=sequence] [data-by='1']")
    assert place(page)[0] == 1


def test_a_switched_off_head_shows_the_stored_probabilities(browser_page: Browsing) -> None:
    page, own = opened(browser_page), report()
    page.click("#viewer .map [data-layer='1'][data-head='1']")
    for key in ("PageDown", "ArrowLeft", "]"):
        page.press("#viewer .bgv", "o")
        sequence, at, layer, head = place(page)
        shown = values(page, "#viewer .column .edited")
        np.testing.assert_array_equal(shown, own.edited_probs[sequence, layer, head, at].astype(np.float64))
        assert page.inner_text("#viewer .switch") == f"layer {layer} head {head} is off: switch on"
        assert all("all heads on" in text for text in page.locator("#viewer .intact").all_inner_texts())
        page.press("#viewer .bgv", key)
        assert page.locator("#viewer .column .edited").count() == (0 if key == "]" else len(own.answers))
        if key != "]":
            page.click("#viewer .switch")
    assert page.inner_text("#viewer .switch") == "switch layer 1 head 2 off", "another head switches it on again"
    assert not any(page.locator("#viewer .intact").all_inner_texts())


def test_map_curve_and_sentence_print_the_same_digits(browser_page: Browsing) -> None:
    page, own = opened(browser_page), report()
    effects = own.edited_kl_bits - own.kl_bits[:, None, None]
    sequence, at, layer, head = place(page)
    bits = f"{effects[sequence, layer, head, at]:.3g}".removeprefix("0")
    assert page.inner_text("#viewer .map .here") == bits
    assert f"switching it off costs {'0' if bits[0] == '.' else ''}{bits} bits" in page.inner_text("#viewer .said")
    assert page.inner_text("#viewer h3:has(+ .effects) .soft").endswith(f"{bits} bits"), "it starts at the largest"


def test_a_tie_names_both_answers(browser_page: Browsing) -> None:
    exact = np.zeros_like(report().exact_probs)
    exact[..., [1, 4]] = 0.5
    model = exact * np.linspace(0.98, 1.04, 7, dtype=np.float32)
    page = browser_page(Diagnosis.of(replace(report(), exact_probs=exact, model_probs=model)).to_html())
    page.wait_for_selector(DRAWN)
    said = page.inner_text("#viewer .said")
    assert "exact v1 and v4 0.500 each" in said and "model v4 0.510 and v1 0.495" in said


def test_numbers_of_another_version_get_one_sentence(browser_page: Browsing) -> None:
    page = browser_page(Diagnosis.of(replace(report(), kl_bits=report().kl_bits.astype(np.float64))).to_html())
    page.wait_for_function("document.getElementById('viewer').textContent.includes('Diagnose the model again')")


def test_keys_work_under_the_pointer_and_after_the_skip_link(browser_page: Browsing) -> None:
    page = opened(browser_page)
    first = place(page)
    page.keyboard.press("]")
    assert place(page) == first
    page.hover("#viewer .said")
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    assert place(page)[:2] == (1, 0)
    page.mouse.move(1, 1)
    page.keyboard.press("PageDown")
    assert place(page)[0] == 1
    page.focus("a.skip")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.className === 'bgv'")
    page.keyboard.press("PageUp")
    assert place(page)[0] == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_the_width_and_is_readable(browser_page: Browsing, width: int, dark: bool) -> None:
    page = opened(browser_page, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    text, back = (page.evaluate(CONTRAST[name]) for name in ("text", "back"))
    light, deep = max(luminance(text), luminance(back)), min(luminance(text), luminance(back))
    assert (light + 0.05) / (deep + 0.05) >= 4.5 and (luminance(text) > luminance(back)) == dark


CONTRAST = {
    "text": "getComputedStyle(document.querySelector('#viewer .keys')).color.match(/[0-9.]+/g).map(Number)",
    "back": "getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).map(Number)",
}


def luminance(color: list[float]) -> float:
    linear = [(c / 255 / 12.92) if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


SHADES = """() => [...document.querySelectorAll("#viewer .tokens > *, #viewer .map .head")].map((own) => {
  const back = getComputedStyle(own).backgroundColor, page = getComputedStyle(document.body).backgroundColor;
  const scale = (color) => (color.startsWith("color(") ? 255 : 1);
  const parts = (color) => color.match(/[0-9.]+/g).slice(0, 3).map((part) => scale(color) * part);
  return [parts(getComputedStyle(own).color), parts(back === "rgba(0, 0, 0, 0)" ? page : back)];
})"""


RESTYLED = """(shade) => document.querySelectorAll("#viewer .tokens > :not(.later), #viewer .head").forEach((own) => {
  own.style.setProperty("--p", shade);
  own.classList.remove("dark", "mid");
  if (shade > 61) own.classList.add(shade > 88 ? "dark" : "mid");
})"""


@pytest.mark.parametrize("dark", [False, True])
def test_every_token_and_effect_can_be_read_on_its_shade(browser_page: Browsing, dark: bool) -> None:
    page = opened(browser_page, dark=dark)
    for shade in range(0, 101, 4):
        page.evaluate(RESTYLED, shade)
        for text, back in page.evaluate(SHADES):
            light, deep = sorted((luminance(text), luminance(back)), reverse=True)
            assert (light + 0.05) / (deep + 0.05) >= 4.45, shade


def test_shades_of_effects_are_the_same_in_every_sequence(browser_page: Browsing) -> None:
    page = opened(browser_page)
    for _ in range(3):
        found = page.eval_on_selector_all(
            "#viewer .map .head", "all => all.map(e => [Number(e.dataset.value), parseInt(e.style.cssText.slice(4))])"
        )
        for bits, shade in found:
            expected = np.clip((np.log10(abs(bits) or 1e-9) + 3) / 4, 0, 1)
            assert shade == pytest.approx(100 * expected, abs=0.51)
        page.press("#viewer .bgv", "PageDown")
    assert page.inner_text("#viewer .scale").split() == ["≤", "0.001", "0.01", "0.1", "1", "10", "bits"]


WIDGET = """
const numbers = (values) => new DataView(new Float32Array(values).buffer);
const bytes = Uint8Array.from(atob(document.getElementById("viewer-data").textContent), (c) => c.charCodeAt(0));
let call; window.sent = [];
const model = {
  get: (name) => ({ data: new DataView(bytes.buffer), runs: true })[name],
  on: (_, own) => { call = own; }, off: () => {},
  send: (message) => { sent.push(message); setTimeout(() => call({ id: message.id, shapes: [[5, 7], [5]] },
    [numbers(Array(35).fill(message.heads.length / 7)), numbers(Array(5).fill(message.heads.length))])); },
};
widget.render({ model, el: document.getElementById("viewer") });
"""


def test_in_a_notebook_every_switched_off_head_counts(browser_page: Browsing) -> None:
    """The interface of anywidget, with a kernel that replies a constant."""
    html = diagnosis().to_html().replace("export default { render };", "window.widget = { render };")
    page = browser_page(html)
    page.wait_for_selector(DRAWN)
    page.evaluate("document.querySelector('#viewer').replaceChildren()")
    page.evaluate(WIDGET)
    page.wait_for_selector(DRAWN)
    for heads in (1, 2):
        page.press("#viewer .bgv", "[")
        page.press("#viewer .bgv", "o")
        page.wait_for_function(f"document.querySelector('#viewer .column .edited')?.dataset.value > {heads / 7 - 0.01}")
        assert len(page.evaluate("sent.at(-1).heads")) == heads
        assert f"KL {heads}" in page.inner_text("#viewer .said")


def test_a_slider_goes_over_the_steps_of_a_training(browser_page: Browsing) -> None:
    models = [bayesgeom.as_model(transformer(seed)) for seed in range(3)]
    parts = [numbers_of(model.run([sequences()], record=[LOGIT_LENS], n_recorded=8)) for model in models]
    numbers = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    numbers |= {
        "answer_ids": parts[0]["answer_ids"],
        "training_steps": np.repeat(np.array([0, 10, 1_000], np.int32), 8),
    }
    page = browser_page(Diagnosis.of(inside_report(numbers, TASK)).to_html())
    page.wait_for_selector(DRAWN)
    page.focus("#viewer input")
    for step, key in enumerate(("Home", "ArrowRight", "End")):
        page.keyboard.press(key)
        shown = values(page, "#viewer .column .model")
        np.testing.assert_array_equal(shown, parts[step]["model_probs"][0, -1])
        assert page.inner_text("#viewer [data-step=step] b") == ("0", "10", "1,000")[step]


def test_texts_are_shown_as_they_are(browser_page: Browsing) -> None:
    own = replace(report(), texts=("<b>&\n",) * len(report().texts), answers=("<i>\"'",) * 7)
    page = browser_page(Diagnosis.of(own).to_html())
    page.wait_for_selector(DRAWN)
    assert page.inner_text("#viewer .tokens > :first-child") == "<b>&⏎"
    assert page.inner_text("#viewer .table .name >> nth=0") == "<i>\"'"
    assert page.locator("#viewer b:not(.step b)").count() == page.locator("#viewer .name i").count() == 0


def test_a_click_takes_less_than_a_tenth_of_a_second(browser_page: Browsing) -> None:
    page = opened(browser_page)
    assert np.median(page.evaluate(CLICKS)) < 100


CLICKS = """() => [...document.querySelectorAll("#viewer .scored")].map((chip) => {
  const start = performance.now();
  chip.click();
  document.body.offsetHeight;
  return performance.now() - start;
})"""
