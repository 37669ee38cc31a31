"""Before anything is imported: one thread per test process, and shape checks on everything the package defines."""

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"  # read once, when torch and numpy load; two test processes fill two cores
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import jaxtyping
import numpy as np
import pytest

from tests import shape_checks

jaxtyping.install_import_hook("bayesgeom", f"{shape_checks.__name__}.checked")


@pytest.fixture
def rng() -> np.random.Generator:
    """A fresh generator with the same seed in every test."""
    return np.random.default_rng(0)
