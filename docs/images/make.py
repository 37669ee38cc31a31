"""Make the screenshots of this folder: `python docs/images/make.py`.

Needs Chromium on the path, and Pillow, which reduces the pictures to 256 colors.

The page of a diagnosis is measured again; the others are those of committed readings.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

import bayesgeom

FOLDER = Path(__file__).resolve().parent
READINGS = FOLDER.parents[1] / "examples" / "replication" / "results"
PICTURES = {  # file: reading, or "" for a new diagnosis; height in pixels of what is shown from the top
    "page.png": ("", 1025),
    "ablation.png": ("bijection-v20-llama/ablation", 640),
    "length.png": ("length-recall-mixed", 700),
}
WIDTH, COLORS, MOST_BYTES = 1200, 256, 300_000  # of a picture, and of all of them


def main() -> None:
    """Write every picture."""
    for name, (reading, height) in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            if reading:
                bayesgeom.load_report(READINGS / reading).to_html(page)
            else:
                bayesgeom.diagnose("bijection-v20", n=512, ablations=True).to_html(page)
            photograph(page, raw := Path(folder) / "page.png", height)
            reduce(raw, FOLDER / name)
    if (size := sum((FOLDER / name).stat().st_size for name in PICTURES)) > MOST_BYTES:
        raise SystemExit(f"The pictures have {size:,} bytes, at most {MOST_BYTES:,} are allowed.")


def photograph(page: Path, to: Path, height: int) -> None:
    """Render the top of a page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("Chromium is not on the path: install it first.")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000"]
    subprocess.run(
        [browser, *options, f"--window-size={WIDTH},{height}", f"--screenshot={to}", page.as_uri()],
        check=True,
        capture_output=True,
    )


def reduce(picture: Path, to: Path) -> None:
    """Write a picture with a palette."""
    from PIL import Image

    Image.open(picture).convert("RGB").quantize(COLORS).save(to, optimize=True)


if __name__ == "__main__":
    main()
