"""Make the screenshots of this folder: `python docs/images/make.py`. Needs Chromium on the path, and playwright."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import bayesgeom

FOLDER = Path(__file__).resolve().parent
READINGS = FOLDER.parents[1] / "examples" / "replication" / "results"
PICTURES = {
    "ablation.png": "bijection-v20-llama/ablation",
    "length.png": "length-recall-mixed",
}
WIDTH, HEIGHT, MOST_BYTES = 1200, 680, 200_000
SECONDS = 5


def pages() -> Iterator[tuple[str, str, int]]:
    """Yield each picture's name with the document and the height of its part that is shown."""
    yield "page.png", bayesgeom.diagnose("bijection-v20", ablations=True).to_html(), 1025
    for name, reading in PICTURES.items():
        yield name, bayesgeom.load_report(READINGS / reading).to_html(), HEIGHT


def main() -> None:
    """Write every picture."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools, tempfile.TemporaryDirectory() as folder:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, text, height in pages():
            document = Path(folder) / "page.html"
            document.write_text(text, encoding="utf-8")
            page = browser.new_page(viewport={"width": WIDTH, "height": height})
            page.goto(document.as_uri())
            page.wait_for_timeout(SECONDS * 1000)  # figures are unpacked and drawn
            page.screenshot(path=FOLDER / name)
            if (size := (FOLDER / name).stat().st_size) > MOST_BYTES:
                raise SystemExit(f"{name} has {size:,} bytes, at most {MOST_BYTES:,} are allowed.")


if __name__ == "__main__":
    main()
