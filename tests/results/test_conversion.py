"""Saved reports of schema 2 lose no number when `docs/readings/convert.py` converts them.

`tests/results/schema2/` holds the smallest committed report of each kind as it was saved before the conversion.
"""

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bayesgeom.results.estimate import Estimate
from bayesgeom.results.report import Report
from bayesgeom.results.storage import JSON, estimate_parts, read
from tests.pages import READINGS

SAVED = Path(__file__).parent / "schema2"
KINDS = sorted(path.name for path in SAVED.iterdir())
TOO_LARGE = {"attention_maps", "belief_readout", "dynamics", "em_experiment", "gradients", "manifold_film"}  # ≥ 89 kB
NEVER_COMMITTED = {"domain_separation", "monitor", "pass_thresholds", "write_strength"}  # in that form


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """`docs/readings/convert.py`, which finds its own modules through `sys.path`."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("readings_convert", READINGS / "convert.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def made_from(script: ModuleType, kind: str) -> tuple[Any, list[Report]]:
    """The old report of a sample, and the reports that it becomes."""
    reports, _ = script.old_reports(SAVED / kind)
    old = reports[kind]
    return old, [script.CONVERTERS[kind](old), *(of(old) for of in script.SPLIT.get(kind, ()))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_old_number_is_in_the_new_report(kind: str, script: ModuleType) -> None:
    old, new = made_from(script, kind)
    n_numbers = sum(1 for part in (old.scalars, old.arrays) for _ in script.numbers(part))
    assert n_numbers > 10 and all(isinstance(own, Report) for own in new)
    assert script.missing(kind, old, new) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_number_is_found(kind: str, script: ModuleType) -> None:
    old, new = made_from(script, kind)
    name = next(name for name in old.arrays if name not in script.DROPPED.get(kind, ()))
    other = type(old)(old.scalars, {**old.arrays, name: np.append(old.arrays[name].ravel(), 0.123456789)})
    assert script.missing(kind, other, new) == {name: [0.123456789]}


def test_there_is_a_sample_of_every_kind_that_is_small(script: ModuleType) -> None:
    without = TOO_LARGE | NEVER_COMMITTED
    assert set(KINDS) | without == {*script.CONVERTERS, *script.SPLIT} and not set(KINDS) & without


def test_the_entry_point_runs_every_script_that_converts() -> None:
    spec = importlib.util.spec_from_file_location("readings_convert_all", READINGS / "convert_all.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    measuring = {"smollm2.py", "measure_interventions.py"}  # these measure reports again
    scripts = {path.name for path in READINGS.glob("*.py")} - measuring - {"convert_all.py"}
    assert {name for name, *_ in module.STEPS} == scripts


@pytest.fixture(scope="module")
def withholding() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readings_withhold_biased", READINGS / "withhold_biased.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.exhaustive
def test_no_committed_jackknife_interval_ends_at_its_estimate(withholding: ModuleType) -> None:
    reports = [read(path.parent)[0] for path in READINGS.glob(f"**/{JSON}")]
    changed = [withholding.converted(key, *own)[2] for parts in reports for key, own in parts.items()]
    assert len(changed) > 100 and not any(changed), "run docs/readings/withhold_biased.py"


def test_a_jackknife_interval_that_ends_at_its_estimate_is_withheld(withholding: ModuleType) -> None:
    """Exact overlaps keep their value at both ends; intervals that contain the estimate and other fields stay."""
    value = np.array([0.5, 0.5, 0.5, 0.5, np.nan])
    own = Estimate.of(value, ([0.5, 0.3, 0.4, 0.5, np.nan], [0.6, 0.5 + 1e-8, 0.6, 0.5 + 3e-8, np.nan]), n=31)
    scalars, arrays = estimate_parts("overlap", own)
    for name in ("overlap", "effective_memory_symbols"):
        new_scalars, new_arrays, changed = withholding.converted(
            "key_overlap", {name: scalars}, {key.replace("overlap", name): end for key, end in arrays.items()}
        )
        if name == "overlap":
            np.testing.assert_array_equal(new_arrays["overlap.low"], [np.nan, np.nan, 0.4, 0.5, np.nan])
            np.testing.assert_array_equal(new_arrays["overlap.high"], [np.nan, np.nan, 0.6, 0.5, np.nan])
            assert changed == 3 and "bias is larger than the uncertainty" in new_scalars[name]["why_not"]
            assert withholding.converted("key_overlap", new_scalars, new_arrays)[2] == 0, (
                "running it again does nothing"
            )
        else:
            assert changed == 0 and new_arrays[f"{name}.low"][0] == 0.5


@pytest.fixture(scope="module")
def kinks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readings_withhold_kinks", READINGS / "withhold_kinks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_overlaps_whose_cosines_may_be_noise_lose_their_interval(kinks: ModuleType) -> None:
    """Of 190 pairs: with SE 0.0002 b is 2 % of half the width, with SE 0.003 it is 29 %, and far from 0 none."""
    widths = 2 * kinks.HALF * np.array([0.0002, 0.003, 0.003])
    means, spreads = np.array([0.0, 0.0, 0.9]), np.array([0.4, 0.4, 0.02])
    ratio = kinks.kink_ratio(widths, 190.0, 1, means, spreads)
    by_hand = 190 * 0.003 / (0.4 * math.sqrt(2 * math.pi)) / 1.959964
    np.testing.assert_allclose(ratio, [by_hand / 15, by_hand, 0.0], atol=1e-12)
    assert ratio[0] < kinks.MOST < ratio[1]
    own = ({"key_overlap": {"why_not": ""}}, {"key_overlap.low": np.array([0.1]), "key_overlap.high": np.array([0.2])})
    assert kinks.without_ends(own, "key_overlap", np.array([True]), "noise") == 1
    assert np.isnan(own[1]["key_overlap.low"]).all() and own[0]["key_overlap"]["why_not"] == "noise"


def test_the_committed_overlaps_are_converted(kinks: ModuleType) -> None:
    for name in kinks.REPORTS:
        parts, extra = read(READINGS / name)
        is_dynamics = name in kinks.DYNAMICS
        own = parts["dynamics" if is_dynamics else "key_overlap"]
        changed = kinks.of_dynamics(own, extra["provenance"]) if is_dynamics else kinks.of_keys(own)
        assert changed == 0, f"run docs/readings/withhold_kinks.py: {name}"
