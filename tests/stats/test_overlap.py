"""Overlap of directions against loops over pairs, its laws, and its chance levels against simulation."""

import math

import numpy as np
import pytest
import torch

import bayesgeom.stats.overlap as c


def random_frames(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_cosines(vectors: np.ndarray) -> dict[tuple[int, int], float]:
    """Cosine of every distinct pair, one at a time."""
    found = {}
    for i in range(len(vectors)):
        for j in range(i + 1, len(vectors)):
            lengths = math.sqrt(vectors[i] @ vectors[i]) * math.sqrt(vectors[j] @ vectors[j])
            found[i, j] = float(vectors[i] @ vectors[j]) / lengths
    return found


def slow_statistics(vectors: np.ndarray) -> dict[str, float]:
    n, d = vectors.shape
    raw = slow_cosines(vectors)
    without_mean = slow_cosines(vectors - sum(vectors) / n)
    gram = np.eye(n)
    for (i, j), value in raw.items():
        gram[i, j] = gram[j, i] = value
    eigenvalues = np.linalg.eigvalsh(gram)
    return {
        "overlap": sum(map(abs, raw.values())) / len(raw),
        "overlap_max": max(map(abs, raw.values())),
        "overlap_centered": sum(map(abs, without_mean.values())) / len(raw),
        "overlap_centered_max": max(map(abs, without_mean.values())),
        "signed_mean": sum(raw.values()) / len(raw),
        "orthogonality": 1 - np.linalg.norm(gram - np.eye(n)) / np.linalg.norm(np.ones((n, n)) - np.eye(n)),
        "dimension_utilization": eigenvalues.sum() ** 2 / (eigenvalues**2).sum() / min(n, d),
    }


@pytest.mark.parametrize(("n", "d"), [(5, 7), (13, 3), (2, 11)])
def test_statistics_equal_a_loop_over_pairs(n: int, d: int) -> None:
    frames = random_frames(1, 3, 2, n, d) + 0.5
    found = c.frame_statistics(frames)
    for a in range(3):
        for b in range(2):
            for name, value in slow_statistics(frames[a, b].numpy()).items():
                assert float(found[name][a, b]) == pytest.approx(value, abs=1e-12), name


def test_orthonormal_parallel_and_opposite() -> None:
    basis = c.frame_statistics(torch.eye(7, dtype=torch.float64)[:5])
    assert float(basis["overlap"]) == 0 and float(basis["orthogonality"]) == 1
    assert float(basis["dimension_utilization"]) == pytest.approx(1)
    line = c.frame_statistics(torch.tensor([1.0, -2.0, 3.0]).double()[:, None] * torch.ones(5).double())
    assert float(line["overlap"]) == pytest.approx(1) and float(line["orthogonality"]) == pytest.approx(0)
    assert float(line["signed_mean"]) == pytest.approx(-1 / 3)
    assert float(line["dimension_utilization"]) == pytest.approx(1 / 3)


def test_vectors_without_direction_are_left_out() -> None:
    frame = random_frames(7, 7, 5)
    holed = frame.clone()
    holed[2], holed[4] = torch.nan, 0.0
    kept = c.frame_statistics(frame[[0, 1, 3, 5, 6]])
    found = c.frame_statistics(holed)
    for name in ("overlap", "overlap_max", "signed_mean", "orthogonality", "dimension_utilization"):
        torch.testing.assert_close(found[name], kept[name], msg=name)
    missing = frame.clone()
    missing[2] = torch.nan
    rest = c.frame_statistics(frame[[0, 1, 3, 4, 5, 6]])
    torch.testing.assert_close(c.frame_statistics(missing)["overlap_centered"], rest["overlap_centered"])


NOTHING = [torch.ones(5, 7), torch.full((5, 7), 0.1), torch.ones(1, 7), torch.zeros(5, 7), torch.ones(0, 7)]


@pytest.mark.parametrize("frame", NOTHING)
def test_nothing_to_compare_is_nan(frame: torch.Tensor) -> None:
    assert math.isnan(float(c.frame_statistics(frame)["overlap_centered"]))
    if len(frame) < 2 or not frame.any():
        found = c.frame_statistics(frame)
        assert all(math.isnan(float(v)) for k, v in found.items() if k != "dimension_utilization")


# Chance levels.


def test_chance_overlap_at_the_widths_of_the_papers() -> None:
    quoted = {32: 0.141, 64: 0.100, 96: 0.081, 192: 0.058, 1024: 0.025, 2560: 0.016}
    for d, value in quoted.items():
        assert c.chance_overlap(d) == pytest.approx(value, abs=0.0015)
    assert c.chance_overlap(1) == pytest.approx(1) and c.chance_overlap(2) == pytest.approx(2 / math.pi)


@pytest.mark.parametrize(("n", "d"), [(5, 16), (20, 32), (3, 2), (11, 3), (41, 7)])
def test_chances_are_what_random_frames_score(n: int, d: int) -> None:
    frames = random_frames(8, 60_000 // (n * n) + 200, n, d)
    found = {name: float(value.mean()) for name, value in c.frame_statistics(frames).items()}
    chance = c.frame_chances(n, d)
    for name in ("overlap", "overlap_centered", "signed_mean"):
        assert found[name] == pytest.approx(chance[name], abs=0.01), name
    assert found["overlap_max"] == pytest.approx(chance["overlap_max"], rel=0.04)
    squares = c.pairwise_cosine(frames).square()[:, ~torch.eye(n, dtype=torch.bool)]
    assert (1 - chance["orthogonality"]) ** 2 == pytest.approx(float(squares.mean()), rel=0.1)


def test_centered_chance_far_from_few_vectors_is_the_plain_one() -> None:
    assert c.chance_overlap_centered(10_001, 32) == pytest.approx(c.chance_overlap(32), rel=1e-4)
    assert c.chance_overlap_centered(5, 20_000) == pytest.approx(1 / 4, rel=1e-3)  # a simplex, whatever it encodes
    assert c.chance_overlap_centered(2, 7) == 1 and math.isnan(c.chance_overlap_centered(1, 7))
    assert c.chance_overlap_max(2, 7) == pytest.approx(c.chance_overlap(7), rel=1e-4)
    assert c.chance_overlap_max(5, 1) == 1 and math.isnan(c.chance_overlap_max(1, 7))


def test_welch_bound_is_reached_by_a_simplex_and_never_undercut() -> None:
    assert c.welch_bound(5, 5) == 0 and c.welch_bound(1, 1) == 0 and c.welch_bound(3, 7) == 0
    simplex = c.centered(torch.eye(7, dtype=torch.float64))
    found = c.frame_statistics(simplex)
    assert c.welch_bound(7, 6) == pytest.approx(float(found["overlap_max"]))
    crowded = c.frame_statistics(random_frames(9, 50, 13, 5))
    bound = c.welch_bound(13, 5)
    assert bool((crowded["overlap_max"] >= bound).all()) and bool((1 - crowded["orthogonality"] >= bound - 1e-12).all())
    assert bool((crowded["overlap"] >= bound**2).all())
