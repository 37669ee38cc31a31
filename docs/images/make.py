"""Make the screenshots of this folder from committed readings: `python docs/images/make.py`.

Needs Chromium on the path, and Pillow, which reduces the pictures to 256 colors.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from bayesgeom import load_report

FOLDER = Path(__file__).resolve().parent
READINGS = FOLDER.parents[1] / "examples" / "replication" / "results"
_REST = ".note, nav, h2, section .about, .scroll"
PICTURES = {  # file: reading, height in pixels, what is left out of the page
    "calibration.png": ("claims/calibration-bijection-v20", 840, f"{_REST}, .panel:nth-child(n + 3)"),
    "ablation.png": ("bijection-v20-llama/ablation", 1300, f"{_REST}, .panel:nth-child(n + 3)"),
    "architectures.png": ("comparison", 1310, f"{_REST}, .panel:nth-child(2)"),
    "length.png": ("length-recall-mixed", 1230, f"{_REST}, .findings"),
}
WIDTH, COLORS, MOST_BYTES = 1200, 256, 150_000


def main() -> None:
    """Write every picture."""
    for name, (reading, height, left_out) in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            page, raw = Path(folder) / "page.html", Path(folder) / "page.png"
            text = load_report(READINGS / reading).to_html()
            page.write_text(
                text.replace("</style>", f"{left_out}, details {{ display: none; }}</style>"), encoding="utf-8"
            )
            photograph(page, raw, height)
            reduce(raw, FOLDER / name)


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
    if to.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{to.name} has {to.stat().st_size:,} bytes, at most {MOST_BYTES:,} are allowed.")


if __name__ == "__main__":
    main()
