"""Before anything is imported: one thread per test process, and run-time checks of annotations where requested.

`CHECK_ANNOTATIONS=1` checks calls into the package, shapes included. `make test-tiers` and `make test-avx2` set it.
The default tests run the package as users do: the checks took a quarter of their time.
"""

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"  # read once, when torch and numpy load; two test processes fill two cores
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import gc
import importlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests import browser, shape_checks

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def hands_out_tests() -> bool:
    """Whether this process runs no test itself: `pytest -n 2` starts two that do."""
    _, _, number = " ".join(sys.argv).partition(" -n ")
    return "PYTEST_XDIST_WORKER" not in os.environ and number.split(" ")[0] not in ("", "0")


if not hands_out_tests():
    gc.disable()  # until the tests are collected: a quarter of that time went into garbage, and there is none
    if shape_checks.ARE_ON:
        # While a hooked module loads, jaxtyping's hook hides the compiled files of what that module is the first to
        # import: a third of the time to collect the tests went into compiling the sources of these libraries.
        for library in ("scipy.stats", "sklearn.linear_model", "transformer_lens"):
            importlib.import_module(library)
        shape_checks.install("bayesgeom")


def pytest_collection_finish() -> None:
    """Look for garbage among what the tests make: a pass over all modules and tests takes most of a second.

    A search after every 700 new objects took 4 % of the time of the tests, one after every 10,000 took 2 %.
    """
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    if (plotly := sys.modules.get("plotly.basedatatypes")) and "_str_to_dict_path_full" in vars(plotly):
        # plotly splits names such as "title_font_size" again for every property of every axis: a tenth of a figure.
        plotly._str_to_dict_path_full = cache(plotly._str_to_dict_path_full)


@pytest.fixture
def rng() -> np.random.Generator:
    """A fresh generator with the same seed in every test."""
    return np.random.default_rng(0)


@pytest.fixture(scope="module")  # while it runs, nothing else in this thread can use asyncio
def _chromium() -> Iterator["Browser"]:
    if reason := browser.missing():
        pytest.skip(reason)
    with browser.chromium() as started:
        yield started


@pytest.fixture
def browser_page(_chromium: "Browser", tmp_path: Path) -> Iterator[browser.Browsing]:
    """Opens pages in chromium: `browser_page(path, width=400, dark=True)`; skipped where there is no browser."""
    browsing = browser.Browsing(_chromium, tmp_path)
    yield browsing
    for page in browsing.opened:
        page.close()
    assert not browsing.requests, "a page fetches something"
    assert not browsing.errors, "a script of the page fails"
