"""Before anything is imported: one thread per test process, and shape checks on everything the package defines."""

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"  # read once, when torch and numpy load; two test processes fill two cores
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import importlib

import numpy as np
import pytest

from tests import shape_checks

# While a hooked module loads, jaxtyping's hook hides the compiled files of what that module is the first to import: a
# third of the time to collect the tests went into compiling the sources of these libraries.
for library in ("scipy.stats", "sklearn.linear_model", "transformer_lens"):
    importlib.import_module(library)
shape_checks.install("bayesgeom")


@pytest.fixture
def rng() -> np.random.Generator:
    """A fresh generator with the same seed in every test."""
    return np.random.default_rng(0)
