"""Debian's chromium through playwright: pages are looked at as a reader's browser draws them, without a network."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

PROGRAMS = ("chromium", "chromium-browser")


def missing() -> str:
    """Why no browser can be started; empty where one can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return "" if any(map(shutil.which, PROGRAMS)) else "chromium is not installed (apt-get install chromium)"


@contextmanager
def chromium() -> Iterator["Browser"]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, PROGRAMS)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Browsing:
    """Opens pages: `browser_page(path)`. No request leaves the machine: `requests` lists those that were tried."""

    browser: "Browser"
    folder: Path
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)

    def __call__(self, page: str | Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        """Open a file, or HTML text, in a window of this width; errors of its scripts are in `errors`."""
        if isinstance(page, str):
            path = self.folder / f"page-{len(self.opened)}.html"
            path.write_text(page, encoding="utf-8")
        else:
            path = page
        size: Any = {"width": width, "height": height}
        opened = self.browser.new_page(viewport=size, color_scheme="dark" if dark else "light")
        self.opened.append(opened)
        opened.on("pageerror", lambda error: self.errors.append(str(error)))
        opened.route("**/*", self._answer)
        opened.goto(path.as_uri())
        return opened

    def _answer(self, route: "Route") -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()
