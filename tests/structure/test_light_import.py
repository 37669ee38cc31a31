"""`import bayesgeom` is instant: heavy libraries load when something needs them."""

import json
import subprocess
import sys

from tests.structure.source import ROOT

HEAVY = ("torch", "transformer_lens", "transformers", "plotly", "pandas", "sklearn", "scipy", "pyarrow", "numba")


def heavy_after(code: str) -> list[str]:
    """The heavy libraries that are loaded in a fresh interpreter once `code` has run."""
    script = f"{code}\nimport json, sys\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded: list[str] = json.loads(done.stdout)
    return loaded


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert heavy_after("import bayesgeom") == []


def test_listing_what_the_package_offers_loads_nothing_heavy() -> None:
    assert heavy_after("import bayesgeom; dir(bayesgeom)") == []


def test_a_heavy_import_is_found() -> None:
    assert "plotly" in heavy_after("import plotly")
