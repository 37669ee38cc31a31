"""The live page: what the browser computes is what the package computes, for every kind of network and task."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import bayesgeom
from bayesgeom.cli import main
from bayesgeom.core import InvalidArgument
from bayesgeom.core.observers import exact_beliefs
from bayesgeom.diagnosis.live import MOST_PARAMETERS, live_html
from bayesgeom.models.native.transformer import Transformer
from bayesgeom.tasks import HMM, Bijection, Mess3, Process, Product, StickyMarkov
from bayesgeom.tasks.base import WindTunnel
from bayesgeom.tasks.markov import MarkovProcess
from tests.browser import Browsing
from tests.report.test_theme import TEXT_CONTRAST, contrast, luminance

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Weights in float16 have 11 significant bits. Where they are rounded before, tables of positions are still rounded.
ATOL, ROUNDED_ATOL = 1e-3, 1e-4
DRAWN = "document.querySelector('.bayesgeom-live').shadowRoot?.querySelector('.kl b')"
WALK = """async ([seed, n]) => {
  const { live } = await document.querySelector(".bayesgeom-live").live, { places, scored } = live.about, seen = [];
  let state = seed;
  const drawn = (most) => { state = (state * 16807) % 2147483647; return state % most; };
  for (let i = 0; i < n; i++) {
    if (i % 3 === 2) live.open(drawn(live.about.sequences.length));
    const place = places[drawn(places.length)], ids = live.task.choices(place);
    live.edit(place, ids[drawn(ids.length)]);
    seen.push({ tokens: [...live.tokens], places: scored, at: scored.map((_, step) => live.at(step)) });
  }
  return seen;
}"""


def lively(task: WindTunnel, **options: Any) -> Transformer:
    """A transformer whose parts all matter, with large weights that float16 holds."""
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 12, "d_mlp": 20, "d_vocab": task.d_vocab, "n_ctx": task.n_pos}
    module = bayesgeom.TransformerConfig(**sizes | options).build(seed=3)
    assert isinstance(module, Transformer)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weights in module.named_parameters():
            if ".prior." not in name:
                weights.add_(0.4 * torch.randn(weights.shape, generator=generator)).copy_(weights.half())
    return module


def posterior(task: WindTunnel, tokens: torch.Tensor) -> torch.Tensor:
    """The exact posterior at every scored position of one sequence that may be shorter than the task's."""
    if isinstance(task, Bijection):
        keys, values = tokens[:, ::2], torch.zeros_like(tokens[:, ::2])
        values[:, :-1] = tokens[:, 1::2] - task.n_values
        for key, value in zip(keys[0, :-1], values[0, :-1], strict=True):
            values[:, -1] = torch.where(key == keys[:, -1], value, values[:, -1])  # it is known if the key was shown
        trials = replace(task, n_pairs=keys.shape[1]).trials(keys, values)
        return trials.at_scored(trials.predictive)[0]
    assert isinstance(task, HMM | MarkovProcess)
    n_seen = (tokens.shape[1] - (task.n_pos - 2 * task.length) if isinstance(task, HMM) else 2 * tokens.shape[1]) // 2
    own = task.filter_of(tokens)
    return own.answers(exact_beliefs(own, 1, n_seen))[0]


def assert_same(page: "Page", module: Transformer, task: WindTunnel, atol: float, n: int = 6) -> None:
    """Edit the evidence in the page, and compare all numbers with those of the package."""
    answers, n_impossible = task.sample(1, seed=0).answers, 0
    for seen in page.evaluate(WALK, [11, n]):
        tokens = torch.tensor([seen["tokens"]])
        with torch.no_grad():
            _, cache = module.run_with_cache(tokens)
            names = [f"blocks.{layer}.hook_resid_pre" for layer in range(module.config.n_layers)]
            names.append(f"blocks.{module.config.n_layers - 1}.hook_resid_post")
            lens = [module.logits(cache[name])[0][:, answers].double().softmax(-1) for name in names]
            patterns = [cache[f"blocks.{layer}.attn.hook_pattern"][0] for layer in range(module.config.n_layers)]
        exact = posterior(task, tokens)
        for step, (place, own) in enumerate(zip(seen["places"], seen["at"], strict=True)):
            np.testing.assert_allclose(own["lens"], [stage[place] for stage in lens], rtol=0, atol=atol)
            attention = [pattern[:, place, : place + 1].numpy() for pattern in patterns]
            np.testing.assert_allclose(own["attention"], attention, rtol=0, atol=atol)
            if own["exact"] is None:  # the task never shows this
                n_impossible += 1
                assert not bool(torch.isfinite(exact[step]).all())
                continue
            np.testing.assert_allclose(own["exact"], exact[step], rtol=0, atol=1e-9)
            model = lens[-1][place]
            kl = torch.where(exact[step] > 0, exact[step] * (exact[step] / model).log2(), 0.0).sum()
            assert own["kl"][-1] == pytest.approx(float(kl), abs=20 * atol)
    assert n_impossible == 0 or isinstance(task, Process)


@cache
def shipped() -> str:
    return live_html(bayesgeom.load("mess3-small"))


def opened(browser_page: Browsing, html: str, **options: Any) -> "Page":
    page = browser_page(html, **options)
    page.wait_for_function(DRAWN)
    return page


def test_a_shipped_network_gives_the_numbers_of_python(browser_page: Browsing) -> None:
    model = bayesgeom.load("mess3-small")
    assert isinstance(model.module, Transformer) and isinstance(model.task, Mess3)
    assert len(shipped()) < 500_000
    assert_same(opened(browser_page, shipped()), model.module, model.task, ATOL)


@pytest.mark.parametrize(
    ("task", "options"),
    [
        (Mess3(length=9), {"norm": "layernorm", "positions": "rotary", "tied": False}),
        (HMM(n_states=3, n_symbols=2, length=5), {"positions": "alibi", "norm": "layernorm"}),
        (Bijection(n_values=3, n_pairs=7, repeats=True), {"positions": "learned", "top_attention_off": 1}),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                (HMM(n_states=2, n_symbols=7, length=30), {"positions": "learned"}),
                (StickyMarkov(n_states=7, length=11), {"positions": "sinusoidal"}),
                (Process("rrxor", length=8), {"positions": "none"}),
                (Process("bloch-walk", length=5), {"positions": "learned"}),
                (Product(Mess3(), "golden-mean", length=5), {"positions": "prior", "prior_slopes": (0.3, 1.0)}),
                (Bijection(n_values=5, n_pairs=4), {"positions": "rotary"}),
            )
        ),
    ],
    ids=lambda value: value.name if isinstance(value, WindTunnel) else str(value["positions"]),
)
def test_every_kind_of_network_and_task_gives_them(
    browser_page: Browsing, task: WindTunnel, options: dict[str, Any]
) -> None:
    module = lively(task, **options)
    page = opened(browser_page, live_html(bayesgeom.as_model(module), task))
    assert_same(page, module, task, ROUNDED_ATOL)


CHANGES = """async (n) => {
  const { root, spent } = await document.querySelector(".bayesgeom-live").live;
  for (let i = 0; i < n; i++) {
    root.querySelector(".tile button").click();
    root.querySelector(".grid").getBoundingClientRect();  // laid out
  }
  return spent();
}"""


def test_a_change_takes_at_most_50_ms_of_processor_time(browser_page: Browsing) -> None:
    """Changes of the first symbol, which reach every position. Other processes on the machine do not count."""
    page, n = opened(browser_page, shipped()), 10
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    page.evaluate(CHANGES, n)  # compiles
    before = seconds()
    assert page.evaluate(CHANGES, n) > 0
    assert 0 < (seconds() - before) / n < 0.05


def test_symbols_change_by_clicks_and_by_keys_alone(browser_page: Browsing) -> None:
    page = opened(browser_page, shipped())
    row, said = page.locator(".tile"), page.locator("[role=status]")
    before = [row.nth(i).inner_text() for i in range(24)], said.inner_text()
    row.nth(20).locator("button").click()
    assert row.nth(20).inner_text() != before[0][20] and said.inner_text() != before[1]
    page.keyboard.press("ArrowDown")
    assert [row.nth(i).inner_text() for i in range(24)] == before[0] and said.inner_text() == before[1]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    assert row.nth(21).inner_text() != before[0][21]
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    assert page.locator("output").inner_text() == "23 of 24" and page.locator(".tile.later").count() == 1
    page.reload()
    page.wait_for_function(DRAWN)
    stops = []
    for _ in range(3):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.querySelector('.bayesgeom-live').shadowRoot.activeElement.outerHTML"))
    assert [re.search(r"<(\w+)", stop)[1] for stop in stops] == ["button", "button", "input"]  # type: ignore[index]
    assert "symbol 1:" in stops[1]


def test_another_sequence_and_impossible_evidence(browser_page: Browsing) -> None:
    task = Process("golden-mean", length=6)  # never two 1s in a row
    page = opened(browser_page, live_html(bayesgeom.as_model(lively(task)), task))
    page.locator(".another").click()
    for tile in page.locator(".tile").all():
        while tile.inner_text().split()[0] != "x1":
            tile.locator("button").click()
    assert page.locator(".kl b").inner_text() == "impossible"
    page.locator("input").fill("1")
    assert page.locator(".kl b").inner_text().endswith(" bits")


def test_a_choice_of_tokens_keeps_the_map_one_to_one(browser_page: Browsing) -> None:
    task = Bijection(n_values=6, n_pairs=5)
    page = opened(browser_page, live_html(bayesgeom.as_model(lively(task)), task))
    page.locator(".tile select").nth(3).select_option(label="v0")
    page.locator(".tile select").nth(2).select_option(label="k5")
    chosen = page.locator(".tile select").evaluate_all("all => all.map((own) => own.selectedOptions[0].text)")
    assert chosen[2] == "k5" and len(set(chosen)) == len(chosen) == 9


COLORS = """() => {
  const pen = document.createElement("canvas").getContext("2d");
  const bytes = (color) => {  // of any notation, such as color-mix
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = color;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const root = document.querySelector(".bayesgeom-live").shadowRoot;
  return [...root.querySelectorAll("h2, p, b, span, small, button, output, select, text")]
    .filter((own) => own.checkVisibility() && own.textContent.trim() && !own.matches(".quiet, .row, .tile"))
    .map((own) => {
      let back = own;
      while (back && bytes(getComputedStyle(back).backgroundColor)[3] < 255) back = back.parentElement;
      const style = getComputedStyle(own), color = own.matches("text") ? style.fill : style.color;
      return [bytes(color), bytes(getComputedStyle(back ?? document.body).backgroundColor), own.textContent];
    });
}"""


@pytest.mark.parametrize(("width", "dark"), [(400, False), (400, True), (1280, False)])
def test_it_fits_the_width_and_is_readable(browser_page: Browsing, width: int, dark: bool) -> None:
    page = opened(browser_page, shipped(), width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    found = page.evaluate(COLORS)
    assert len(found) > 80
    for *colors, words in found:
        text, back = ("#" + "".join(f"{part:02x}" for part in color[:3]) for color in colors)
        assert contrast(text, back) >= TEXT_CONTRAST, words
        assert (luminance(text) > luminance(back)) == dark or words == "24", words  # the position that is read


def test_a_reader_without_scripts_is_told(browser_page: Browsing) -> None:
    context = browser_page.browser.new_context(java_script_enabled=False)
    page = context.new_page()
    path = browser_page.folder / "plain.html"
    path.write_text(shipped(), encoding="utf-8")
    page.goto(path.as_uri())
    assert page.get_by_text("this needs JavaScript").is_visible()
    context.close()


def test_a_part_of_another_page_has_no_page_around_it() -> None:
    part = live_html(bayesgeom.load("mess3-small"), is_part=True)
    assert part.startswith('<div class="bayesgeom-live">') and "<html" not in part and part in shipped()
    assert "import " not in re.sub(r"//.*", "", part.partition('<script type="module">')[2])


def test_what_cannot_run_there_gets_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Mess3(length=9)
    wide = bayesgeom.TransformerConfig(d_vocab=3, n_ctx=9, n_layers=6, d_model=264, n_heads=6, d_mlp=1024).build(seed=0)
    assert sum(weights.numel() for weights in wide.parameters()) > MOST_PARAMETERS
    for module, other in ((wide, task), (lively(bayesgeom.tasks.Dice(n_faces=3)), bayesgeom.tasks.Dice(n_faces=3))):
        with pytest.raises(
            InvalidArgument, match=r"a live page takes a transformer of this package .* got transformer"
        ):
            live_html(bayesgeom.as_model(module), other)
    with pytest.raises(bayesgeom.core.TaskMismatch):
        live_html(bayesgeom.as_model(lively(task)), Mess3(length=10))
    out = tmp_path / "page.html"
    assert main(["view", "bijection-lstm", "--live", "--out", str(out)]) == 2
    assert "got bijection-lstm on bijection" in capsys.readouterr().err and not out.exists()
    assert main(["view", "mess3-small", "--live", "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == shipped()
