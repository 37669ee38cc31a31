"""A script's folder comes first on the search path, so no script may have the name of a module that others import."""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
IMPORTED_IF_PRESENT = {"coverage", "IPython", "yaml", "pytest"}  # by torch and others, installed or not


def shadowing(names: set[str]) -> set[str]:
    """The names that are also modules of the standard library or of a package."""
    return names & (sys.stdlib_module_names | packages_distributions().keys() | IMPORTED_IF_PRESENT)


def test_no_benchmark_shadows_a_module() -> None:
    names = {path.stem for path in BENCHMARKS.glob("*.py")}
    assert names and not shadowing(names)
